"""Files that pages load: whole, packed, kept for ever, and the same for everybody."""

import gzip
import re
from pathlib import Path

import pytest

from tests.fakes.web import RunningWeb
from web.files import KEPT, terse, whole_style
from web.rendering import STATIC, build_stamp

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("name", ["app.css", "work.css"])
async def test_styles_come_as_one_file_each_in_the_layer_that_its_import_names(web: RunningWeb, name: str) -> None:
    written = (STATIC / "css" / name).read_text()
    async with web.client() as client:
        sent = (await client.get(f"/static/{build_stamp()}/css/{name}")).text

    imported = re.findall(r'url\("([^"]+)"\) layer\((\w+)\)', written)
    assert imported
    assert "@import" not in sent
    for path, layer in imported:
        content = terse((STATIC / "css" / path).read_text())
        assert f"@layer {layer} {{\n{content}}}" in sent, path


async def test_the_order_of_layers_comes_before_the_first_of_them(web: RunningWeb) -> None:
    async with web.client() as client:
        sent = (await client.get(f"/static/{build_stamp()}/css/app.css")).text

    assert sent.index("@layer reset, base, components, utilities;") < sent.index("@layer reset {")
    assert terse((STATIC / "css" / "tokens.css").read_text()) in sent


def test_every_component_has_its_place_in_one_of_the_sheets() -> None:
    sheets = [(STATIC / "css" / name).read_text() for name in ("app.css", "work.css")]
    imported = re.findall(r'url\("components/([^"]+)"\)', "".join(sheets))

    assert sorted(imported) == sorted(path.name for path in (STATIC / "css" / "components").glob("*.css"))


def test_a_terse_style_says_the_same_in_fewer_lines() -> None:
    written = '/* what\n   for */\na {\n  b: c; /* why */\n\n  & d {\n    e: "f  g";\n  }\n}\n'

    assert terse(written) == 'a {\nb: c;\n& d {\ne: "f  g";\n}\n}\n'


def test_an_import_of_an_import_is_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text('@import url("b.css") layer(base);\n')
    (tmp_path / "b.css").write_text('@import url("c.css");\nb {}\n')
    (tmp_path / "c.css").write_text("c {}\n")

    assert whole_style(tmp_path / "a.css") == "@layer base {\nc {}\n\nb {}\n}\n"


async def test_a_file_needs_no_login_is_packed_for_who_can_read_that_and_is_kept(web: RunningWeb) -> None:
    address = f"/static/{build_stamp()}/js/main.js"
    async with web.client() as client:
        packed = await client.get(address, headers={"accept-encoding": "gzip"})
        plain = await client.get(address, headers={"accept-encoding": "identity"})
        tiny = await client.get(f"/static/{build_stamp()}/icon.svg", headers={"accept-encoding": "gzip"})

    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == plain.headers["vary"] == "accept-encoding"
    assert packed.headers["cache-control"] == KEPT
    assert packed.headers["content-type"] == "text/javascript; charset=utf-8"
    assert packed.headers["x-content-type-options"] == "nosniff"
    assert "content-encoding" not in plain.headers
    assert packed.content == plain.content == (STATIC / "js" / "main.js").read_bytes()
    assert int(packed.headers["content-length"]) == len(gzip.compress(plain.content, mtime=0))
    assert "content-encoding" not in tiny.headers


async def test_a_file_of_another_release_or_of_none_is_not_there(web: RunningWeb) -> None:
    async with web.client() as client:
        for path in ("/static/0123456789ab/js/main.js", f"/static/{build_stamp()}/js/%2e%2e/%2e%2e/app.py"):
            assert (await client.get(path)).status_code == 404, path
