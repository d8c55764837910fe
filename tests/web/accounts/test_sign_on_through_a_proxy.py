"""Login through an OpenID provider that is behind an outgoing proxy and has a certificate of a private authority."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from astraflow.access.authority import Authority
from tests.fakes.connect_proxy import PASSWORD, ConnectProxy, connect_proxy
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.openid_provider import CLIENT_ID, CLIENT_SECRET, FakeOpenIdProvider
from tests.fakes.web import RunningWeb, running_web
from tests.web.accounts.test_sign_on import account, came_back, login_code

pytestmark = pytest.mark.anyio

NAME = "login.example"
"""Host name of the provider, which only the proxy can resolve."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a private authority, with a certificate for the provider."""
    folder = tmp_path_factory.mktemp("authority")
    private_authority = Authority.create(folder / "own", run="a company")
    (folder / "authority.pem").write_bytes(private_authority.pem)
    pair = private_authority.for_service("127.0.0.2", (NAME, "localhost"))
    (folder / "certificate.pem").write_bytes(pair.certificate)
    (folder / "key.pem").write_bytes(pair.key)
    return folder


@asynccontextmanager
async def page_of(fake: FakeControlPlane, tmp_path: Path, issuer: str) -> AsyncIterator[RunningWeb]:
    file = tmp_path / "provider.toml"
    file.write_text(
        f'issuer = "{issuer}"\nclient_id = "{CLIENT_ID}"\nlabel = "Example"\n[roles]\nviewer = ["alice@example.org"]\n'
    )
    options: dict[str, Any] = {"provider": file, "provider_secret": CLIENT_SECRET}
    async with fake.serving() as dataflow, running_web(tmp_path, dataflow, **options) as running:
        await running.until_connected()
        yield running


@asynccontextmanager
async def behind_proxy(
    fake: FakeControlPlane, tmp_path: Path, authority: Path, *, host: str = "127.0.0.1", name: str = NAME
) -> AsyncIterator[tuple[RunningWeb, ConnectProxy, FakeOpenIdProvider]]:
    provider = FakeOpenIdProvider()
    tls = {"ssl_certfile": authority / "certificate.pem", "ssl_keyfile": authority / "key.pem"}
    async with (
        provider.serving(host=host, name=name, **tls) as port,
        connect_proxy(**{f"{NAME}:443": port}) as proxy,
        page_of(fake, tmp_path, provider.issuer) as web,
    ):
        yield web, proxy, provider


async def refused(web: RunningWeb) -> tuple[str, str]:
    """Starts a login that fails; returns the code of the error and the page's text."""
    async with web.client() as client:
        answer = await client.get("/login/provider")
        page = await client.get(answer.headers["location"]) if answer.is_redirect else answer
        return login_code(page), page.text


async def test_a_login_goes_through_the_proxy_to_a_provider_of_a_private_authority(
    fake: FakeControlPlane, tmp_path: Path, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with behind_proxy(fake, tmp_path, authority) as (web, proxy, provider):
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority / "authority.pem"))
        async with web.client() as client:
            back = await client.get(await came_back(client, target="/nodes"))
            assert (back.status_code, back.headers["location"]) == (303, "/nodes")
            assert await account(client) == ("oidc:alice@example.org", "viewer")
        assert provider.redeemed == 1
        # metadata, the browser of the test, the code, the keys
        assert [await proxy.next_request() for _ in range(4)] == [f"{NAME}:443 200"] * 4


@pytest.mark.parametrize("is_exempt", [True, False])
async def test_an_address_in_no_proxy_is_called_directly(
    fake: FakeControlPlane, tmp_path: Path, authority: Path, monkeypatch: pytest.MonkeyPatch, is_exempt: bool
) -> None:
    async with behind_proxy(fake, tmp_path, authority, host="127.0.0.2", name="") as (web, proxy, provider):
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority / "authority.pem"))
        monkeypatch.setenv("NO_PROXY", "example.org,127.0.0.2" if is_exempt else "example.org")
        if is_exempt:
            async with web.client() as client:
                await client.get(await came_back(client))
            assert provider.redeemed == 1
        else:
            assert (await refused(web))[0] == "login.provider_unreachable"
            assert await proxy.next_request() == f"{provider.issuer.removeprefix('https://')} 403"


async def test_a_provider_on_this_machine_is_called_without_the_proxy(
    fake: FakeControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = FakeOpenIdProvider()
    async with provider.serving(), page_of(fake, tmp_path, provider.issuer) as web:
        async with web.client() as client:
            for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
                monkeypatch.setenv(name, "http://127.0.0.1:1")
            began = await client.get("/login/provider")
        assert began.headers["location"].startswith(f"{provider.issuer}/authorize")


async def test_an_unknown_authority_is_named_as_the_cause(
    fake: FakeControlPlane, tmp_path: Path, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with behind_proxy(fake, tmp_path, authority) as (web, proxy, _):
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        code, text = await refused(web)
        assert (code, "SSL_CERT_FILE" in text) == ("login.provider_unreachable", True)


async def test_a_proxy_that_refuses_and_its_password_are_not_shown(
    fake: FakeControlPlane, tmp_path: Path, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with behind_proxy(fake, tmp_path, authority) as (web, proxy, _):
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace(PASSWORD, "another-password"))
        code, text = await refused(web)
        assert (code, "another-password" in text) == ("login.provider_unreachable", False)
        assert await proxy.next_request() == f"{NAME}:443 407"


@pytest.mark.parametrize(
    ("name", "value"), [("HTTPS_PROXY", "gopher://127.0.0.1:1"), ("SSL_CERT_FILE", "/no/such/file.pem")]
)
async def test_an_invalid_environment_is_an_error_on_the_login_page(
    fake: FakeControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    async with page_of(fake, tmp_path, f"https://{NAME}") as web, web.client() as client:
        monkeypatch.setenv(name, value)
        answer = await client.get("/login/provider")
        monkeypatch.undo()
        page = await client.get(answer.headers["location"]) if answer.is_redirect else answer
        assert login_code(page) == "login.environment_invalid"
