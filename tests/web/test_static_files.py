"""Static files: complete, compressed, cached without expiry, and the same for all users."""

import gzip
import re
from pathlib import Path

import pytest

from tests.fakes.web import RunningWeb
from web.components.rendering import STATIC, build_stamp
from web.static_files import CACHE_CONTROL, bundle_css, minify_css, minify_js

pytestmark = pytest.mark.anyio


def test_minified_scripts_keep_their_texts() -> None:
    minified = minify_js("const a = `${b} min ${c} s`; // d\nconst e = 'f  g';\n")
    assert minified == "const a=`${b} min ${c} s`;const e='f  g';"
    nested = [path.name for path in (STATIC / "js").glob("*.js") if re.search(r"\$\{[^}]*`", path.read_text())]
    assert not nested, "a template literal inside another one loses its space"


@pytest.mark.parametrize("name", ["app.css", "work.css"])
async def test_style_sheets_are_bundled_in_the_layers_of_their_imports(web: RunningWeb, name: str) -> None:
    written = (STATIC / "css" / name).read_text()
    async with web.client() as client:
        sent = (await client.get(f"/static/{build_stamp()}/css/{name}")).text

    imported = re.findall(r'url\("([^"]+)"\) layer\((\w+)\)', written)
    assert imported
    assert "@import" not in sent
    for path, layer in imported:
        content = minify_css((STATIC / "css" / path).read_text())
        assert f"@layer {layer} {{\n{content}}}" in sent, path


async def test_the_order_of_layers_precedes_the_first_layer(web: RunningWeb) -> None:
    async with web.client() as client:
        sent = (await client.get(f"/static/{build_stamp()}/css/app.css")).text

    declared, _, rest = sent.partition("@layer ")[2].partition(";")
    assert declared.split(", ") == ["reset", "base", "components", "utilities"]
    assert "@layer reset {" in rest
    assert minify_css((STATIC / "css" / "tokens.css").read_text()) in sent


def test_every_component_is_in_one_of_the_style_sheets() -> None:
    sheets = [(STATIC / "css" / name).read_text() for name in ("app.css", "work.css")]
    imported = re.findall(r'url\("components/([^"]+)"\)', "".join(sheets))

    assert sorted(imported) == sorted(path.name for path in (STATIC / "css" / "components").glob("*.css"))


def test_minified_styles_keep_their_rules() -> None:
    written = '/* what\n   for */\na {\n  b: c; /* why */\n\n  & d {\n    e: "f  g";\n  }\n}\n'

    assert minify_css(written) == 'a {\nb: c;\n& d {\ne: "f  g";\n}\n}\n'


def test_nested_imports_are_bundled_in_order(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text('@import url("b.css") layer(base);\n')
    (tmp_path / "b.css").write_text('@import url("c.css");\nb {}\n')
    (tmp_path / "c.css").write_text("c {}\n")

    assert bundle_css(tmp_path / "a.css") == "@layer base {\nc {}\n\nb {}\n}\n"


async def test_static_files_need_no_login_and_are_compressed_and_cached(web: RunningWeb) -> None:
    address = f"/static/{build_stamp()}/js/main.js"
    async with web.client() as client:
        gzipped = await client.get(address, headers={"accept-encoding": "gzip"})
        plain = await client.get(address, headers={"accept-encoding": "identity"})
        tiny = await client.get(f"/static/{build_stamp()}/icon.svg", headers={"accept-encoding": "gzip"})

    assert gzipped.headers["content-encoding"] == "gzip"
    assert gzipped.headers["vary"] == plain.headers["vary"] == "accept-encoding"
    assert gzipped.headers["cache-control"] == CACHE_CONTROL
    assert gzipped.headers["content-type"].split("; ") == ["text/javascript", "charset=utf-8"]
    assert gzipped.headers["x-content-type-options"] == "nosniff"
    assert "content-encoding" not in plain.headers
    assert gzipped.content == plain.content == minify_js((STATIC / "js" / "main.js").read_text()).encode()
    assert int(gzipped.headers["content-length"]) == len(gzip.compress(plain.content, mtime=0))
    assert "content-encoding" not in tiny.headers


async def test_static_files_of_other_releases_are_not_found(web: RunningWeb) -> None:
    async with web.client() as client:
        for path in ("/static/0123456789ab/js/main.js", f"/static/{build_stamp()}/js/%2e%2e/%2e%2e/app.py"):
            assert (await client.get(path)).status_code == 404, path


def test_the_braces_of_every_style_sheet_balance() -> None:
    for path in (STATIC / "css").rglob("*.css"):
        text = path.read_text()
        assert text.count("{") == text.count("}"), f"{path}: a stray brace drops the rules after it, in all files"
