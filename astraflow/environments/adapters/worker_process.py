"""Parent's side of one worker process: requests over a pipe, with a time limit after which the process is killed."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import astraflow
from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.environments.adapters.worker import MAX_LINE_BYTES
from astraflow.runtime.processes.child import PYTHON_VARIABLES, child_environment
from astraflow.runtime.processes.requests import Loss, ProcessLost, RequestProcess
from astraflow.runtime.processes.supervised import parent_variable

_PACKAGES = str(Path(astraflow.__file__).parents[1])
_VARIABLES = (
    "ALFWORLD_DATA", "CUDA_VISIBLE_DEVICES", "HF_HOME", "JAVA_HOME", "JDK_JAVA_OPTIONS", "OMP_NUM_THREADS",
    "XDG_CACHE_HOME",
)  # fmt: skip
"""Variables that environments use, beside those of every program."""
_STOP_S = 5.0
"""Seconds for an idle worker to close its environments."""
_CODES = {
    Loss.ENDED: "environment.worker_died",
    Loss.TIMEOUT: "environment.worker_timeout",
    Loss.OUTPUT: "environment.worker_output",
}


class WorkerProcess:
    """A process with environments. Created by `opened`."""

    def __init__(self, process: RequestProcess) -> None:
        self.episodes = 0
        """Open episodes, counted by the pool."""
        self._process = process

    @property
    def is_usable(self) -> bool:
        """Returns whether it can take requests."""
        return self._process.is_usable

    async def request(self, operation: str, values: Mapping[str, Any], *, limit_s: float) -> Any:
        """Returns the result of a request. A cancelled request keeps its time limit.

        Raises: InvalidInput when the environment refuses the values; RolloutFailed at the boundary `environment`.
        """
        try:
            answer = await self._process.request({"operation": operation, **values}, limit_s=limit_s)
        except ProcessLost as lost:
            output = f" (its output: {self._process.last_errors})" if self._process.last_errors else ""
            raise _failure(
                f"cannot continue the episode: worker {self._process.pid} is gone: {lost}{output}; the next episode "
                "gets another worker",
                code=_CODES[lost.loss],
            ) from lost
        if (error := answer.get("error")) is None:
            return answer["result"]
        if error["is_invalid"]:
            raise InvalidInput(str(error["message"]), code=str(error["code"]))
        raise _failure(str(error["message"]), code=str(error["code"]))

    async def stop(self) -> None:
        """Ends the process by the end of its input; by a signal when it is busy or does not end soon. Idempotent."""
        await self._process.stop(0.0 if self._process.is_busy else _STOP_S)


async def start_worker(
    spec: Mapping[str, Any],
    *,
    is_game: bool,
    python: str,
    episodes: int,
    limit_s: float,
    variables: Sequence[str] = (),
) -> WorkerProcess:
    """Starts a worker and waits until its environment works. spec: of an environment, or of a game. python:
    interpreter; empty: this one. variables: names of variables of this process that it gets beside the usual ones.

    Raises: InvalidInput for a specification that the worker refuses; Unavailable when it does not start in time.
    """
    path = os.pathsep.join([_PACKAGES, *filter(None, [os.environ.get("PYTHONPATH", "")])])
    environment = child_environment((*PYTHON_VARIABLES, *_VARIABLES, *variables), PYTHONPATH=path, **parent_variable())
    try:
        process = await RequestProcess.spawn_answering(
            *(python or sys.executable, "-m", "astraflow.environments.adapters.worker"),
            environment=environment,
            max_answer_bytes=MAX_LINE_BYTES,
            keeps_errors=True,
        )
    except OSError as problem:
        raise Unavailable(
            f"cannot start a worker: {python!r}: {problem.strerror}; give the path of a Python interpreter",
            code="environment.worker_not_started",
        ) from problem
    return await opened(process, {"spec": dict(spec), "is_game": is_game, "episodes": episodes}, limit_s=limit_s)


async def opened(process: RequestProcess, values: Mapping[str, Any], *, limit_s: float) -> WorkerProcess:
    """Returns the worker in a process after its first request, `open`; ends the process when that fails.

    Raises: InvalidInput when the worker refuses the values; Unavailable when it does not answer in time.
    """
    worker = WorkerProcess(process)
    try:
        await worker.request("open", values, limit_s=limit_s)
    except RolloutFailed as problem:
        await worker.stop()
        raise Unavailable(f"cannot start a worker: {problem}", code="environment.worker_not_started") from problem
    except BaseException:
        await worker.stop()
        raise
    return worker


def _failure(message: str, *, code: str) -> RolloutFailed:
    return RolloutFailed(message, boundary=Boundary.ENVIRONMENT, code=code)
