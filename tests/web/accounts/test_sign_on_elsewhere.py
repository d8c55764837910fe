"""Login through a third-party OpenID provider, over HTTP and in a browser."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Route, expect

from astraflow.cli.ports import free_ports
from tests.fakes.browser import BrowserErrors, browser
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.oidc_provider_process import Client, OidcProvider, oidc_provider
from tests.fakes.web import RunningWeb, running_web
from tests.web.accounts.test_sign_on import login_code
from tests.web.page_elements import parsed
from web.accounts.openid_provider import PROVIDER_PATH

pytestmark = pytest.mark.anyio

NOBODYS = "not-the-secret"


@pytest.fixture
async def provider() -> AsyncIterator[OidcProvider]:
    async with oidc_provider() as running:
        yield running


@asynccontextmanager
async def page_of(
    provider: OidcProvider, directory: Path, *, claim: str = "groups", secret: str | None = None
) -> AsyncIterator[RunningWeb]:
    """Serves a page that is registered with the provider. secret: replaces the client secret of the registration."""
    port = free_ports(1)[0]
    client = await provider.register(f"http://127.0.0.1:{port}{PROVIDER_PATH}")
    file = directory / "provider.toml"
    file.write_text(_configured(provider, client, claim))
    client_secret = client.secret if secret is None else secret
    async with (
        FakeControlPlane(sequence=1).serving() as dataflow,
        running_web(directory, dataflow, port=port, provider=file, provider_secret=client_secret) as web,
    ):
        await web.until_connected()
        yield web


def _configured(provider: OidcProvider, client: Client, claim: str) -> str:
    return (
        f'issuer = "{provider.issuer}"\nclient_id = "{client.id}"\nlabel = "Elsewhere"\nclaim = "{claim}"\n'
        '[roles]\nadmin = ["rl-leads"]\noperator = ["rl-team", "alice@example.org"]\nviewer = ["all-staff"]\n'
    )


async def sent_on(client: httpx.AsyncClient, *, target: str = "/") -> str:
    """Starts a login; returns the provider's address to which the page redirects the browser."""
    began = await client.get("/login/provider", params={"next": target})
    assert began.status_code == 303, began.text
    return began.headers["location"]


async def log_in(
    client: httpx.AsyncClient, provider: OidcProvider, subject: str, *, target: str = "/"
) -> httpx.Response:
    return await client.get(await provider.logged_in(await sent_on(client, target=target), subject))


async def role_of(client: httpx.AsyncClient) -> str:
    """Returns the name and the role that Settings shows for the client."""
    page = parsed(await client.get("/settings"))
    return " ".join(page.texts("[data-part=own-name]") + page.texts("[data-part=own-role]")) or "logged out"


@pytest.mark.long
async def test_a_login_at_the_provider_has_the_role_of_the_claim(provider: OidcProvider, tmp_path: Path) -> None:
    await provider.knows("alice", groups=["all-staff", "rl-team"], preferred_username="alice.a")
    await provider.knows("mallory", groups="rl-leads-of-another")
    async with page_of(provider, tmp_path) as web, web.client() as client, web.client() as other:
        back = await log_in(client, provider, "alice", target="/nodes?page=2")
        assert (back.status_code, back.headers["location"]) == (303, "/nodes?page=2"), back.text
        assert (await role_of(client)).split() == ["oidc:alice.a", "operator"]
        assert (await log_in(other, provider, "mallory")).status_code == 403
        assert await role_of(other) == "logged out"


@pytest.mark.long
async def test_a_role_follows_the_claim_at_the_next_login(provider: OidcProvider, tmp_path: Path) -> None:
    async with page_of(provider, tmp_path) as web, web.client() as first, web.client() as second:
        await provider.knows("alice", groups=["rl-team"])
        await log_in(first, provider, "alice")
        await provider.knows("alice", groups=["all-staff"])
        await log_in(second, provider, "alice")
        assert (await role_of(first)).split() == ["oidc:alice", "viewer"]
        await provider.knows("alice", groups=["another-team"])
        async with web.client() as third:
            refused = await log_in(third, provider, "alice")
            assert refused.status_code == 403
            assert login_code(refused) == "login.no_role"
        assert (await first.get("/api/v1/session")).status_code == 401, "existing sessions were ended"


@pytest.mark.long
async def test_an_unverified_email_address_gives_no_role(provider: OidcProvider, tmp_path: Path) -> None:
    async with page_of(provider, tmp_path, claim="email") as web, web.client() as client:
        refused = await log_in(client, provider, "alice@example.org")
        assert refused.status_code == 403, "a typed email address must not identify a user"
        await provider.knows("alice@example.org", email="alice@example.org", email_verified=True)
        assert (await log_in(client, provider, "alice@example.org")).status_code == 303


@pytest.mark.long
async def test_a_login_denied_at_the_provider_shows_the_cause_and_can_be_repeated(
    provider: OidcProvider, tmp_path: Path
) -> None:
    await provider.knows("alice", groups=["rl-team"])
    async with page_of(provider, tmp_path) as web, web.client() as client:
        denied = await client.get(await provider.denied(await sent_on(client)))
        assert denied.status_code == 403
        assert login_code(denied) == "login.provider_refused"
        assert "access_denied" in denied.text
        assert (await log_in(client, provider, "alice")).status_code == 303


@pytest.mark.long
async def test_a_code_needs_its_verifier_and_browser_and_works_once(provider: OidcProvider, tmp_path: Path) -> None:
    await provider.knows("alice", groups=["rl-team"])
    async with page_of(provider, tmp_path) as web, web.client() as victim, web.client() as thief:
        code = httpx.URL(await provider.logged_in(await sent_on(victim), "alice")).params["code"]
        own = httpx.URL(await provider.logged_in(await sent_on(thief), "alice"))
        refused = await thief.get(str(own.copy_set_param("code", code)))
        assert refused.status_code == 403, "a code with the verifier of another login is refused"
        assert login_code(refused) == "login.code_refused"
        back = await provider.logged_in(await sent_on(victim), "alice")
        assert (await thief.get(back)).status_code == 403
        victim_cookies = httpx.Cookies(victim.cookies)
        assert (await victim.get(back)).status_code == 303
        async with web.client() as again:
            again.cookies = victim_cookies
            assert (await again.get(back)).status_code == 403


@pytest.mark.long
async def test_a_login_with_the_nonce_of_another_login_is_refused(provider: OidcProvider, tmp_path: Path) -> None:
    await provider.knows("alice", groups=["rl-team"])
    async with page_of(provider, tmp_path) as web, web.client() as client:
        login_url = httpx.URL(await sent_on(client))
        assert login_url.params["code_challenge_method"] == "S256"
        refused = await client.get(
            await provider.logged_in(str(login_url.copy_set_param("nonce", "of another login")), "alice")
        )
        assert refused.status_code == 403
        assert "nonce" in refused.text


async def test_a_wrong_client_secret_is_refused_and_audited_without_the_secret(
    provider: OidcProvider, tmp_path: Path
) -> None:
    await provider.knows("alice", groups=["rl-leads"])
    async with page_of(provider, tmp_path, secret=NOBODYS) as web:
        async with web.client() as client:
            refused = await log_in(client, provider, "alice")
            assert refused.status_code == 403
            assert "invalid_client" in refused.text
            assert NOBODYS not in refused.text
        async with web.logged_in() as admin:
            entry = json.loads((await admin.get("/audit.ndjson?result=refused")).text.splitlines()[0])
            assert (entry["action"], "invalid_client" in entry["reason"]) == ("session.open", True)


@pytest.mark.long
async def test_a_new_key_of_the_provider_is_accepted_after_a_minute(provider: OidcProvider, tmp_path: Path) -> None:
    await provider.knows("alice", groups=["rl-team"])
    async with page_of(provider, tmp_path) as web:
        async with web.client() as client:
            assert (await log_in(client, provider, "alice")).status_code == 303
        await provider.rotate()
        async with web.client() as client:
            assert (await log_in(client, provider, "alice")).status_code == 403, "signing keys are cached"
        web.clock.push(61)
        async with web.client() as client:
            assert (await log_in(client, provider, "alice")).status_code == 303


async def test_the_login_page_shows_that_the_provider_is_unreachable(provider: OidcProvider, tmp_path: Path) -> None:
    await provider.knows("alice", groups=["rl-team"])
    async with page_of(provider, tmp_path) as web, web.client() as client:
        back = await provider.logged_in(await sent_on(client), "alice")
        await provider.stop()
        answer = await client.get(back)
        assert answer.status_code == 503
        assert login_code(answer) == "login.provider_unreachable"
        assert "ConnectError" in answer.text
        web.clock.push(3601)
        answer = await client.get("/login/provider")
        assert answer.status_code == 503
        assert login_code(answer) == "login.provider_unreachable"
        assert "ConnectError" in answer.text
        async with web.logged_in() as admin:
            assert (await admin.get("/settings")).status_code == 200, "other login methods still work"


@pytest.mark.browser
async def test_a_browser_logs_in_at_the_provider_and_returns(provider: OidcProvider, tmp_path: Path) -> None:
    """Redirects to the provider's site and returns by a form: the browser decides which cookies it sends."""

    async def bare(route: Route) -> None:
        await route.fulfill(body="", content_type="text/css")

    await provider.knows("alice", groups=["rl-team"])
    async with page_of(provider, tmp_path) as web, browser() as chromium:
        context = await chromium.new_context()
        await context.route(re.compile("^https://"), bare)  # the provider's style sheet is on the internet
        page, complaints = await context.new_page(), BrowserErrors()
        complaints.listen(page)
        await page.goto(f"{web.address}/login?next=/settings")
        await page.get_by_role("link", name="Continue with Elsewhere").click()
        await expect(page.get_by_role("heading", name="Authorize Client")).to_be_visible()
        assert page.url.startswith(provider.issuer)
        await page.get_by_placeholder("sub").fill("alice")
        await page.get_by_role("button", name="Authorize").click()
        await page.wait_for_url(f"{web.address}/settings")
        await expect(page.locator("main")).to_contain_text("with the role operator")
        assert not any(cookie["name"].endswith("_flow") for cookie in await context.cookies()), (
            "the login state was removed"
        )
        assert complaints.heard == []
