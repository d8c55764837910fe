"""Installs the release of an engine into a virtual environment of its own.

    no folder ──create──► incomplete ──packages, then a server that answers──► complete (`engine.json`) ──remove──► gone

Nodes do not use an incomplete environment; the next installation continues it. A complete environment of another
release becomes incomplete while it is upgraded. Packages are installed into the final folder, because the scripts of a
virtual environment contain its path and break when it is renamed.
"""

import ctypes
import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from astraflow.contract.errors import InvalidInput, StorageFull
from astraflow.raas.engines.server.environments import Environment, environments_folder, installed_environments
from astraflow.raas.engines.server.installation.host import Host, obstacles
from astraflow.raas.engines.server.installation.pip import Progress, pip_steps, run_pip
from astraflow.raas.engines.server.installation.releases import EngineRelease
from astraflow.runtime.folders.run_folders import HOME, home
from astraflow.runtime.pip import run_logged
from astraflow.runtime.virtual_environments import (
    NAME,
    check_name,
    delete_environment,
    exclusive_environment,
    find_python,
)

_SPARE_BYTES = 10**9
"""Space for downloaded packages while they are unpacked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentState:
    """Folder of an environment, complete or incomplete."""

    name: str
    folder: Path
    environment: Environment | None
    """None while the installation is incomplete."""
    size_bytes: int
    """Space on disk."""


def environment_states() -> list[EnvironmentState]:
    """Returns all environments by name, including incomplete ones."""
    complete = {environment.name: environment for environment in installed_environments()}
    folders = sorted(path for path in environments_folder().glob("*") if path.is_dir() and NAME.fullmatch(path.name))
    return [
        EnvironmentState(
            name=folder.name, folder=folder, environment=complete.get(folder.name), size_bytes=size_of(folder)
        )
        for folder in folders
    ]


def check_can_install(release: EngineRelease, host: Host, *, name: str) -> None:
    """Checks the name, the machine, its software and its disk space, before anything is downloaded.

    Raises: InvalidInput when this machine cannot run the release or lacks software for it; StorageFull.
    """
    check_name(name)
    reasons = obstacles(release, host)
    if reasons:
        raise InvalidInput(
            f"cannot install {release.title}: {'; '.join(reasons)}; use another machine, or see `astraflow doctor`",
            code="engine.unsupported_host",
        )
    missing = missing_software(release)
    if missing:
        raise InvalidInput(
            f"cannot install {release.title}: {'; '.join(missing)}; install what is missing first",
            code="engine.missing_software",
        )
    folder = next(path for path in (environments_folder(), *environments_folder().parents) if path.exists())
    free_bytes = shutil.disk_usage(folder).free
    needed_bytes = release.size_bytes + _SPARE_BYTES - size_of(environments_folder() / name)
    if free_bytes < needed_bytes:
        raise StorageFull(
            f"cannot install {release.title}: it needs {needed_bytes / 1e9:.1f} GB below {str(home())!r}, where "
            f"{free_bytes / 1e9:.1f} GB are free; free space, or set {HOME} to a folder with more",
            code="engine.install_no_space",
        )


def install(
    release: EngineRelease,
    *,
    name: str,
    wheels: Path | None,
    check: Callable[[Environment], str],
    progress: Progress,
) -> Environment:
    """Installs a release as the environment `name`, calls `check`, and returns the environment.

    An incomplete installation is continued. wheels: folder where pip looks for wheels in addition to its index. check:
    starts a server and returns a summary for `progress`.

    Raises: Conflict while another process installs the environment or a server runs from it; InvalidInput, Unavailable,
    StorageFull when pip fails; errors of `check`.
    """
    with exclusive_environment(environments_folder(), name) as folder:
        environment = Environment(kind=release.kind, device=release.device, version=release.version, folder=folder)
        log_file = home() / "logs" / "engines" / f"install-{name}.log"
        log_file.parent.mkdir(parents=True, exist_ok=True)
        progress(f"log: {log_file}")
        (folder / Environment.description).unlink(missing_ok=True)
        _create(release, environment, log_file, progress)
        for step in pip_steps(release):
            progress(step.title)
            run_pip(release, environment, step, wheels=wheels, log_file=log_file, progress=progress)
        progress("starting a server with a tiny model")
        progress(check(environment))
        environment.describe()
        return environment


def remove(name: str) -> int:
    """Removes an environment, complete or incomplete; returns its size in bytes.

    Raises: InvalidInput for an unknown name; Conflict while a process installs it or a server runs from it.
    """
    check_name(name)
    folder = environments_folder() / name
    if not folder.is_dir():
        installed_names = ", ".join(state.name for state in environment_states()) or "none"
        raise InvalidInput(
            f"cannot remove the environment {name!r}: it is not installed; installed: {installed_names}",
            code="engine.unknown_environment",
        )
    with exclusive_environment(environments_folder(), name):
        size = size_of(folder)
        delete_environment(folder, Environment.description)
        return size


def missing_software(release: EngineRelease) -> list[str]:
    """Returns the software that is missing to install the release or to use it in a node, as texts."""
    missing = []
    if release.python is not None and find_python(release.python) is None:
        python_version = ".".join(map(str, release.python))
        missing.append(
            f"its packages are pinned for Python {python_version}, and PATH has no python{python_version} (with venv)"
        )
    for library, package in release.libraries:
        try:
            ctypes.CDLL(library)
        except OSError:
            missing.append(f"it needs {library} (Debian: apt-get install {package})")
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if release.compiles and not (shutil.which("g++") and headers.exists()):
        missing.append("it compiles with g++ and the headers of Python (Debian: apt-get install g++ python3-dev)")
    modules = [
        name for name in ("aiohttp", "orjson", "torch", "transformers") if importlib.util.find_spec(name) is None
    ]
    if modules:
        missing.append(f"nodes need {', '.join(modules)} to use it: pip install 'astraflow[train,engines]'")
    return missing


def size_of(folder: Path) -> int:
    """Returns the space that a folder takes on disk, in bytes; 0 without the folder."""
    total, inodes = 0, set()
    for directory, _, files in os.walk(folder):
        for file in files:
            with suppress(OSError):  # a file may be removed meanwhile
                status = os.lstat(Path(directory, file))
                if status.st_ino not in inodes:
                    inodes.add(status.st_ino)
                    total += status.st_blocks * 512
    return total


def _create(release: EngineRelease, environment: Environment, log_file: Path, progress: Progress) -> None:
    if (environment.folder / "bin" / "pip").exists():
        progress(f"continuing the installation in {environment.folder}")
        return
    progress(f"creating the virtual environment {environment.folder}")
    python = find_python(release.python)
    assert python is not None  # noqa: S101 (see check_can_install)
    command = [python, "-m", "venv", str(environment.folder)]
    tail = run_logged(command, log_file, on_line=lambda _line: None)
    if tail is not None:
        raise InvalidInput(
            f"cannot create a virtual environment in {str(environment.folder)!r}: {' '.join(tail)}; install the venv "
            "module of Python (Debian: python3.11-venv)",
            code="engine.install_no_venv",
        )
