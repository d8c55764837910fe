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
WITH_ANOTHER = {"starlette": "mcp", "uvicorn": "mcp"}
"""Packages that another one always installs."""


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


def installed_with(extras: str) -> set[str]:
    """Returns the distributions that pip installs with extras, separated by commas."""
    wanted = [Requirement(f"{PROJECT['name']}[{extras}]")]
    names, visited = set[str](), set[str]()
    while wanted:
        requirement = wanted.pop()
        if str(requirement) in visited:
            continue
        visited.add(str(requirement))
        name = canonicalize_name(requirement.name)
        if name == PROJECT["name"]:
            lines = [*PROJECT["dependencies"], *(line for extra in requirement.extras for line in EXTRAS[extra])]
        else:
            names.add(name)
            lines = requires(name) or []
        contexts = [{"extra": extra} for extra in ("", *requirement.extras)]
        of_others = [Requirement(line) for line in lines]
        wanted += [of for of in of_others if of.marker is None or any(map(of.marker.evaluate, contexts))]
    return names


def imported_with(extras: str, *modules: str) -> set[str]:
    """Imports modules in a process that has only the distributions of `extras`; returns those that it loaded."""
    installed = installed_with(extras)
    absent = {
        module
        for module, names in packages_distributions().items()
        if not installed & {canonicalize_name(name) for name in names}
    } - {"astraflow", "maintainer", "web", "recipes", "tests"}
    assert "pytest" in absent
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({sorted(absent)!r}))\n"
        f"import {', '.join(modules)}\n"
        "print(*(name for name, module in sys.modules.items() if module and '.' not in name))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    distributions = packages_distributions()
    return {canonicalize_name(name) for module in done.stdout.split() for name in distributions.get(module, ())}


def test_the_base_is_what_the_services_of_a_run_import() -> None:
    loaded = imported_with(
        "",
        "astraflow.cli.running.local_run",
        "astraflow.cli.services.roles",
        "astraflow.dataflow.service",
        "astraflow.raas.engines.scripted",
        "astraflow.raas.engines.server.process",
        "astraflow.raas.service",
        "astraflow.trainer.backends.scripted",
        "astraflow.trainer.service",
        "astraflow.weights.mirror",
        "astraflow.weights.service",
    )
    assert {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]} <= loaded


@pytest.mark.parametrize(
    ("extras", "modules"),
    [
        ("web", ["web.__main__", "web.accounts.login_links", "web.app", "web.audit.__main__"]),
        ("fleet", ["maintainer.fleet.__main__", "maintainer.fleet.preflight_cli"]),
        ("maintainer", ["maintainer.__main__", "maintainer.evals.command"]),
        ("maintainer,mcp", ["maintainer.mcp.http", "maintainer.mcp.service"]),
        ("metrics", ["astraflow.dataflow.endpoints.metrics"]),
        ("agents", ["astraflow.agents.workflow", "astraflow.agents.programs.callables"]),
        ("engines", [f"astraflow.raas.engines.server.{kind}" for kind in ("openai_tokens", "sglang", "vllm")]),
        ("llm", ["astraflow.rewards.llm_judge", "maintainer.agent.llm.interface"]),
        ("search", ["astraflow.search.service", "astraflow.tools.search"]),
        pytest.param(
            "train", ["astraflow.raas.engines.local_torch", "astraflow.trainer.backends.local"], marks=pytest.mark.long
        ),
    ],
)
def test_a_service_imports_only_packages_that_its_extra_installs(extras: str, modules: list[str]) -> None:
    imported_with(extras, *modules)


def test_the_page_loads_x509_only_for_a_run_with_tls() -> None:
    assert "cryptography" not in imported_with("web", "web.__main__", "web.app"), "it takes 8 MB"


def test_the_extra_for_one_machine_has_every_service() -> None:
    names = ["agents", "engines", "fleet", "maintainer", "metrics", "train", "web"]
    assert installed_with("local") == set[str]().union(*map(installed_with, names))
