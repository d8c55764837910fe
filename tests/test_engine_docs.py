"""docs/how-to/engines.md lists every option of engine servers with its default, and the installed releases."""

import re
from pathlib import Path

from astraflow.raas.engines.server.installation.releases import RELEASES
from astraflow.raas.engines.server.options import ServerOptions
from astraflow.runtime.config.toml import toml_text

TEXT = (Path(__file__).parents[1] / "docs/how-to/engines.md").read_text()


def test_every_engine_option_is_documented_with_its_default() -> None:
    section = TEXT.partition("## Options")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", section, flags=re.M))
    assert rows == {name: toml_text(value) for name, value in ServerOptions().model_dump().items()}


def test_every_engine_release_is_documented() -> None:
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (.*) \|$", TEXT, flags=re.M))
    for release in RELEASES:
        assert release.version in rows[release.name]
        assert f"{release.size_bytes / 1e9:g} GB" in rows[release.name]
        assert ("not run" in rows[release.name]) != release.is_tested
