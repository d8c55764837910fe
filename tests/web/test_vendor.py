"""Vendored files match their note, and pages load nothing from other servers."""

import gzip
import hashlib
import re
from pathlib import Path

from web.components.rendering import SHARED_TEMPLATES, STATIC, template_files
from web.static_files import minify_js

CHART_PAGES = ("main", "plot", "plotcontrols", "copy", "longpress")
"""Modules that a page with charts loads, without those that these import. Others are loaded by their first use."""


def test_the_vendored_files_are_the_noted_ones() -> None:
    notes = (STATIC / "vendor" / "README.md").read_text()
    noted = re.findall(r"`([\w.-]+\.(?:js|css))`.*`([0-9a-f]{64})`", notes)

    vendored = {path.name: path for path in (STATIC / "vendor").iterdir() if path.suffix in (".js", ".css")}
    users = (SHARED_TEMPLATES / "base.html", STATIC / "js" / "plot.js", STATIC / "css" / "app.css")
    loaded = "".join(path.read_text() for path in users)
    assert {name for name, _ in noted} == vendored.keys()
    for name, digest in noted:
        assert hashlib.sha256(vendored[name].read_bytes()).hexdigest() == digest
        assert name in loaded


def test_pages_and_styles_load_nothing_from_elsewhere() -> None:
    files = [*template_files(), *(STATIC / "css").rglob("*.css"), *(STATIC / "js").rglob("*.js")]
    for path in files:
        addresses = re.findall(r"https?://[^\s\"'`)]+", path.read_text())
        allowed = (
            "http://www.w3.org/2000/svg",
            "https://hooks.example.org/",
        )  # a name space, and an example in a field
        assert [address for address in addresses if not address.startswith(allowed)] == [], path


def test_scripts_and_page_weight_stay_small() -> None:
    library, *_ = (STATIC / "vendor").glob("htmx*.js")

    assert library.stat().st_size + sum(map(_size, _imported(*CHART_PAGES))) <= 90_000, "all but uPlot, decoded"
    assert sum(map(_size, (STATIC / "js").glob("*.js"))) <= 73_500
    sent = [*(STATIC / "js").glob("*.js"), *(STATIC / "css").rglob("*.css"), *(STATIC / "vendor").glob("*.js")]
    assert sum(len(gzip.compress(path.read_bytes())) for path in sent) <= 110_000, "compressed size"


def _imported(*names: str) -> set[Path]:
    """Returns the files of modules and of those that they import."""
    paths = {STATIC / "js" / f"{name}.js" for name in names}
    more = {
        name for path in paths for name in re.findall(r'^import .*"\./(\w+)\.js";$', path.read_text(), re.MULTILINE)
    }
    return paths if more <= set(names) else _imported(*names, *more)


def _size(path: Path) -> int:
    return len(minify_js(path.read_text()).encode())
