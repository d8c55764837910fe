"""Virtual environments that users install for programs whose requirements conflict with AstraFlow's.

FOLDER/NAME/             virtual environment
FOLDER/NAME/DESCRIPTION  JSON, written last: an environment without it is incomplete
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import psutil
from pydantic import TypeAdapter

from astraflow.contract.errors import Conflict, InvalidInput
from astraflow.runtime.locks import exclusive_lock

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
"""Name of an environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualEnvironment:
    """An installed environment."""

    description: ClassVar[str] = "environment.json"
    """File name of the description."""

    folder: Path
    kind: str
    """The engine or the kind of environments that is installed in it, such as `sglang`."""
    version: str
    """Its release."""

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def python(self) -> Path:
        """Interpreter."""
        return self.folder / "bin" / "python"

    def facts(self) -> dict[str, Any]:
        """Returns the values of the description: all but the folder."""
        return {name: value for name, value in asdict(self).items() if name != "folder"}

    def describe(self) -> None:
        """Writes the description, which completes an installation."""
        (self.folder / self.description).write_text(json.dumps(self.facts(), indent=1) + "\n")


E = TypeVar("E", bound=VirtualEnvironment)


def complete_environments(kind: type[E], folder: Path) -> list[E]:
    """Returns the complete environments below a folder by name; one without a valid description is left out."""
    reader = TypeAdapter(kind)
    environments = []
    for file in sorted(folder.glob(f"*/{kind.description}")):
        with suppress(OSError, TypeError, ValueError):
            environment = reader.validate_python({**json.loads(file.read_text()), "folder": file.parent})
            if environment.python.exists():
                environments.append(environment)
    return environments


def check_name(name: str) -> None:
    """Checks the name of an environment, which is that of its folder. Raises: InvalidInput."""
    if not NAME.fullmatch(name):
        raise InvalidInput(
            f"cannot use {name!r} as the name of an environment: it is not 1 to 64 lower-case letters, digits, dots, "
            "underscores and hyphens; choose another",
            code="environment.invalid_name",
        )


@contextmanager
def exclusive_environment(parent: Path, name: str) -> Iterator[Path]:
    """Yields the folder of an environment below `parent` that no process uses, while this process alone may change it.

    Raises: InvalidInput, Conflict.
    """
    check_name(name)
    parent.mkdir(parents=True, exist_ok=True)
    refusal = Conflict(
        f"cannot change the environment {name!r}: another process installs or removes it; wait for its end",
        code="environment.locked",
    )
    with exclusive_lock(parent / f".{name}.lock", refusal=refusal):
        if users := users_of(parent / name):
            raise Conflict(
                f"cannot change the environment {name!r}: the processes {users} run in it; stop the nodes or runs that "
                "use it first",
                code="environment.in_use",
            )
        yield parent / name


def find_python(version: tuple[int, int] | None) -> str | None:
    """Returns an interpreter of a Python release (None: any): the running one or one on PATH; None if there is none."""
    if version in (None, sys.version_info[:2]):
        return sys.executable
    return shutil.which(f"python{'.'.join(map(str, version or ()))}")


def users_of(folder: Path) -> str:
    """Returns the ids of the processes that run programs of an environment, separated by commas."""
    programs = tuple(f"{path}{os.sep}" for path in (folder, folder.resolve()))
    processes = psutil.process_iter(["cmdline"])
    return ", ".join(
        str(process.pid) for process in processes if (process.info["cmdline"] or [""])[0].startswith(programs)
    )


def delete_environment(folder: Path, description: str) -> None:
    """Deletes an environment, complete or not, or only the link to it; does nothing without one."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        (folder / description).unlink(missing_ok=True)  # from here on nothing selects it
        shutil.rmtree(folder)
