"""Agent programs that are Python functions of one's own, each call in a process of its own."""

import asyncio
import inspect
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

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
from astraflow.agents.programs.fork_server import OUTPUTS, VALUE, WORK, Start, function_named
from astraflow.agents.programs.fork_server import __name__ as server_module
from astraflow.agents.programs.sdk_clients import UNSET_KEY, UNSET_URL
from astraflow.agents.proxy.server import environment as client_environment
from astraflow.contract.errors import InternalError, InvalidInput
from astraflow.contract.values import Json
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.folders.contained_files import contained_bytes
from astraflow.runtime.plugins import PLUGINS_VARIABLE, import_named_plugins
from astraflow.runtime.processes.child import PYTHON_VARIABLES, child_environment
from astraflow.runtime.processes.requests import ProcessLost, RequestProcess
from astraflow.runtime.untrusted_json import parsed_json
from astraflow.sandbox.base import Command, JobResult, Outcome

_START_S = 120.0
"""Longest time in which the modules are imported, on a busy machine."""
_STOP_S = 5.0
"""Longest time in which the process ends its agents, with what they started."""
_ANSWER_BYTES = 2**16


class CallableOptions(Config):
    """Function, and the limits of its processes."""

    function: Annotated[str, SettableBy.RECIPE] = Field(pattern=r"^[\w.]+:\w+$")
    """Function as `module:name`, in a module that `--plugin` or `ASTRAFLOW_PLUGINS` loads; synchronous or not. Its
    parameters are named as fields of the prompt; one with the annotation `AgentTask` gets the whole task."""
    concurrency: int = Field(default=16, ge=1, le=1024)
    """Processes at once on a node; further episodes wait."""
    memory_mib: int = Field(default=2048, ge=64)
    """Address space of a process, in addition to that of the imported modules. MiB."""
    disk_mib: int = Field(default=64, ge=1)
    """Largest file that an agent may write. MiB."""
    variables: Annotated[tuple[str, ...], SettableBy.RECIPE] = ()
    """Names of further environment variables of the node that agents get, such as the key of a search service."""


@programs.register("callable", options=CallableOptions)
class CallableProgram:
    """Calls a function for each episode, in a fork of a process that has imported its module.

    The environment of the process has base URLs and keys of the session, so that a script which reads them from there
    works unchanged. The function is code of one's own and not isolated: it can do what the node's user can.
    """

    features = ProgramFeatures(has_files=True, has_value=True)

    def __init__(self, options: CallableOptions) -> None:
        import_named_plugins()
        _checked_function(options.function)
        self._options = options
        self._slots = asyncio.Semaphore(options.concurrency)
        self._server = _ForkServer(options.variables)
        self._folder: Path | None = None

    async def start(self) -> None:
        """Imports the modules in a process. Raises: InvalidInput when it ends."""
        self._folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="astraflow-agents-"))
        await self._server.start()

    async def close(self) -> None:
        """Ends all agents."""
        await self._server.close()
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
            self._folder = None

    @asynccontextmanager
    async def open(self, task: AgentTask) -> AsyncIterator[RunningProgram]:
        """Waits for a free process."""
        if self._folder is None:
            raise InternalError("cannot call an agent: the program is not started", code="agent.program_not_started")
        options = self._options
        async with self._slots:
            folder = Path(tempfile.mkdtemp(dir=self._folder))
            try:
                (folder / WORK).mkdir()
                (folder / WORK / TASK_FILE).write_text(json.dumps(dict(task.fields)))
                start = Start(
                    function=options.function,
                    folder=str(folder),
                    task=task,
                    memory_bytes=options.memory_mib * 2**20,
                    file_bytes=options.disk_mib * 2**20,
                )
                yield _RunningCallable(self._server, start)
            finally:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


class _RunningCallable:
    def __init__(self, server: "_ForkServer", start: Start) -> None:
        self._server = server
        self._start = start
        self._folder = Path(start.folder)

    async def run(self, *, timeout_s: float) -> ProgramExit:
        """Calls the function and waits for its end."""
        try:
            async with asyncio.timeout(timeout_s):
                status = await self._server.call(self._start)
        except TimeoutError:
            return await asyncio.to_thread(self._exit, Outcome.TIMEOUT, None)
        if status < 0:
            return await asyncio.to_thread(self._exit, Outcome.CRASHED, None)
        return await asyncio.to_thread(self._exit, Outcome.FAILED if status else Outcome.PASSED, status)

    async def read(self, path: str) -> str | None:
        """Returns the text of a file of the working directory."""
        return await asyncio.to_thread(_text, self._folder / WORK, path)

    async def execute(self, command: Command, *, timeout_s: float) -> JobResult:
        """Further commands cannot run after a function. Raises: InternalError."""
        raise InternalError("cannot run a command: the agent is a function", code="agent.no_commands")

    def _exit(self, outcome: Outcome, status: int | None) -> ProgramExit:
        stdout, stderr = (_text(self._folder, name) or "" for name in OUTPUTS)
        value: Json = None
        if status == 0:
            with suppress(ValueError):  # the agent wrote to the file: it returned no value
                value = parsed_json(_text(self._folder, VALUE) or "null", limit=MAX_OUTPUT_BYTES)
        return ProgramExit(outcome=outcome, exit_status=status, stdout=stdout, stderr=stderr, value=value)


class _ForkServer:
    """Connection to the fork server, which is started again when it ends."""

    def __init__(self, variables: tuple[str, ...]) -> None:
        self._variables = variables
        self._process: RequestProcess | None = None
        self._starting = asyncio.Lock()

    async def start(self) -> RequestProcess:
        """Starts the process, unless it runs; returns it. Raises: InvalidInput."""
        async with self._starting:
            if self._process is not None and self._process.is_usable:
                return self._process
            await self.close()
            environment = child_environment(
                (*PYTHON_VARIABLES, *self._variables),
                **client_environment(UNSET_URL, UNSET_KEY),
                PYTHONPATH=os.pathsep.join(filter(None, sys.path)),
                OMP_NUM_THREADS="1",
            )
            command = (sys.executable, "-P", "-m", server_module)
            self._process = await RequestProcess.spawn_answering(
                *command, environment=environment, max_answer_bytes=_ANSWER_BYTES
            )
            try:
                answer = await self._process.request({"operation": "import"}, limit_s=_START_S)
                cause = answer.get("error", "")
            except ProcessLost as lost:
                cause = f"the process that imports their modules was lost: {lost}"
            if cause:
                await self.close()
                raise InvalidInput(
                    f"cannot start agents: {cause}; correct the module, or read its traceback in the log of the node",
                    code="agent.modules_not_imported",
                )
            return self._process

    async def close(self) -> None:
        """Ends the process with all agents. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            await process.stop(_STOP_S)

    async def call(self, start: Start) -> int:
        """Runs an agent; returns its exit status, or the number of its signal, negative. Cancelling it ends the agent.

        Raises: RolloutFailed at the boundary `environment` when the fork server ended.
        """
        process = await self.start()
        number, ended = process.send({"start": asdict(start)})
        try:
            return int((await asyncio.shield(ended))["status"])
        except ProcessLost as lost:
            raise program_failure(
                "the process that forks agents ended", "check the memory of the machine", code="agent.server_lost"
            ) from lost
        except asyncio.CancelledError:
            if not ended.done():
                process.send({"kill": number})
                await asyncio.wait({ended})
            raise


def _checked_function(entry: str) -> Callable[..., Any]:
    """Returns the function. Raises: InvalidInput."""
    try:
        function = function_named(entry)
        inspect.signature(function)
    except (LookupError, ValueError) as problem:
        raise InvalidInput(
            f"cannot use {entry!r} as an agent: {problem.args[0]}; write module:function, and load the module with "
            f"--plugin or {PLUGINS_VARIABLE} in every process",
            code="agent.function_not_found",
        ) from problem
    return function


def _text(folder: Path, path: str) -> str | None:
    """Returns the end of the text of a regular file that an agent left below a folder; None for anything else, such as
    a link that leads out of it."""
    try:
        return contained_bytes(folder, path, limit=MAX_OUTPUT_BYTES, is_end=True).decode(errors="replace")
    except (OSError, ValueError):
        return None
