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

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.rollouts.failures import RolloutFailed
from astraflow.environments.adapters.worker_pool import PoolOptions, WorkerPool
from astraflow.environments.adapters.worker_process import WorkerProcess, opened
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


class WorkerOptions(ForeignOptions, PoolOptions):
    """Processes in which episodes run."""


class _SupervisedProcess(RequestProcess):
    """Supervisor of a bridge: it ends all processes below it, also those that left its group."""

    def kill(self) -> None:
        """Makes the supervisor kill its tree and end. Idempotent."""
        if self.code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, SIGTERM)


def foreign_pool(kind: str, options: WorkerOptions, values: Mapping[str, Any]) -> WorkerPool:
    """Returns a pool of processes, not started, of one environment of another project. Each gets `values` first.

    `start` of the pool raises InvalidInput when the package is not installed or refuses the values; Unavailable.
    """

    async def start() -> WorkerProcess:
        environment = find_environment(kind, options.environment)
        temporary = await asyncio.to_thread(tempfile.mkdtemp, prefix="astraflow-environment-")
        process = await _SupervisedProcess.spawn_answering(
            *(sys.executable, "-I", "-S", supervised.__file__, str(os.getpid()), temporary),
            *_command(environment),
            environment=_variables(environment, options.variables, TMPDIR=temporary),
            max_answer_bytes=_MAX_ANSWER_BYTES,
            keeps_errors=True,
        )
        return await opened(process, values, limit_s=options.start_s)

    return WorkerPool(start, options)


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
