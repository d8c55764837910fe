"""Process that imports the modules of agents once and forks for each episode.

Its requests are an empty one, answered when the modules are imported or cannot be, `start` of an agent (the fields of
`Start`), answered with its `status` when it has ended, and `kill` of the agent of an earlier request. It ends, with all
agents and what they started, when its standard input is closed. It has one thread and no event loop, so that forks are
safe.
"""

import asyncio
import gc
import inspect
import json
import os
import resource
import selectors
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from astraflow.agents.programs.base import AgentTask
from astraflow.agents.programs.sdk_clients import early_clients, point_clients, warm_up
from astraflow.runtime.plugins import import_named_plugins
from astraflow.runtime.processes.requests import Answers
from astraflow.runtime.processes.supervised import end_with_parent, kill_group

OUTPUTS = ("stdout", "stderr")
VALUE = "value.json"
WORK = "work"
"""Names in the folder of an episode: standard output and error, the return value, the working directory."""

_FIRST = 0
"""Number of the request that asks whether the modules are imported."""
_CHUNK_BYTES = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start of an agent."""

    function: str
    """As `module:name`."""
    folder: str
    """Folder of the episode, with the working directory."""
    task: AgentTask
    memory_bytes: int
    """Address space in addition to that of the modules."""
    file_bytes: int
    """Largest file that the agent may write, its output included."""


def main() -> None:
    """Serves until standard input is closed."""
    answers = Answers()
    try:
        import_named_plugins()
    except BaseException as problem:  # also SystemExit of a module
        answers.send(_FIRST, error=f"{problem}" or type(problem).__name__)
        raise
    gc.collect()
    clients = early_clients()
    warm_up()
    gc.collect()
    gc.freeze()  # forks share the pages of everything that was imported
    _Server(answers, clients).serve()


class _Server:
    """Agents by their ids."""

    def __init__(self, answers: Answers, clients: Sequence[tuple[str, Any]]) -> None:
        self._answers = answers
        self._clients = clients
        self._selector = selectors.DefaultSelector()
        self._running: dict[int, int] = {}
        """Process of each agent."""
        self._buffer = b""

    def serve(self) -> None:
        """Handles messages and ends."""
        self._selector.register(0, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fd != 0:
                    self._reap(key.fd, *key.data)
                elif not self._read():
                    for process in self._running.values():
                        kill_group(process)
                    return

    def _read(self) -> bool:
        """Handles the messages that are there; returns whether more may come."""
        chunk = os.read(0, _CHUNK_BYTES)
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "start" in message:
                self._start(message["number"], start_of(message["start"]))
                continue
            if message.get("kill") in self._running:
                kill_group(self._running[message["kill"]])
            self._answers.send(message["number"])
        return bool(chunk)

    def _start(self, number: int, start: Start) -> None:
        server = os.getpid()
        process = os.fork()
        if process == 0:
            _become_agent(start, self._clients, server)
        self._running[number] = process
        self._selector.register(os.pidfd_open(process), selectors.EVENT_READ, (number, process))

    def _reap(self, descriptor: int, number: int, process: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        kill_group(process)  # what it started and left
        _, status = os.waitpid(process, 0)
        del self._running[number]
        self._answers.send(number, status=os.waitstatus_to_exitcode(status))


def start_of(message: Mapping[str, Any]) -> Start:
    task = AgentTask(**{**message["task"], "models": tuple(message["task"]["models"])})
    return Start(**{**message, "task": task})


def function_named(entry: str) -> Callable[..., Any]:
    """Returns the function at `module:name` of a module that is loaded. Raises: LookupError with the cause."""
    module, _, name = entry.partition(":")
    if module not in sys.modules:
        raise LookupError(f"the module {module!r} is not loaded")
    function = getattr(sys.modules[module], name, None)
    if not callable(function):
        raise LookupError(f"the module has no function {name!r}")
    return function  # type: ignore[no-any-return]  # of a module of the user


def called_with(function: Callable[..., Any], task: AgentTask) -> dict[str, Any]:
    """Returns the arguments of a function for a task: a parameter that is annotated with `AgentTask` gets the task,
    each other one the field of its name. Raises: TypeError for a parameter without a field or default."""
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.annotation in (AgentTask, AgentTask.__name__):
            arguments[name] = task
        elif name in task.fields:
            arguments[name] = task.fields[name]
        elif parameter.default is parameter.empty:
            raise TypeError(f"the function has the parameter {name!r}, but the agent's task only {sorted(task.fields)}")
    return arguments


def _become_agent(start: Start, clients: Sequence[tuple[str, Any]], server: int) -> NoReturn:
    status = 1
    folder = Path(start.folder)
    try:
        os.setsid()
        end_with_parent(server)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for target, name in enumerate(OUTPUTS, start=1):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), target)
        os.closerange(3, 1024)
        mapped_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        for kind, value in (
            (resource.RLIMIT_FSIZE, start.file_bytes),
            (resource.RLIMIT_AS, mapped_bytes + start.memory_bytes),
        ):
            resource.setrlimit(kind, (value, value))
        del os.environ["PYTHONPATH"]  # programs that the agent starts have their own
        os.environ.update(start.task.environment)
        point_clients(clients, start.task.environment)
        os.chdir(folder / WORK)
        status = _run(start)
    except BaseException as problem:  # becomes the exit status, as in the interpreter
        traceback.print_exception(problem.with_traceback(_of_agent(problem.__traceback__)))
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _run(start: Start) -> int:
    """Calls the function and writes its value; returns the exit status."""
    try:
        function = function_named(start.function)
        value = function(**called_with(function, start.task))
        if inspect.isawaitable(value):
            value = asyncio.run(_awaited(value))
        Path(start.folder, VALUE).write_text(json.dumps(value))
    except SystemExit as problem:
        return problem.code if isinstance(problem.code, int) else int(problem.code is not None)
    return 0


def _of_agent(frames: TracebackType | None) -> TracebackType | None:
    """Returns the frames of the agent: those after the last of this module, or all when there are no others."""
    own = frames
    while own is not None and own.tb_frame.f_code.co_filename == __file__:
        own = own.tb_next
    return own or frames


async def _awaited(value: Any) -> Any:
    return await value


if __name__ == "__main__":
    main()
