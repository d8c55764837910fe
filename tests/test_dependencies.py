"""pyproject.toml requires the tested versions, and lists every imported package."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.lowest_releases import declared, lowest, pinned

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
OF_AN_EXTRA = {"llm": ["maintainer/agent/llm/*.py"], "mcp": ["maintainer/mcp/*.py"]}
WITH_ANOTHER = {"starlette": "fastapi"}
"""Packages on which a core package is built and that it always installs."""


def test_version_bounds_include_the_pinned_releases() -> None:
    versions = pinned()
    bounded = 0
    for line in [*PROJECT["dependencies"], *(requirement for extra in EXTRAS.values() for requirement in extra)]:
        parsed = Requirement(line)
        bounded += bool(parsed.specifier)
        assert parsed.specifier.contains(versions.get(canonicalize_name(parsed.name), "0")) or not parsed.specifier, (
            line
        )
    assert bounded


def test_every_package_of_the_core_and_the_tested_extras_has_a_lower_bound() -> None:
    releases = {
        canonicalize_name(requirement.name): str(requirement.specifier) for requirement in map(lowest, declared())
    }
    assert len(releases) > 20
    assert all(re.fullmatch(r"==[0-9][0-9.]*", release) for release in releases.values())


def test_grpc_and_protobuf_are_at_least_the_releases_that_generated_the_messages() -> None:
    releases = {requirement.name: str(requirement.specifier) for requirement in map(lowest, declared())}
    generated = ROOT / "astraflow/wire/pb"
    (grpc,) = re.findall(r"GRPC_GENERATED_VERSION = '(.+)'", (generated / "data_plane_pb2_grpc.py").read_text())
    (protobuf,) = re.findall(r"# Protobuf Python Version: (.+)", (generated / "data_plane_pb2.py").read_text())
    assert (releases["grpcio"], releases["protobuf"]) == (f"=={grpc}", f"=={protobuf}")


@pytest.mark.parametrize("extra", OF_AN_EXTRA)
def test_an_extra_lists_every_import_of_its_modules_with_bounds(extra: str) -> None:
    mine = {Requirement(line).name.replace("-", "_"): Requirement(line) for line in EXTRAS[extra]}
    core = {Requirement(line).name.replace("-", "_") for line in PROJECT["dependencies"]}
    imported = set()
    for pattern in OF_AN_EXTRA[extra]:
        for path in ROOT.glob(pattern):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                imported |= {name.partition(".")[0] for name in names}
    others = {WITH_ANOTHER.get(name, name) for name in imported - sys.stdlib_module_names}
    assert others - core - {"astraflow", "maintainer"} == set(mine)
    for requirement in mine.values():
        operators = {specifier.operator for specifier in requirement.specifier}
        assert operators == {">=", "<"}, f"{requirement}: a lower and an upper bound"


def test_a_wheel_has_every_file_of_the_packages() -> None:
    setuptools = PYPROJECT["tool"]["setuptools"]
    folders = [pattern.removesuffix("*") for pattern in setuptools["packages"]["find"]["include"]]
    everywhere = setuptools["package-data"]["*"]
    of_packages = {
        path
        for package, patterns in setuptools["package-data"].items()
        if package != "*"
        for pattern in patterns
        for path in ROOT.joinpath(*package.split(".")).glob(pattern)
    }
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    files = [path for path in files if path.suffix != ".py" and path.parent.name != "__pycache__"]

    assert len(files) > 200
    assert [
        path for path in files if path not in of_packages and not any(path.match(pattern) for pattern in everywhere)
    ] == []


@pytest.mark.long  # imports torch and transformers in a new process
def test_training_imports_only_packages_that_its_extra_installs() -> None:
    wanted = [*PROJECT["dependencies"], *EXTRAS["train"]]
    installed: set[str] = set()
    while wanted:
        requirement = Requirement(wanted.pop())
        name = canonicalize_name(requirement.name)
        if name not in installed and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            installed.add(name)
            wanted += requires(name) or []
    others = {
        module
        for module, names in packages_distributions().items()
        if not installed & {canonicalize_name(name) for name in names}
    } - {"astraflow", "benchmarks", "maintainer", "web", "recipes", "soak", "tests"}
    assert "pytest" in others
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({sorted(others)!r}))\n"
        "import astraflow.trainer.backends.local, astraflow.raas.engines.local_torch, web.app"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
