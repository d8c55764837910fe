"""Tasks to do in a terminal, in the folder format of Harbor: an instruction, files, tests and a solution. The terminal
is the environment `terminal`."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import model_validator

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.values import Json
from astraflow.datasets import datasets
from astraflow.datasets.base import ANSWER, QUESTION, check_index
from astraflow.datasets.published.loading import SAMPLES
from astraflow.datasets.tables.base import fingerprint_of
from astraflow.runtime.config.base import Config, is_image_name
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.folders.contained_files import contained_bytes, contained_files

SAMPLE_TASKS = SAMPLES / "terminal"
"""Tasks that come with AstraFlow."""

_MAX_FILE_BYTES = 256 * 2**20
_COMPOSE = re.compile(r"environment/docker-compose\.y[^/]*ml")
_KEPT_PATH = re.compile(r"(?!/(?:tests|logs|proc|sys|dev)(?:/|$))(?:/(?!\.\.?(?:/|$))[\w.@+-]+)+", re.ASCII)
_MEMORY = re.compile(r"(\d+)([MG])i?B?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalTask:
    """A task folder."""

    name: str
    folder: Path
    instruction: str
    category: str
    difficulty: str
    verifier_s: float
    """Timeout of the tests."""
    build_s: float
    """Timeout for building the image."""
    image: str
    """Image to use instead of building `environment/Dockerfile`; empty to build."""
    cpus: float
    memory_bytes: int
    storage_bytes: int
    """Disk of a container."""
    paths: tuple[str, ...]
    """Folders that the tests in a container see as the policy left them; empty: the working directory of the image."""


class TerminalOptions(Config):
    """Tasks to use."""

    path: Annotated[str, SettableBy.DATA_LOCATION] = ""
    """Folder of task folders, on the machine that runs dataflow."""
    is_sample: Annotated[bool, SettableBy.AGENT] = False
    """Use the twenty tasks that come with AstraFlow."""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.is_sample == bool(self.path):
            raise ValueError("set either the path of the tasks or `is_sample = true`")
        return self

    @property
    def folder(self) -> Path:
        """Folder of the task folders."""
        return SAMPLE_TASKS if self.is_sample else Path(self.path).expanduser()


@datasets.register("terminal", options=TerminalOptions)
class Terminal:
    """Task folders in the format of Harbor and Terminal-Bench, in the order of their names.

    Fields: question (the instruction), answer (empty: the tests decide), task (name of its folder), category,
    difficulty.
    """

    def __init__(self, options: TerminalOptions, _seed: int) -> None:
        self._folder = options.folder
        self._prefix = "sample/terminal" if options.is_sample else "terminal"
        self._names = sorted(file.parent.name for file in self._folder.glob("*/task.toml"))
        if not self._names:
            raise InvalidInput(
                f"cannot load terminal tasks: {str(self._folder)!r} has no folder with a task.toml; set path to a "
                "folder of task folders",
                code="dataset.empty",
            )
        for name in self._names:
            load_task(self._folder / name)

    @property
    def size(self) -> int:
        """Number of tasks."""
        return len(self._names)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the names of the tasks."""
        return fingerprint_of(*self._names)

    def prompt(self, index: int) -> Prompt:
        """Returns task number `index`."""
        check_index(index, self.size)
        task = load_task(self._folder / self._names[index])
        fields: dict[str, Json] = {
            QUESTION: task.instruction,
            ANSWER: "",
            "task": task.name,
            "category": task.category,
            "difficulty": task.difficulty,
        }
        return Prompt(id=PromptId(f"{self._prefix}:{task.name}"), fields=fields)


def load_task(folder: Path) -> TerminalTask:
    """Reads a task folder. Raises: InvalidInput for a folder that is incomplete or has links out of it, or a task with
    several steps or services."""
    if not folder.resolve().is_relative_to(folder.parent.resolve()):
        raise _invalid(folder, "it is a link that leads out of the folder of the tasks")
    names = set(_paths(folder))
    for name in ("instruction.md", "tests/test.sh"):
        if name not in names:
            raise _invalid(folder, f"it has no {name}")
    if (folder / "steps").is_dir() or any(_COMPOSE.fullmatch(name) for name in names):
        raise _invalid(folder, "tasks with several steps or services are not supported")
    try:
        settings = tomllib.loads((task_file(folder, "task.toml") or b"").decode())
        instruction = (task_file(folder, "instruction.md") or b"").decode().strip()
    except ValueError as problem:
        raise _invalid(folder, str(problem)) from problem
    metadata, environment = _table(settings, "metadata"), _table(settings, "environment")
    return TerminalTask(
        name=folder.name,
        folder=folder.absolute(),
        instruction=instruction,
        category=str(metadata.get("category", "")),
        difficulty=str(metadata.get("difficulty", "")),
        verifier_s=_number(folder, _table(settings, "verifier"), "timeout_sec", 600.0),
        build_s=_number(folder, environment, "build_timeout_sec", 600.0),
        image=_image(folder, str(environment.get("docker_image", ""))),
        cpus=_number(folder, environment, "cpus", 1),
        memory_bytes=_memory_bytes(folder, environment),
        storage_bytes=int(_number(folder, environment, "storage_mb", 10_240)) * 2**20,
        paths=_kept_paths(folder, _table(settings, "verifier").get("paths", [])),
    )


def task_file(folder: Path, path: str, *, limit: int = _MAX_FILE_BYTES) -> bytes | None:
    """Returns the content of a file of a task folder; None for a path that is no file. Raises: InvalidInput for one
    that leads out of the folder or is larger than `limit`."""
    try:
        return contained_bytes(folder, path, limit=limit)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as problem:
        raise _invalid(folder, str(problem)) from problem


def files_below(folder: Path, inner: str) -> dict[str, bytes]:
    """Returns the contents of all files of a folder in a task folder, by their path in it. Raises: InvalidInput for a
    link that leads out of the task folder, or for more than 256 MiB."""
    files: dict[str, bytes] = {}
    total_bytes = 0
    for path in paths_below(folder, inner):
        content = files[path.removeprefix(f"{inner}/")] = task_file(folder, path) or b""
        total_bytes += len(content)
        if total_bytes > _MAX_FILE_BYTES:
            raise _invalid(folder, f"{inner} has more than {_MAX_FILE_BYTES} bytes")
    return files


def paths_below(folder: Path, inner: str) -> list[str]:
    """Returns the paths, in the task folder, of all files of a folder in it. Raises: InvalidInput."""
    return [path for path in _paths(folder) if path.startswith(f"{inner}/")]


def _paths(folder: Path) -> list[str]:
    """Returns the paths of all files of a task folder. Raises: InvalidInput."""
    try:
        return list(contained_files(folder))
    except OSError as problem:
        raise _invalid(folder, str(problem)) from problem


def _kept_paths(folder: Path, paths: object) -> tuple[str, ...]:
    if not isinstance(paths, list) or not all(isinstance(path, str) and _KEPT_PATH.fullmatch(path) for path in paths):
        raise _invalid(folder, f"paths in task.toml is {paths!r}, not a list of absolute folders such as '/srv/site'")
    return tuple(paths)


def _image(folder: Path, image: str) -> str:
    if image and not is_image_name(image):
        raise _invalid(folder, f"docker_image in task.toml is {image!r}, not the name of an image")
    return image


def _table(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = settings.get(name, {})
    return value if isinstance(value, dict) else {}


def _number(folder: Path, table: Mapping[str, Any], name: str, default: float) -> float:
    value = table.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
        raise _invalid(folder, f"{name} in task.toml is {value!r}, not a positive number")
    return float(value)


def _memory_bytes(folder: Path, environment: Mapping[str, Any]) -> int:
    """Returns the memory limit: `memory_mb`, or the older `memory`, such as "2G"."""
    if "memory" not in environment:
        return int(_number(folder, environment, "memory_mb", 2048)) * 2**20
    match = _MEMORY.fullmatch(str(environment["memory"]))
    if match is None:
        raise _invalid(folder, f"memory in task.toml is {environment['memory']!r}, not a size such as '2G'")
    return int(match[1]) * (2**30 if match[2].upper() == "G" else 2**20)


def _invalid(folder: Path, cause: str) -> InvalidInput:
    return InvalidInput(
        f"cannot use the terminal task {str(folder)!r}: {cause}; correct or remove the folder",
        code="dataset.invalid_task",
    )
