"""Processes in the interpreters of other projects' packages."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from signal import SIGTERM
from typing import Annotated, Any

from pydantic import Field

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.rollouts.failures import RolloutFailed
from astraflow.environments.adapters.worker_pool import WorkerPool
from astraflow.environments.adapters.worker_process import WorkerProcess
from astraflow.environments.foreign.installation import InstalledEnvironment, find_environment
from astraflow.environments.foreign.releases import release_of
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.processes import supervised
from astraflow.runtime.processes.child import child_environment
from astraflow.runtime.processes.requests import RequestProcess

_MAX_ANSWER_BYTES = 32 * 2**20
_CANCEL_S = 1.0
"""Time for an episode to end when it is cancelled; then its process is killed with everything below it."""
_LIST_S = 300.0
_VARIABLES = ("HF_HOME", "OMP_NUM_THREADS", "XDG_CACHE_HOME")


class ForeignOptions(Config):
    """Virtual environment of the package, and the processes in it."""

    environment: Annotated[str, SettableBy.RECIPE] = ""
    """Name of the virtual environment that `astraflow environments install` made; empty: that of the kind."""
    variables: Annotated[tuple[str, ...], SettableBy.RECIPE] = ()
    """Names of environment variables of the node that the processes get, such as that of a key. Others with secrets do
    not reach them."""


class WorkerOptions(ForeignOptions):
    """Processes in which episodes run."""

    workers: int = Field(default=2, ge=1, le=256)
    """Processes."""
    episodes_per_worker: int = Field(default=1, ge=1, le=1024)
    """Episodes that a process runs at once. With 1, an episode that hangs or crashes disturbs no other."""
    start_s: float = Field(default=120.0, gt=0)
    """Time for a process to start, in seconds."""


class _SupervisedProcess(RequestProcess):
    """Supervisor of a bridge: it ends all processes below it, also those that left its group."""

    def kill(self) -> None:
        """Makes the supervisor kill its tree and end. Idempotent."""
        if self.code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, SIGTERM)


class ForeignWorkers:
    """Worker processes of one environment of another project. A `ManagedPlugin`."""

    def __init__(self, kind: str, options: WorkerOptions, values: Mapping[str, Any]) -> None:
        """values: of the request `open`."""
        self._kind = kind
        self._options = options
        self._values = values
        self.pool = WorkerPool(
            self._start_one, workers=options.workers, episodes_per_worker=options.episodes_per_worker
        )

    async def start(self) -> None:
        """Starts the processes. Raises: InvalidInput when the package is not installed or refuses the options;
        Unavailable."""
        await self.pool.start()

    async def close(self) -> None:
        """Ends the processes and everything below them."""
        await self.pool.stop()

    async def check(self) -> None:
        """Starts a process, which loads the environment, and ends it. Raises: InvalidInput, Unavailable."""
        worker = await self._start_one()
        await worker.stop()

    async def _start_one(self) -> WorkerProcess:
        environment = find_environment(self._kind, self._options.environment)
        temporary = await asyncio.to_thread(tempfile.mkdtemp, prefix="astraflow-environment-")
        process = await _SupervisedProcess.spawn_answering(
            *(sys.executable, "-I", "-S", supervised.__file__, str(os.getpid()), temporary),
            *_command(environment),
            environment=_variables(environment, self._options.variables, TMPDIR=temporary),
            max_answer_bytes=_MAX_ANSWER_BYTES,
            keeps_errors=True,
        )
        worker = WorkerProcess(process)
        try:
            await worker.request("open", self._values, limit_s=self._options.start_s)
        except RolloutFailed as problem:
            await worker.stop()
            raise Unavailable(
                f"cannot start an environment of {self._kind!r}: {problem}", code="environment.worker_not_started"
            ) from problem
        except BaseException:
            await worker.stop()
            raise
        return worker


async def cancel(worker: WorkerProcess, episode: str) -> None:
    """Ends an episode, if need be with its process; returns when nothing of it is left."""
    if worker.is_usable:
        with suppress(RolloutFailed):  # the process was killed
            await worker.request("cancel", {"episode": episode}, limit_s=_CANCEL_S)


def answer_of(kind: str, options: ForeignOptions, request: Mapping[str, Any]) -> Any:
    """Returns the answer of a process that ends with it. Blocks for seconds.

    Raises: InvalidInput when the package is not installed or refuses the request; Unavailable.
    """
    environment = find_environment(kind, options.environment)
    with tempfile.TemporaryDirectory(prefix="astraflow-environment-") as temporary:
        try:
            run = subprocess.run(  # noqa: S603 (a program of this package, in an interpreter that the user installed)
                (*_command(environment), json.dumps(dict(request))),
                capture_output=True,
                env=_variables(environment, options.variables, TMPDIR=temporary),
                timeout=_LIST_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise _no_answer(kind, str(problem)) from problem
    try:
        answer = json.loads(run.stdout)
    except ValueError as problem:
        raise _no_answer(kind, run.stderr.decode(errors="replace").strip()[-500:]) from problem
    if (error := answer.get("error")) is not None:
        kind_of_error = InvalidInput if error["is_invalid"] else Unavailable
        raise kind_of_error(str(error["message"]), code=str(error["code"]))
    return answer["result"]


def _no_answer(kind: str, cause: str) -> Unavailable:
    return Unavailable(
        f"cannot read the tasks of {kind!r}: {cause or 'its process ended without an answer'}; check its package and "
        "options",
        code="environment.no_tasks",
    )


def _command(environment: InstalledEnvironment) -> tuple[str, ...]:
    return (str(environment.python), "-s", str(release_of(environment.kind).bridge))


def _variables(environment: InstalledEnvironment, names: Sequence[str], **added: str) -> dict[str, str]:
    """Returns the variables of a process: those that programs need on any host, the named ones, and `added`."""
    programs = os.pathsep.join([str(environment.folder / "bin"), os.environ.get("PATH", os.defpath)])
    return child_environment((*_VARIABLES, *names), PATH=programs, PYTHONUNBUFFERED="1", **added)
