"""Lowest releases that pyproject.toml admits, for `make test-lowest`.

    python -m tests.lowest_releases      prints the requirements of an environment, one a line

They are the core and the extras of `TESTED_EXTRAS` with `==` for each `>=`, and the tools of the tests as
constraints.txt pins them. Everything else is what pip chooses for these.
"""

import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
TESTED_EXTRAS = ("metrics", "postgres", "s3", "web")
TOOLS = (
    "flask",
    "flask-cors",
    "grpcio-tools",
    "httpx",
    "hypothesis",
    "moto[s3]",
    "mypy-protobuf",
    "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry-sdk",
    "playwright",
    "pytest",
    "pytest-randomly",
    "pytest-timeout",
    "pytest-xdist",
    "pyyaml",
    "schemathesis",
)
"""Packages that the tests import, or start."""


def lowest(line: str) -> Requirement:
    """Returns a requirement for exactly the lowest release that a line of pyproject.toml admits.

    Raises: ValueError for a line without a lower bound.
    """
    requirement = Requirement(line)
    bounds = [specifier.version for specifier in requirement.specifier if specifier.operator == ">="]
    if len(bounds) != 1:
        raise ValueError(f"cannot find the lowest release of {line!r}: it has no lower bound; add one, `>=VERSION`")
    requirement.specifier = SpecifierSet(f"=={bounds[0]}")
    return requirement


def declared() -> list[str]:
    """Returns the lines of the core and of the tested extras, each once."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return list(dict.fromkeys([*project["dependencies"], *(line for extra in TESTED_EXTRAS for line in extras[extra])]))


def pinned() -> dict[str, str]:
    """Returns the releases of constraints.txt by canonical name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split(";")[0].split("==") for line in lines if "==" in line and not line.startswith("#")]
    return {canonicalize_name(name): version.strip() for name, version in pairs}


if __name__ == "__main__":
    releases = pinned()
    tools = [f"{tool}=={releases[canonicalize_name(Requirement(tool).name)]}" for tool in TOOLS]
    sys.stdout.write("\n".join([*(str(lowest(line)) for line in declared()), *tools]) + "\n")
