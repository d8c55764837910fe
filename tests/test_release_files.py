"""Files of a release name one version, and the texts of the comparison have sources."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_the_version_is_in_the_citation_and_heads_the_changelog() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == VERSION
    assert citation["cff-version"] == "1.2.0"
    assert re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)[0] == VERSION


def test_every_source_of_the_comparison_is_used_and_every_reference_has_a_source() -> None:
    text, _, sources = (ROOT / "docs/explanation/comparison.md").read_text().partition("## Sources")
    listed = re.findall(r"^(\d+)\. \[", sources, flags=re.M)
    cited = {number for group in re.findall(r"\[(\d+(?:, \d+)*)\]", text) for number in group.split(", ")}
    assert cited == set(listed)


def test_the_paths_with_owners_exist() -> None:
    lines = (ROOT / ".github/CODEOWNERS").read_text().splitlines()
    paths = [line.split()[0] for line in lines if line.startswith("/")]
    assert paths
    assert all((ROOT / path.removeprefix("/")).exists() for path in paths)
