"""Virtual environments of other projects' environments, made only when a user asks for them.

    $ASTRAFLOW_HOME/environments/NAME/                  virtual environment
    $ASTRAFLOW_HOME/environments/NAME/environment.json  written last

The packages of the tested release are pinned. Further packages, which bring environments, are resolved by pip with
these pins as constraints; what was installed is in the description.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.environments.foreign.releases import EnvironmentRelease
from astraflow.runtime.folders.run_folders import home
from astraflow.runtime.pip import OPTIONS, error_lines, run_logged
from astraflow.runtime.processes.child import child_environment
from astraflow.runtime.virtual_environments import (
    VirtualEnvironment,
    complete_environments,
    delete_environment,
    exclusive_environment,
    find_python,
)

_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledEnvironment(VirtualEnvironment):
    """Virtual environment with a package whose environments run here."""

    is_pinned: bool
    """True if it has the packages of the release that was tested."""
    packages: tuple[str, ...]
    """Further packages, as requested."""
    frozen: tuple[str, ...]
    """All installed packages with their releases, as pip lists them."""


def environments_folder() -> Path:
    """Returns the folder of all environments."""
    return home() / "environments"


def installed_environments() -> list[InstalledEnvironment]:
    """Returns the complete environments by name."""
    return complete_environments(InstalledEnvironment, environments_folder())


def find_environment(kind: str, name: str = "") -> InstalledEnvironment:
    """Returns the environment `name`, by default that with the name of its kind. Raises: InvalidInput."""
    for environment in installed_environments():
        if (environment.kind, environment.name) == (kind, name or kind):
            return environment
    named = f" --name {name}" if name and name != kind else ""
    raise InvalidInput(
        f"cannot use environments of {kind!r}: no environment {name or kind!r} is installed below "
        f"{str(environments_folder())!r}; run `astraflow environments install {kind}{named}`",
        code="environment.not_installed",
    )


def install(
    release: EnvironmentRelease,
    *,
    name: str,
    version: str,
    packages: Sequence[str],
    progress: Callable[[str], None],
) -> InstalledEnvironment:
    """Installs a release and further packages in the environment `name`, which is made anew.

    version: empty: the tested one with its pins. packages: requirements for pip, or folders.
    Raises: InvalidInput; Conflict while another process changes it, or runs in it; Unavailable when pip fails.
    """
    _check_version(version)
    requirements = tuple(map(_requirement, packages))
    with exclusive_environment(environments_folder(), name) as folder:
        python = _python(release)
        log_file = home() / "logs" / "environments" / f"install-{name}.log"
        log_file.parent.mkdir(parents=True, exist_ok=True)
        progress(f"log: {log_file}")
        delete_environment(folder, InstalledEnvironment.description)
        _run(release, log_file, python, "-m", "venv", str(folder))
        pip = (str(folder / "bin" / "python"), "-m", "pip", "install", *OPTIONS)
        is_pinned = version in ("", release.version)
        if is_pinned:
            progress(f"installing {release.distribution} {release.version} and its pinned requirements")
            _run(release, log_file, *pip, "--no-deps", "--requirement", str(release.requirements))
        else:
            progress(f"installing {release.distribution} {version}, which was not tested")
            _run(release, log_file, *pip, f"{release.distribution}=={version}")
        if packages:
            progress(f"installing {', '.join(packages)}")
            constraints = ("--constraint", str(release.requirements)) if is_pinned else ()
            with _copied(requirements) as sources:
                _run(release, log_file, *pip, *constraints, *sources)
        environment = InstalledEnvironment(
            folder=folder,
            kind=release.kind,
            version=version or release.version,
            is_pinned=is_pinned,
            packages=tuple(packages),
            frozen=_frozen(folder),
        )
        environment.describe()
        return environment


def remove(name: str) -> None:
    """Removes an environment. Raises: InvalidInput for an unknown name; Conflict while another process changes it."""
    with exclusive_environment(environments_folder(), name) as folder:
        if not folder.is_dir():
            names = ", ".join(environment.name for environment in installed_environments()) or "none"
            raise InvalidInput(
                f"cannot remove the environment {name!r}: it is not installed; installed: {names}",
                code="environment.not_installed",
            )
        delete_environment(folder, InstalledEnvironment.description)


def _check_version(version: str) -> None:
    if version and not _VERSION.fullmatch(version):
        raise InvalidInput(
            f"cannot install release {version!r}: it is no release number; write KIND==1.2.3",
            code="environment.invalid_version",
        )


def _python(release: EnvironmentRelease) -> str:
    """Returns an interpreter of the release's Python. Raises: InvalidInput when there is none."""
    python = find_python(release.python)
    if python is None:
        version = ".".join(map(str, release.python))
        raise InvalidInput(
            f"cannot install {release.distribution}: its packages are pinned for Python {version}, and PATH has no "
            f"python{version}; install it with its module venv",
            code="environment.no_python",
        )
    return python


def _requirement(package: str) -> str:
    """Returns a requirement for pip; a folder by its absolute path. Raises: InvalidInput for an option of pip."""
    if package.startswith("-"):
        raise InvalidInput(
            f"cannot install {package!r}: it is an option of pip, not a package; set it in pip's configuration",
            code="environment.invalid_requirement",
        )
    return str(Path(package).resolve()) if Path(package).is_dir() else package


@contextmanager
def _copied(requirements: Sequence[str]) -> Iterator[list[str]]:
    """Yields the requirements with copies of folders, in which pip's build leaves files."""
    with tempfile.TemporaryDirectory(prefix="astraflow-install-") as temporary:
        sources = []
        for number, requirement in enumerate(requirements):
            folder = Path(requirement)
            if folder.is_dir():
                copy = Path(temporary, str(number), folder.name)
                shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("build", ".git", ".venv", "*.egg-info"))
                requirement = str(copy)
            sources.append(requirement)
        yield sources


def _run(release: EnvironmentRelease, log_file: Path, *command: str) -> None:
    lines: list[str] = []
    if run_logged(command, log_file, on_line=lines.append) is not None:
        raise Unavailable(
            f"cannot install {release.distribution}: {error_lines(lines)}; see {log_file}, and run the command again",
            code="environment.install_failed",
        )


def _frozen(folder: Path) -> tuple[str, ...]:
    command = (str(folder / "bin" / "python"), "-m", "pip", "freeze", "--all", "--disable-pip-version-check")
    listed = subprocess.run(command, capture_output=True, text=True, check=True, env=child_environment())  # noqa: S603 (a program of this package)
    return tuple(listed.stdout.splitlines())
