"""Login through an OpenID provider: a real one over HTTP, and every invalid answer it could give."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from astraflow.contract.errors import InvalidInput
from tests.errors import raises_code
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.openid_provider import CLIENT_ID, CLIENT_SECRET, FakeOpenIdProvider
from tests.fakes.web import RunningWeb, running_web
from tests.web.page_elements import Element, parsed
from web.accounts.openid_provider import OpenIdConfig
from web.security.roles import Role

pytestmark = pytest.mark.anyio

OTHER = "https://other.example"


@pytest.fixture
async def provider() -> AsyncIterator[FakeOpenIdProvider]:
    fake = FakeOpenIdProvider()
    async with fake.serving():
        yield fake


@pytest.fixture
async def web(provider: FakeOpenIdProvider, fake: FakeControlPlane, tmp_path: Path) -> AsyncIterator[RunningWeb]:
    file = tmp_path / "provider.toml"
    file.write_text(
        f'issuer = "{provider.issuer}"\nclient_id = "{CLIENT_ID}"\nlabel = "Example"\n'
        '[roles]\noperator = ["alice@example.org"]\nviewer = ["eve@example.org"]\n'
    )
    more: dict[str, Any] = {"provider": file, "provider_secret": CLIENT_SECRET}
    async with fake.serving() as dataflow, running_web(tmp_path, dataflow, **more) as running:
        await running.until_connected()
        yield running


async def came_back(client: httpx.AsyncClient, *, target: str = "/") -> str:
    """Starts a login and logs in at the provider; returns the address to which the provider redirects the browser."""
    began = await client.get("/login/provider", params={"next": target})
    assert began.status_code == 303
    async with httpx.AsyncClient() as outside:
        sent = await outside.get(began.headers["location"])
    assert sent.status_code == 303, sent.text
    return sent.headers["location"]


async def log_in(client: httpx.AsyncClient) -> httpx.Response:
    return await client.get(await came_back(client))


def login_code(answer: httpx.Response) -> str:
    """Returns the code of the error that the login page shows."""
    return parsed(answer).one(".form-problem")["data-code"]


async def account(client: httpx.AsyncClient) -> tuple[str, str]:
    """Returns the name and the role that Settings shows for the client."""
    page: Element = parsed(await client.get("/settings"))
    return page.one("[data-part=own-name]").text, page.one("[data-part=own-role]").text


@pytest.mark.long
async def test_a_login_through_the_provider_has_the_role_of_the_claim(
    web: RunningWeb, provider: FakeOpenIdProvider
) -> None:
    async with web.client() as client:
        (link,) = [
            link for link in parsed(await client.get("/login")).all("a.button") if "/login/provider" in link["href"]
        ]
        assert "Example" in link.text
        back = await client.get(await came_back(client, target="/nodes?page=2"))
        assert (back.status_code, back.headers["location"]) == (303, "/nodes?page=2")
        assert await account(client) == ("oidc:alice@example.org", "operator")
        assert provider.redeemed == 1

    async with web.client() as again:
        await log_in(again)
        assert (await account(again))[0] == "oidc:alice@example.org", "the same user, without a number"


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


@pytest.mark.parametrize("part", range(3))
async def test_an_invalid_answer_of_the_provider_is_refused_and_audited(
    web: RunningWeb, provider: FakeOpenIdProvider, part: int
) -> None:
    """Three parts, because an address may fail to log in ten times a minute."""
    async with web.logged_in() as admin:
        for wrong in list(WRONG)[part::3]:
            usual = {name: getattr(provider, name) for name in WRONG[wrong]}
            for name, value in WRONG[wrong].items():
                setattr(provider, name, value)
            before = await refused_logins(admin)
            async with web.client() as client:
                answer = await log_in(client)
                assert answer.status_code == 403, wrong
                assert login_code(answer).startswith("login."), wrong
                assert (await client.get("/api/v1/session")).status_code == 401, wrong
            assert await refused_logins(admin) == before + 1, wrong
            for name, value in usual.items():
                setattr(provider, name, value)
        async with web.client() as client:
            assert (await log_in(client)).status_code == 303, "a valid answer is accepted"


async def refused_logins(admin: httpx.AsyncClient) -> int:
    """Returns the number of refused logins in the audit log."""
    lines = (await admin.get("/audit.ndjson?result=refused")).text.splitlines()
    return [json.loads(line)["action"] for line in lines].count("session.open")


async def test_unknown_signing_keys_are_refused_and_rotated_keys_accepted(
    web: RunningWeb, provider: FakeOpenIdProvider
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
    web: RunningWeb, provider: FakeOpenIdProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsigned(nonce: str) -> str:
        real = FakeOpenIdProvider._signed(provider, nonce)
        head = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
        return f"{head}.{real.split('.')[1]}."

    monkeypatch.setattr(provider, "_signed", unsigned)
    async with web.client() as client:
        assert (await log_in(client)).status_code == 403


async def test_only_the_browser_that_started_a_login_completes_it_once_and_in_time(
    web: RunningWeb, provider: FakeOpenIdProvider
) -> None:
    async with web.client() as victim, web.client() as attacker:
        attacker_response = await came_back(attacker)
        assert (await victim.get(attacker_response)).status_code == 403, "no login was started in this browser"
        await came_back(victim)
        refused = await victim.get(attacker_response)
        assert refused.status_code == 403, "another login was started"
        assert login_code(refused) == "login.other_browser"
        good = await came_back(victim)
        assert (await victim.get(good)).status_code == 303
        async with web.client() as again:
            again.cookies = attacker.cookies
            assert (await again.get(good)).status_code == 403
        late = await came_back(attacker)
        web.clock.push(601)
        assert (await attacker.get(late)).status_code == 403
    assert provider.redeemed == 1, "no code was redeemed for a foreign login"


@pytest.mark.long
async def test_a_forged_login_state_cookie_is_refused(web: RunningWeb) -> None:
    async with web.client() as client:
        back = await came_back(client)
        name, sealed = next(iter(client.cookies.items()))
        content = json.loads(base64.urlsafe_b64decode(sealed.partition(".")[0]))
        content[3] = "//evil.example"
        forged = base64.urlsafe_b64encode(json.dumps(content).encode()).decode() + "." + sealed.partition(".")[2]
    async with httpx.AsyncClient(cookies={name: forged}) as client:
        assert (await client.get(back)).status_code == 403


async def test_a_role_follows_the_claim_and_losing_it_ends_the_sessions(
    web: RunningWeb, provider: FakeOpenIdProvider
) -> None:
    async with web.client() as client, web.client() as later:
        await log_in(client)
        provider.claims["email"] = "eve@example.org"
        await log_in(later)
        assert (await account(client))[1] == "viewer"
        provider.claims["email"] = "mallory@example.org"
        async with web.client() as last:
            assert login_code(await log_in(last)) == "login.no_role"
        assert (await client.get("/api/v1/session")).status_code == 401


async def test_the_login_page_shows_why_the_provider_failed(web: RunningWeb, provider: FakeOpenIdProvider) -> None:
    provider.says_issuer = OTHER
    async with web.client() as client:
        answer = await client.get("/login/provider")
        assert answer.status_code == 503
        assert login_code(answer) == "login.issuer_mismatch"
    denied = "/login/provider/return?error=access_denied&state=x"
    async with web.client() as client:
        refused = await client.get(denied)
        assert login_code(refused) == "login.provider_refused"
        assert "access_denied" in refused.text


def test_groups_are_compared_exactly_and_the_highest_role_applies() -> None:
    config = OpenIdConfig(
        issuer="https://a.example", client_id="x", claim="groups", roles={"admin": ("ops",), "viewer": ("all", "ops.*")}
    )

    assert config.role_of({"groups": ["all", "ops"]}) is Role.ADMIN
    assert config.role_of({"groups": "ops"}) is Role.ADMIN
    for groups in (["opsx"], ["xops"], ["OPS"], [], None, {"ops": 1}, [["ops"]], "ops2", ["ops\n"]):
        assert config.role_of({"groups": groups}) is None
    assert config.role_of({"groups": ["ops.*"]}) is Role.VIEWER, "groups are compared as values, not patterns"


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"issuer": "http://a.example"}, "https://"),
        ({"roles": {}}, "roles"),
        ({"roles": {"boss": ["x"]}}, "roles.boss: unknown role; use viewer"),
        ({"roles": {"admin": [""]}}, "at least one non-empty value"),
        ({"rolls": {}}, "did you mean"),
    ],
)
def test_an_unsafe_provider_file_is_refused(values: dict[str, Any], problem: str) -> None:
    good = {"issuer": "https://a.example", "client_id": "x", "roles": {"admin": ["x"]}}
    with raises_code(InvalidInput, "config.invalid", problem):
        OpenIdConfig.parse({**good, **values}, where="provider.toml")
