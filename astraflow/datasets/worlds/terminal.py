"""Tasks to do in a terminal, in the folder format of Harbor: an instruction, files, tests and a solution. The terminal
is the environment `terminal`."""

import re
import tomllib
from collections.abc import Mapping, Set
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
from astraflow.datasets.worlds.terminal_services import TerminalService, services_of
from astraflow.runtime.config.base import Config, is_image_name
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.folders.contained_files import contained_bytes, contained_files

SAMPLE_TASKS = SAMPLES / "terminal"
"""Tasks that come with AstraFlow."""

_MAX_FILE_BYTES = 256 * 2**20
_COMPOSE = re.compile(r"environment/docker-compose\.y[^/]*ml")
_KEPT_PATH = re.compile(r"(?!/(?:tests|logs|proc|sys|dev)(?:/|$))(?:/(?!\.\.?(?:/|$))[\w.@+-]+)+", re.ASCII)
_STEP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")
_MEMORY = re.compile(r"(\d+)([MG])i?B?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalStep:
    """Step of a task: an instruction, and tests of what the policy did."""

    name: str
    """Name of its folder; empty for the only step of a task without steps."""
    instruction: str
    tests: tuple[str, ...]
    """Folders of the task with the files of the tests; a file of a later one replaces that of an earlier one."""
    files: str
    """Folder of the task with files that the step adds to the working directory; empty for none."""
    has_setup: bool
    """True if `setup.sh` of these files runs before the policy acts."""
    verifier_s: float
    """Timeout of the tests."""
    min_reward: float
    """Smallest reward with which the task goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalVerifier:
    """Container of its own in which the tests run, of another image than that of the policy."""

    image: str
    """Image, which has the tests in `/tests`; empty to build it from the folder `tests`, which has a Dockerfile."""
    cpus: float
    memory_bytes: int
    storage_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalTask:
    """A task folder."""

    name: str
    folder: Path
    steps: tuple[TerminalStep, ...]
    """One or more."""
    services: tuple[TerminalService, ...]
    """Containers beside that of the policy, in the order of their starts."""
    variables: Mapping[str, str]
    """Environment variables of commands in the policy's container, which the Compose file sets."""
    is_reward_of_last_step: bool
    """True if the reward is that of the last step that ran; otherwise it is the mean of all steps."""
    is_separate: bool
    """True if the tests see only `paths`, which may be files, and may be absent."""
    verifier: TerminalVerifier | None
    """None: the tests run in a fresh container of the task's own image."""
    category: str
    difficulty: str
    build_s: float
    """Timeout for building the image."""
    image: str
    """Image to use instead of building `environment/Dockerfile`; empty to build."""
    cpus: float
    memory_bytes: int
    storage_bytes: int
    """Disk of a container."""
    paths: tuple[str, ...]
    """Files and folders that the tests in a container see as the policy left them; empty: the working directory of the
    image."""

    @property
    def instruction(self) -> str:
        return self.steps[0].instruction


class TaskFolderOptions(Config):
    """Location of the tasks."""

    path: Annotated[str, SettableBy.DATA_LOCATION] = ""
    """Folder of task folders, on the machine that runs dataflow and on each node."""
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


@datasets.register("terminal", options=TaskFolderOptions)
class Terminal:
    """Task folders in the format of Harbor and Terminal-Bench, in the order of their names.

    Fields: question (the instruction), answer (empty: the tests decide), task (name of its folder), category,
    difficulty.
    """

    def __init__(self, options: TaskFolderOptions, _seed: int) -> None:
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
    """Reads a task folder. Raises: InvalidInput for a folder that is incomplete, has links out of it, or services that
    need more than is supported."""
    if not folder.resolve().is_relative_to(folder.parent.resolve()):
        raise _invalid(folder, "it is a link that leads out of the folder of the tasks")
    names = set(_paths(folder))
    try:
        settings = tomllib.loads((task_file(folder, "task.toml") or b"").decode())
        steps = _steps(folder, settings, names)
        services, variables = _services(folder, names)
    except ValueError as problem:
        raise _invalid(folder, str(problem)) from problem
    metadata, environment = _table(settings, "metadata"), _table(settings, "environment")
    verifier = _table(settings, "verifier")
    strategy = settings.get("multi_step_reward_strategy", "mean")
    if strategy not in ("mean", "final"):
        raise _invalid(folder, f"multi_step_reward_strategy in task.toml is {strategy!r}, neither 'mean' nor 'final'")
    return TerminalTask(
        name=folder.name,
        folder=folder.absolute(),
        steps=steps,
        services=services,
        variables=variables,
        is_reward_of_last_step=strategy == "final",
        is_separate=_is_separate(folder, verifier),
        verifier=_verifier(folder, verifier, names),
        category=str(metadata.get("category", "")),
        difficulty=str(metadata.get("difficulty", "")),
        build_s=_number(folder, environment, "build_timeout_sec", 600.0),
        image=_image(folder, str(environment.get("docker_image", ""))),
        cpus=_number(folder, environment, "cpus", 1),
        memory_bytes=_memory_bytes(folder, environment),
        storage_bytes=_storage_bytes(folder, environment),
        paths=_kept_paths(folder, verifier, settings.get("artifacts", []) if _is_separate(folder, verifier) else []),
    )


def _services(folder: Path, names: Set[str]) -> tuple[tuple[TerminalService, ...], Mapping[str, str]]:
    """Returns the services of a task, and variables of the policy's container. Raises: InvalidInput, ValueError."""
    files = sorted(name for name in names if _COMPOSE.fullmatch(name))
    if not files:
        return (), {}
    if len(files) > 1:
        raise _invalid(folder, f"it has several files with services: {', '.join(files)}")
    return services_of((task_file(folder, files[0], limit=2**20) or b"").decode())


def _steps(folder: Path, settings: Mapping[str, Any], names: Set[str]) -> tuple[TerminalStep, ...]:
    """Returns the steps of a task. Raises: InvalidInput; ValueError for a text that is not UTF-8."""
    tables = settings.get("steps", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise _invalid(folder, "steps in task.toml is no list of tables")
    step_names = [str(table.get("name", "")) for table in tables]
    if not all(map(_STEP_NAME.fullmatch, step_names)) or len({name.casefold() for name in step_names}) < len(tables):
        raise _invalid(folder, f"steps in task.toml have the names {step_names}, which are not different folders")
    if not tables and any(name.startswith("steps/") for name in names):
        raise _invalid(folder, "it has a folder `steps`, and no steps in task.toml")
    return tuple(
        _step(folder, table, name, settings, names)
        for table, name in zip(tables or [{}], step_names or [""], strict=True)
    )


def _step(
    folder: Path, table: Mapping[str, Any], name: str, settings: Mapping[str, Any], names: Set[str]
) -> TerminalStep:
    own = f"steps/{name}/" if name else ""
    folders = dict.fromkeys(("tests", f"{own}tests"))
    tests = tuple(inner for inner in folders if any(path.startswith(f"{inner}/") for path in names))
    missing = [f"{own}instruction.md"] if f"{own}instruction.md" not in names else []
    missing += [] if any(f"{inner}/test.sh" in names for inner in tests) else [f"{own}tests/test.sh"]
    if missing:
        raise _invalid(folder, f"it has no {', no '.join(missing)}")
    files = f"{own}workdir" if name and any(path.startswith(f"{own}workdir/") for path in names) else ""
    verifier_s = _number(folder, _table(settings, "verifier"), "timeout_sec", 600.0)
    min_reward = table.get("min_reward", 0.0)
    if isinstance(min_reward, dict):
        min_reward = min_reward.get("reward", 0.0)
    if isinstance(min_reward, bool) or not isinstance(min_reward, int | float):
        raise _invalid(folder, f"min_reward of step {name!r} is {min_reward!r}, not a number")
    return TerminalStep(
        name=name,
        instruction=(task_file(folder, f"{own}instruction.md") or b"").decode().strip(),
        tests=tests,
        files=files,
        has_setup=bool(files) and f"{files}/setup.sh" in names,
        verifier_s=_number(folder, _table(table, "verifier"), "timeout_sec", verifier_s),
        min_reward=float(min_reward),
    )


def _verifier(folder: Path, verifier: Mapping[str, Any], names: Set[str]) -> TerminalVerifier | None:
    """Returns the container of the tests, if it has an image of its own. Raises: InvalidInput."""
    table = _table(verifier, "environment")
    image = _image(folder, str(table.get("docker_image", "")))
    if not _is_separate(folder, verifier) or not (image or "tests/Dockerfile" in names):
        return None  # a fresh container of the task's own image
    return TerminalVerifier(
        image=image,
        cpus=_number(folder, table, "cpus", 1),
        memory_bytes=_memory_bytes(folder, table),
        storage_bytes=_storage_bytes(folder, table),
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


def _is_separate(folder: Path, verifier: Mapping[str, Any]) -> bool:
    """Returns whether the tests see only what the task declares as artifacts. Raises: InvalidInput."""
    environment = verifier.get("environment")
    mode = verifier.get("environment_mode", "separate" if environment is not None else "shared")
    if mode not in ("shared", "separate") or (mode == "shared" and environment is not None):
        raise _invalid(folder, f"environment_mode under [verifier] is {mode!r}, with the environment {environment!r}")
    return bool(mode == "separate")


def _kept_paths(folder: Path, verifier: Mapping[str, Any], artifacts: object) -> tuple[str, ...]:
    """Returns `paths` under [verifier], and the sources of `artifacts`. Raises: InvalidInput."""
    paths = verifier.get("paths", [])
    if isinstance(artifacts, list) and isinstance(paths, list):
        paths = [*paths, *(item.get("source") if isinstance(item, dict) else item for item in artifacts)]
    if not isinstance(paths, list) or not all(isinstance(path, str) and _KEPT_PATH.fullmatch(path) for path in paths):
        raise _invalid(
            folder, f"paths and artifacts in task.toml are {paths!r}, not absolute paths such as '/srv/site'"
        )
    return tuple(dict.fromkeys(paths))


def _storage_bytes(folder: Path, environment: Mapping[str, Any]) -> int:
    return int(_number(folder, environment, "storage_mb", 10_240)) * 2**20


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
