"""The page below a path of a reverse proxy: no address leaves without the path."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest

from astraflow.contract.errors import InvalidInput
from tests.errors import raises_code
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.openid_provider import CLIENT_ID, CLIENT_SECRET, FakeOpenIdProvider
from tests.fakes.web import form_token, free_port, running_web
from tests.web.all_pages import PARAMETER, PARAMETER_VALUES, PARAMETER_VALUES_OF_PATH, SKIPPED_PATHS
from web.app import ROUTES
from web.components.rendering import STATIC, template_files
from web.process_settings import Settings
from web.security.path_prefix import ADDRESS_ATTRIBUTES, check_path_prefix, with_prefix

PREFIX = "/user/ada@lab/proxy/8080"

NO_ADDRESSES = {"value", "data-key", "data-root"}
"""Attributes that begin with `/` and are no addresses: fields of forms, keys, and the path itself."""

NO_ADDRESSES_IN_SCRIPTS = {"/", "/healthz", "/login"}
"""Texts of scripts: a key, the value of a field, and the end of an address in a selector."""


@asynccontextmanager
async def served_below(
    folder: Path, fake: FakeControlPlane, prefix: str, **more: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """Yields a browser that is logged in at a page which a proxy serves below the path, without removing it."""
    port = free_port()
    public = f"http://127.0.0.1:{port}"
    async with (
        fake.serving() as dataflow,
        running_web(folder, dataflow, port=port, behind_proxy=f"{public}{prefix}/", **more) as web,
        httpx.AsyncClient(base_url=public, headers={"origin": public}, timeout=60) as client,
    ):
        assert web.login_url.startswith(f"{public}{prefix}/login?token=")
        assert (await client.get(web.login_url)).headers["location"] == f"{prefix}/"
        client.headers["x-form-token"] = form_token(await client.get(f"{prefix}/settings"))
        await web.until_connected()
        yield client


class Addresses(HTMLParser):
    """Attributes of a page that begin with a slash."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.pairs: set[tuple[str, str]] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.pairs |= {(name, value) for name, value in attrs if value and value.startswith("/")}


def paths() -> Iterator[str]:
    """Yields a path for each route of a page that needs no object of its own."""
    for route in ROUTES:
        path = getattr(route, "path", "")
        values = PARAMETER_VALUES | PARAMETER_VALUES_OF_PATH.get(path, {})
        known = all(name in values for name in PARAMETER.findall(path))
        if "GET" in (getattr(route, "methods", None) or ()) and path not in SKIPPED_PATHS and known:
            yield PARAMETER.sub(r"{\1}", path).format_map(values)


@pytest.mark.anyio
@pytest.mark.past_reports
async def test_every_address_of_every_page_is_below_the_path(tmp_path: Path, fake: FakeControlPlane) -> None:
    async with served_below(tmp_path, fake, PREFIX) as client:
        shown = 0
        for path in [*paths(), "/runs/new?recipe=smoke", "/no-such-page"]:
            answer = await client.get(f"{PREFIX}{path}")
            assert answer.headers.get("location", f"{PREFIX}/").startswith(f"{PREFIX}/"), path
            if not answer.headers.get("content-type", "").startswith("text/html"):
                continue
            addresses = {pair for pair in Addresses(answer.text).pairs if pair[0] not in NO_ADDRESSES}
            shown += bool(addresses)
            assert [pair for pair in addresses if not pair[1].startswith(f"{PREFIX}/")] == [], path
            assert {name for name, _ in addresses} <= {*ADDRESS_ATTRIBUTES}, path
        assert shown > 30


def test_a_path_in_a_template_is_in_an_attribute_that_gets_the_prefix() -> None:
    for file in template_files():
        text = re.sub(r"{{.*?}}|{%.*?%}|{#.*?#}", "", file.read_text(), flags=re.DOTALL)
        attributes = set(re.findall(r"([\w:-]+)=[\"']?/", text))
        assert attributes <= {*ADDRESS_ATTRIBUTES, *NO_ADDRESSES}, file
        assert not re.search(r"='/|\burl\(/", text), file


def test_scripts_and_styles_have_no_address_of_their_own() -> None:
    for file in STATIC.rglob("*.js"):
        if "vendor" not in file.parts:
            text = file.read_text()
            assert set(re.findall(r"[\"'`](/[^\"'`]*)", text)) <= NO_ADDRESSES_IN_SCRIPTS, file
            assert not re.search(r"location\.(host|origin)}?/", text), file
    for file in STATIC.rglob("*.css"):
        assert not re.search(r"url\([\"']?/", file.read_text()), file


def test_only_attributes_of_templates_get_the_prefix() -> None:
    texts = (
        '<a href="//elsewhere.example">',
        '<a href="https://elsewhere.example/runs">',
        '<input value="/runs">',
        "<p>see href=&#34;/runs&#34; and /runs</p>",
        '<script type="application/json">{"a":" href=\\"/runs"}</script>',
        '<a xhref="/runs">',
    )
    for text in texts:
        assert with_prefix(text, "/astraflow") == text
    assert with_prefix('<a\nhref="/">', "/astraflow") == '<a\nhref="/astraflow/">'


@pytest.mark.anyio
@pytest.mark.parametrize("removed", [True, False], ids=["removed", "kept"])
async def test_the_proxy_may_remove_the_path_or_keep_it(tmp_path: Path, fake: FakeControlPlane, removed: bool) -> None:
    async with served_below(tmp_path, fake, PREFIX) as client:
        own = client.headers["origin"]
        sent = "" if removed else PREFIX
        cookies = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
        headers = {"cookie": cookies, "origin": own, "x-form-token": client.headers["x-form-token"]}
        async with httpx.AsyncClient(base_url=f"{own}{sent}", headers=headers) as proxied:
            drained = await proxied.post("/nodes/n0/drain", data={"reason": "slow"})
            assert (drained.status_code, drained.headers["location"]) == (303, f"{PREFIX}/nodes")
            assert f"Path={PREFIX}/;" in drained.headers["set-cookie"]
            assert (await proxied.get("/runs/")).headers["location"] == f"{PREFIX}/runs"
            assert (await proxied.get("/api/v1/openapi.json")).json()["servers"] == [{"url": PREFIX}]
            assert (await proxied.get("/healthz")).status_code == 200
            left = await proxied.post("/logout")
            assert left.headers["location"] == f"{PREFIX}/login"
            assert f"Path={PREFIX}/;" in left.headers["set-cookie"]
        async with httpx.AsyncClient(base_url=f"{own}{sent}") as stranger:
            answer = await stranger.get("/nodes?state=lost")
            assert answer.headers["location"] == f"{PREFIX}/login?next=/nodes%3Fstate%3Dlost"


@pytest.mark.anyio
async def test_the_path_may_be_encoded_and_may_lack_its_slash(tmp_path: Path, fake: FakeControlPlane) -> None:
    async with served_below(tmp_path, fake, "/user/ada%40lab/%C3%A9") as client:
        for path in ("/user/ada@lab/%c3%a9", "/user/ada%40lab/é", "/user/ada%40lab/%C3%A9/"):
            answer = await client.get(path, headers={"cookie": ""})
            assert answer.headers["location"] == "/user/ada%40lab/%C3%A9/login?next=/", path
        other = await client.get("/user/ada@lab/%c3%a9x")
        assert other.headers["location"].endswith("next=/user/ada%40lab/%C3%A9x"), "another application's"


@pytest.mark.anyio
async def test_a_login_at_the_provider_returns_below_the_path(tmp_path: Path, fake: FakeControlPlane) -> None:
    provider = FakeOpenIdProvider()
    async with provider.serving():
        file = tmp_path / "provider.toml"
        file.write_text(
            f'issuer = "{provider.issuer}"\nclient_id = "{CLIENT_ID}"\n[roles]\noperator = ["alice@example.org"]\n'
        )
        async with served_below(tmp_path, fake, PREFIX, provider=file, provider_secret=CLIENT_SECRET) as client:
            client.cookies.clear()
            began = await client.get(f"{PREFIX}/login/provider?next=/nodes")
            assert f"Path={PREFIX}/login/provider/return" in began.headers["set-cookie"]
            async with httpx.AsyncClient() as outside:
                sent = await outside.get(began.headers["location"])
            assert sent.headers["location"].startswith(f"{client.headers['origin']}{PREFIX}/login/provider/return?")
            back = await client.get(sent.headers["location"])
            assert (back.status_code, back.headers["location"]) == (303, f"{PREFIX}/nodes")
            assert (await client.get(back.headers["location"])).status_code == 200


@pytest.mark.parametrize(
    "url",
    [
        "http://page.example/astraflow",
        "https://ada@page.example/astraflow",
        "https://page.example/astraflow?a=1",
        "https://page.example/astraflow#a",
        "https://page.example//astraflow",
        "https://page.example/a/../b",
        "https://page.example/a/%2e%2e/b",
        "https://page.example/a;b",
        'https://page.example/a"b',
        "https://page.example/a\\b",
        "https://page.example/a b",
        "https://page.example/é",
        "https://page.example/%0d%0a",
        "https://page.example/%zz",
        "https://page.example:99999/",
        "https://[::1/",
    ],
)
def test_a_url_that_no_browser_shows_is_refused(url: str) -> None:
    with raises_code(InvalidInput, "config.invalid"):
        Settings.parse({"dataflow": "h:1", "directory": ".", "behind_proxy": url}, where="")


@pytest.mark.parametrize("prefix", ["/runs", "/runs/astraflow", "/%72uns", "/static", "/live", "/api/astraflow"])
def test_a_path_that_is_also_one_of_the_page_is_refused(prefix: str) -> None:
    with raises_code(InvalidInput, "web.prefix_taken"):
        check_path_prefix(prefix, ROUTES)
    check_path_prefix(f"/astraflow{prefix}", ROUTES)
    check_path_prefix("", ROUTES)
