"""Agent programs that are commands in a session of the sandbox."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from astraflow.agents.programs import programs
from astraflow.agents.programs.base import (
    MAX_OUTPUT_BYTES,
    TASK_FILE,
    AgentTask,
    ProgramExit,
    ProgramFeatures,
    RunningProgram,
    program_failure,
)
from astraflow.contract.errors import InvalidInput
from astraflow.contract.values import Json
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.sandbox import sandboxes
from astraflow.sandbox.base import Command, JobLimits, JobResult, Level, Outcome, SandboxError, Session
from astraflow.sandbox.shared import SharedSandbox

_READ_S = 30.0
_MAX_FILE_BYTES = 2**20
"""Size of a text file that is copied for each episode; more belongs in `readable_paths` of the sandbox."""


class CommandFields(Config):
    """Command of an agent, and how it learns its task. The file `task.json` always has the fields."""

    command: Annotated[tuple[str, ...], SettableBy.RECIPE] = Field(min_length=1)
    """Program and arguments, not a shell command. `{question}` in an argument is replaced by that field of the task."""
    stdin: Annotated[Literal["nothing", "question", "task"], SettableBy.RECIPE] = "nothing"
    """Standard input: the field `question`, or all fields as JSON."""
    variables: Annotated[dict[str, str], SettableBy.RECIPE] = Field(default_factory=dict)
    """Environment variables, in addition to base URLs and keys of the session."""
    has_field_variables: Annotated[bool, SettableBy.RECIPE] = False
    """Sets the environment variable `TASK_QUESTION` to the field `question`, and so on for each field."""


class CommandOptions(CommandFields):
    """Command in a session of the sandbox, its files and limits."""

    files: Annotated[dict[str, str], SettableBy.RECIPE] = Field(default_factory=dict)
    """Text files that each episode gets: path in its working directory, and path on the node."""
    sandbox: Annotated[dict[str, Any], SettableBy.RECIPE, sandboxes] = Field(default_factory=lambda: {"kind": "local"})
    """Sandbox. Its `readable_paths` show folders to the agent, such as a virtual environment."""
    memory_mib: int = Field(default=2048, ge=16)
    """Memory of an agent, also of the address space of each of its processes. MiB."""
    processes: int = Field(default=64, ge=1)
    """Processes and threads of an agent."""

    @field_validator("files")
    @classmethod
    def _check_targets(cls, files: dict[str, str]) -> dict[str, str]:
        for target in files:
            path = PurePosixPath(target)
            if not target or path.is_absolute() or ".." in path.parts:
                raise ValueError(f"{target!r} is not below the working directory; use a relative path")
        return files


@programs.register("command", options=CommandOptions)
class CommandProgram:
    """Runs a command in a session of the sandbox, which reaches the model calls of this session and nothing else."""

    features = ProgramFeatures(has_files=True, has_commands=True)

    def __init__(self, options: CommandOptions) -> None:
        self._options = options
        self._sandbox = SharedSandbox(options.sandbox)
        self._files: dict[str, str] = {}

    async def start(self) -> None:
        """Reads the files and starts the sandbox. Raises: InvalidInput; SandboxError."""
        self._files = {target: _file_text(source) for target, source in self._options.files.items()}
        await self._sandbox.start()
        level = self._sandbox.level
        if level not in (Level.NAMESPACES, Level.NONE):
            raise InvalidInput(
                f"cannot run agents as commands: the sandbox has the level {level.value!r}, which cannot limit a "
                "program to the model calls of its session; install bubblewrap and enable user namespaces (astraflow "
                "doctor shows what is missing), or set level = 'none' and allow_weak = true for trusted agents",
                code="agent.sandbox_too_weak",
            )

    async def close(self) -> None:
        await self._sandbox.close()

    @asynccontextmanager
    async def open(self, task: AgentTask) -> AsyncIterator[RunningProgram]:
        """Opens a session of the sandbox."""
        options = self._options
        limits = JobLimits(
            memory_bytes=options.memory_mib * 2**20, processes=options.processes, output_bytes=MAX_OUTPUT_BYTES
        )
        with sandbox_failures():
            async with self._sandbox.session(limits, port=task.port) as session:
                yield _RunningCommand(session, command_of(options, task, self._files))


class _RunningCommand:
    """Command in an open session."""

    def __init__(self, session: Session, command: Command) -> None:
        self._session = session
        self._command = command

    async def run(self, *, timeout_s: float) -> ProgramExit:
        return ProgramExit.of(await self._session.execute(self._command, timeout_s=timeout_s))

    async def read(self, path: str) -> str | None:
        result = await self._session.execute(Command(arguments=("cat", "--", path)), timeout_s=_READ_S)
        return result.stdout if result.outcome is Outcome.PASSED else None

    async def execute(self, command: Command, *, timeout_s: float) -> JobResult:
        """Runs a command in the same session."""
        return await self._session.execute(command, timeout_s=timeout_s)


def command_of(options: CommandFields, task: AgentTask, files: Mapping[str, str]) -> Command:
    """Returns the command for a task. files: texts by path, in addition to those of the task."""
    texts = {name: _as_text(value) for name, value in task.fields.items()}
    content = json.dumps(dict(task.fields))
    stdin = {"nothing": "", "question": texts.get("question", ""), "task": content}[options.stdin]
    by_field = {f"TASK_{name.upper()}": text for name, text in texts.items()} if options.has_field_variables else {}
    return Command(
        arguments=tuple(_filled(argument, texts) for argument in options.command),
        environment={**by_field, **options.variables, **task.environment},
        stdin=stdin,
        files={**files, TASK_FILE: content},
    )


def _filled(argument: str, texts: Mapping[str, str]) -> str:
    """Returns an argument with fields in place of their names in braces; other braces stay as they are."""
    pieces: list[str] = []
    while argument:
        before, brace, rest = argument.partition("{")
        name, closing, after = rest.partition("}")
        is_field = bool(closing) and name in texts
        pieces.append(before + (texts[name] if is_field else brace))
        argument = after if is_field else rest
    return "".join(pieces).replace("\0", "")


def _as_text(value: Json) -> str:
    return (value if isinstance(value, str) else json.dumps(value)).replace("\0", "")


def _file_text(source: str) -> str:
    """Returns the text of a file for agents. Raises: InvalidInput."""
    try:
        content = Path(source).expanduser().read_bytes()
        if len(content) <= _MAX_FILE_BYTES:
            return content.decode()
        cause = f"it has more than {_MAX_FILE_BYTES} bytes"
    except (OSError, UnicodeDecodeError) as problem:
        cause = str(problem)
    raise InvalidInput(
        f"cannot give the file {source!r} to agents: {cause}; use a readable text file, or `readable_paths` of the "
        "sandbox",
        code="agent.unreadable_file",
    )


@contextmanager
def sandbox_failures() -> Iterator[None]:
    """Turns failures of a sandbox or container engine into failures of the episode."""
    try:
        yield
    except SandboxError as problem:
        raise program_failure(str(problem), "run `astraflow doctor`", code="agent.sandbox_failed") from problem
