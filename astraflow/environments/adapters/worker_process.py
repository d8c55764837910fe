"""Parent's side of one worker process: requests over a pipe, with a time limit after which the process is killed."""

import asyncio
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import astraflow
from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.environments.adapters.worker import MAX_LINE_BYTES
from astraflow.runtime.child_environment import PYTHON_VARIABLES, child_environment

_STDERR_LINES = 20
_STDERR_CHARACTERS = 500
"""Maximum length of a line of standard error in a message. Characters."""
_PACKAGES = str(Path(astraflow.__file__).parents[1])
_VARIABLES = (
    "ALFWORLD_DATA", "CUDA_VISIBLE_DEVICES", "HF_HOME", "JAVA_HOME", "JDK_JAVA_OPTIONS", "OMP_NUM_THREADS",
    "XDG_CACHE_HOME",
)  # fmt: skip
"""Variables that environments use, beside those of every program."""
_STOP_S = 5.0
"""Seconds for an idle worker to close its environments."""


class WorkerProcess:
    """A process with environments. Created by `start_worker`.

    A request that is not answered in time, an answer that is too long or not JSON, and the end of the process fail all
    open requests and all later ones.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.episodes = 0
        """Open episodes, counted by the pool."""
        self._process = process
        self._numbers = count()
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._failure: tuple[str, str] | None = None
        """Code and cause, once the process cannot be used any more."""
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._readers = [asyncio.create_task(self._read_answers()), asyncio.create_task(self._read_stderr())]

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its process group."""
        return self._process.pid

    @property
    def is_usable(self) -> bool:
        """Returns whether it can take requests."""
        return self._failure is None and self._process.returncode is None

    @property
    def output(self) -> str:
        """Last lines of standard error."""
        return " | ".join(self._stderr)

    async def request(self, operation: str, values: Mapping[str, Any], *, limit_s: float) -> Any:
        """Returns the result of a request. A cancelled request keeps its time limit.

        Raises: InvalidInput when the environment refuses the values; RolloutFailed at the boundary `environment`.
        """
        if self._failure is not None:
            raise self._failed()
        number = next(self._numbers)
        line = json.dumps({"number": number, "operation": operation, **values}, ensure_ascii=True).encode() + b"\n"
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        cause = f"no answer to `{operation}` within {limit_s:g} s"
        timer = asyncio.get_running_loop().call_later(limit_s, self._fail, "environment.worker_timeout", cause)
        answer.add_done_callback(lambda _: timer.cancel())
        answer.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # retrieved, also when the caller was cancelled
        self._pending[number] = answer
        if self._process.stdin is not None:
            with suppress(ConnectionError):  # the reader of answers reports the end of the process
                self._process.stdin.write(line)
                await self._process.stdin.drain()
        return await asyncio.shield(answer)

    async def stop(self) -> None:
        """Ends the process: by the end of its input, or by a signal when it does not end soon. Idempotent."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self.is_usable and not self._pending:
            with suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await self._process.wait()
        self._fail("environment.worker_died", "the worker was stopped")
        await self._process.wait()
        await asyncio.gather(*self._readers, return_exceptions=True)

    def _fail(self, code: str, cause: str) -> None:
        if self._failure is None:
            self._failure = (code, cause)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        pending, self._pending = self._pending, {}
        for answer in pending.values():
            if not answer.done():
                answer.set_exception(self._failed())

    def _failed(self) -> RolloutFailed:
        code, cause = self._failure or ("environment.worker_died", "it ended")
        output = f" (its output: {self.output})" if self._stderr else ""
        return RolloutFailed(
            f"cannot continue the episode: worker {self.pid} is gone: {cause}{output}; the next episode gets another "
            "worker",
            boundary=Boundary.ENVIRONMENT,
            code=code,
        )

    async def _read_answers(self) -> None:
        stream = self._process.stdout
        try:
            while stream is not None and (line := await stream.readline()):
                self._take(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
            self._fail("environment.worker_output", f"it sent an answer that is too long or not valid ({problem})")
        status = await self._process.wait()
        self._fail("environment.worker_died", f"it ended with status {status}")

    def _take(self, answer: dict[str, Any]) -> None:
        pending = self._pending.pop(answer["number"], None)
        if pending is None or pending.done():
            return
        if (error := answer.get("error")) is None:
            pending.set_result(answer["result"])
        elif error["is_invalid"]:
            pending.set_exception(InvalidInput(str(error["message"]), code=str(error["code"])))
        else:
            pending.set_exception(
                RolloutFailed(str(error["message"]), boundary=Boundary.ENVIRONMENT, code=str(error["code"]))
            )

    async def _read_stderr(self) -> None:
        stream = self._process.stderr
        rest = b""
        while stream is not None and (chunk := await stream.read(2**16)):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-_STDERR_CHARACTERS:]
            self._stderr.extend(line.decode(errors="replace")[-_STDERR_CHARACTERS:] for line in lines if line.strip())


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
    try:
        process = await asyncio.create_subprocess_exec(
            python or sys.executable,
            "-m",
            "astraflow.environments.adapters.worker",
            str(os.getpid()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=MAX_LINE_BYTES,
            start_new_session=True,
            env=child_environment((*PYTHON_VARIABLES, *_VARIABLES, *variables), PYTHONPATH=path),
        )
    except OSError as problem:
        raise Unavailable(
            f"cannot start a worker: {python!r}: {problem.strerror}; give the path of a Python interpreter",
            code="environment.worker_not_started",
        ) from problem
    worker = WorkerProcess(process)
    try:
        values = {"spec": dict(spec), "is_game": is_game, "episodes": episodes}
        await worker.request("open", values, limit_s=limit_s)
    except RolloutFailed as problem:
        await worker.stop()
        raise Unavailable(
            f"cannot start a worker: {problem}; its output: {worker.output or 'none'}",
            code="environment.worker_not_started",
        ) from problem
    except BaseException:
        await worker.stop()
        raise
    return worker
