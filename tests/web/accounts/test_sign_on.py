"""Logging in through an OpenID provider: a real one over HTTP, and every wrong answer it could give."""

import base64
import html
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from astraflow.contract.errors import InvalidInput
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.provider import CLIENT_ID, CLIENT_SECRET, FakeProvider
from tests.fakes.web import RunningWeb, running_web
from web.accounts.provider import ProviderConfig
from web.door.roles import Role

pytestmark = pytest.mark.anyio

OTHER = "https://other.example"


@pytest.fixture
async def provider() -> AsyncIterator[FakeProvider]:
    fake = FakeProvider()
    async with fake.serving():
        yield fake


@pytest.fixture
async def web(provider: FakeProvider, fake: FakeControlPlane, tmp_path: Path) -> AsyncIterator[RunningWeb]:
    file = tmp_path / "provider.toml"
    file.write_text(
        f'issuer = "{provider.issuer}"\nclient_id = "{CLIENT_ID}"\nlabel = "Example"\n'
        '[roles]\noperator = ["alice@example.org"]\nviewer = ["eve@example.org"]\n'
    )
    more: dict[str, Any] = {"provider": file, "provider_secret": CLIENT_SECRET}
    async with fake.serving() as dataflow, running_web(tmp_path, dataflow, **more) as running:
        await running.until_fed()
        yield running


async def came_back(client: httpx.AsyncClient, *, target: str = "/") -> str:
    """Press the button, log in at the provider; the address it sends the browser back to."""
    began = await client.get("/login/provider", params={"next": target})
    assert began.status_code == 303
    async with httpx.AsyncClient() as outside:
        sent = await outside.get(began.headers["location"])
    assert sent.status_code == 303, sent.text
    return sent.headers["location"]


async def log_in(client: httpx.AsyncClient) -> httpx.Response:
    return await client.get(await came_back(client))


async def test_whom_the_provider_vouches_for_comes_in_with_the_role_of_the_claim(
    web: RunningWeb, provider: FakeProvider
) -> None:
    async with web.client() as client:
        assert "Continue with Example" in (await client.get("/login")).text
        back = await client.get(await came_back(client, target="/nodes?page=2"))
        assert (back.status_code, back.headers["location"]) == (303, "/nodes?page=2")
        settings = (await client.get("/settings")).text
        assert "oidc:alice@example.org" in settings
        assert "with the role operator" in settings
        assert provider.redeemed == 1

    async with web.client() as again:
        await log_in(again)
        assert "oidc:alice@example.org (2)" not in (await again.get("/settings")).text, "the same user"


WRONG: dict[str, dict[str, Any]] = {
    "nonce": {"over": {"nonce": "of another login"}},
    "nonce left out": {"over": {"nonce": None}},
    "audience": {"over": {"aud": "another-client"}},
    "audience left out": {"over": {"aud": None}},
    "authorised party": {"over": {"aud": [CLIENT_ID, "another"], "azp": "another"}},
    "issuer": {"over": {"iss": OTHER}},
    "issuer of several": {"over": {"iss": [OTHER]}},
    "expired": {"expires_in_s": -120},
    "expiry left out": {"over": {"exp": None}},
    "subject left out": {"over": {"sub": None}},
    "subject of another kind": {"over": {"sub": 7}},
    "subject with a space": {"over": {"sub": "a\n"}},
    "mail not verified": {"over": {"email_verified": False}},
    "mail verified by a word": {"over": {"email_verified": "true"}},
    "mail like a pattern's": {"over": {"email": "alice@example.org.evil.example"}},
    "mail with a prefix": {"over": {"email": "xalice@example.org"}},
    "mail with other letters": {"over": {"email": "ALICE@example.org"}},
    "mail with a line": {"over": {"email": "alice@example.org\n"}},
    "mail left out": {"over": {"email": None}},
    "redirect from another": {"answers_as": OTHER},
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_an_answer_with_anything_wrong_is_refused_and_audited(
    web: RunningWeb, provider: FakeProvider, wrong: str
) -> None:
    for name, value in WRONG[wrong].items():
        setattr(provider, name, value)
    async with web.client() as client:
        answer = await log_in(client)
        assert answer.status_code == 403
        assert "form-problem" in answer.text
        assert (await client.get("/api/v1/session")).status_code == 401
    async with web.logged_in() as admin:
        refused = (await admin.get("/audit.ndjson?result=refused")).text
        assert json.loads(refused.splitlines()[0])["action"] == "session.open"


async def test_signatures_by_keys_that_are_not_the_providers_are_refused_and_rotated_ones_are_found(
    web: RunningWeb, provider: FakeProvider
) -> None:
    async with web.client() as client:
        assert (await log_in(client)).status_code == 303
    provider.rotate(is_published=False)
    async with web.client() as client:
        assert (await log_in(client)).status_code == 403
    provider.rotate()
    web.clock.push(61)
    async with web.client() as client:
        assert (await log_in(client)).status_code == 303


async def test_the_algorithm_none_and_shared_secrets_are_refused(
    web: RunningWeb, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsigned(nonce: str) -> str:
        real = FakeProvider._signed(provider, nonce)
        head = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
        return f"{head}.{real.split('.')[1]}."

    monkeypatch.setattr(provider, "_signed", unsigned)
    async with web.client() as client:
        assert (await log_in(client)).status_code == 403


async def test_a_login_is_finished_by_the_browser_that_began_it_once_and_in_time(
    web: RunningWeb, provider: FakeProvider
) -> None:
    async with web.client() as victim, web.client() as attacker:
        stolen = await came_back(attacker)
        assert (await victim.get(stolen)).status_code == 403, "no login was begun here"
        await came_back(victim)
        refused = await victim.get(stolen)
        assert refused.status_code == 403, "another one was"
        assert "was not begun in this browser" in html.unescape(refused.text)
        good = await came_back(victim)
        assert (await victim.get(good)).status_code == 303
        async with web.client() as again:
            again.cookies = attacker.cookies
            assert (await again.get(good)).status_code == 403
        late = await came_back(attacker)
        web.clock.push(601)
        assert (await attacker.get(late)).status_code == 403
    assert provider.redeemed == 1, "nothing was redeemed for a login that was not ours"


async def test_a_forged_cookie_of_a_flow_is_refused(web: RunningWeb) -> None:
    async with web.client() as client:
        back = await came_back(client)
        name, sealed = next(iter(client.cookies.items()))
        content = json.loads(base64.urlsafe_b64decode(sealed.partition(".")[0]))
        content[3] = "//evil.example"
        forged = base64.urlsafe_b64encode(json.dumps(content).encode()).decode() + "." + sealed.partition(".")[2]
    async with httpx.AsyncClient(cookies={name: forged}) as client:
        assert (await client.get(back)).status_code == 403


async def test_a_role_follows_the_claim_and_who_loses_it_is_out(web: RunningWeb, provider: FakeProvider) -> None:
    async with web.client() as client, web.client() as later:
        await log_in(client)
        provider.claims["email"] = "eve@example.org"
        await log_in(later)
        assert "with the role viewer" in (await client.get("/settings")).text
        provider.claims["email"] = "mallory@example.org"
        async with web.client() as last:
            assert "to whom no role is given" in (await log_in(last)).text
        assert (await client.get("/api/v1/session")).status_code == 401


async def test_a_provider_that_is_another_or_away_is_said_so(web: RunningWeb, provider: FakeProvider) -> None:
    provider.says_issuer = OTHER
    async with web.client() as client:
        answer = await client.get("/login/provider")
        assert answer.status_code == 503
        assert "another issuer" in answer.text
    denied = "/login/provider/return?error=access_denied&state=x"
    async with web.client() as client:
        assert "did not log you in: access_denied" in (await client.get(denied)).text


def test_groups_are_compared_whole_and_the_most_is_given() -> None:
    config = ProviderConfig(
        issuer="https://a.example", client_id="x", claim="groups", roles={"admin": ("ops",), "viewer": ("all", "ops.*")}
    )

    assert config.role_of({"groups": ["all", "ops"]}) is Role.ADMIN
    assert config.role_of({"groups": "ops"}) is Role.ADMIN
    for groups in (["opsx"], ["xops"], ["OPS"], [], None, {"ops": 1}, [["ops"]], "ops2", ["ops\n"]):
        assert config.role_of({"groups": groups}) is None
    assert config.role_of({"groups": ["ops.*"]}) is Role.VIEWER, "a value, not a pattern"


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"issuer": "http://a.example"}, "https://"),
        ({"roles": {}}, "roles"),
        ({"roles": {"boss": ["x"]}}, "'boss' is none; known: viewer"),
        ({"roles": {"admin": [""]}}, "none that is empty"),
        ({"rolls": {}}, "did you mean"),
    ],
)
def test_a_file_that_would_let_strangers_in_is_refused(values: dict[str, Any], problem: str) -> None:
    good = {"issuer": "https://a.example", "client_id": "x", "roles": {"admin": ["x"]}}
    with pytest.raises(InvalidInput, match=problem):
        ProviderConfig.parse({**good, **values}, where="provider.toml")
