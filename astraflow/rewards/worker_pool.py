"""Pool of warm worker processes for calls that may hang or use up memory, such as computer algebra on hostile texts.

As a program it is such a worker, which ends with its parent. A timer of the kernel, without a handler, ends it when a
call uses up its processor time, so that nothing which the call does prevents it.
"""

import asyncio
import json
import os
import resource
import signal
import sys
from importlib import import_module
from typing import Any

from astraflow.contract.errors import AstraFlowError, RateLimited, Unavailable
from astraflow.runtime.logs import get_logger
from astraflow.runtime.processes.child import PYTHON_VARIABLES, child_environment
from astraflow.runtime.processes.requests import Answers, ProcessLost, RequestProcess
from astraflow.runtime.processes.supervised import end_with_parent, parent_variable

log = get_logger()

START_LIMIT_S = 120.0
"""Longest time in which a worker imports its function, on a busy machine. Seconds."""

MAX_REPLY_BYTES = 2**20
"""Longest reply of a worker. Bytes."""

ATTEMPTS = 3
"""Workers that a call is given to, when a worker ends by itself or is killed by something else. Count."""

STALL_FACTOR = 20.0
"""Wall time of a call, as a multiple of its processor time, after which its worker counts as stalled."""

MIN_STALL_S = 30.0
"""Shortest such wall time. Seconds."""


class CallKilled(Exception):
    """A call used up its processor time, and its worker was killed."""


class CallFailed(AstraFlowError):
    """The function raised an exception."""


class WorkerPool:
    """Calls a function in one of several processes, which import it once.

    The kernel ends a worker whose call uses more than `limit_s` of processor time, whatever it does; the process is
    replaced while the other workers continue. Time in which a call waits, for a worker or for a busy machine, does not
    count. A call that stalls, without using the processor, is ended from outside and given to another worker.

    function: `module:name` of a function from JSON to JSON. limit_s: processor time of a call. memory_bytes: address
    space of a worker; beyond it the function gets a MemoryError. max_waiting: calls that wait for a worker.
    """

    def __init__(
        self, function: str, *, workers: int, limit_s: float, memory_bytes: int = 2 * 2**30, max_waiting: int = 4096
    ) -> None:
        self._command = (sys.executable, "-P", "-m", __name__, function, str(limit_s), str(memory_bytes))
        self._stall_s = max(MIN_STALL_S, limit_s * STALL_FACTOR)
        self._workers = workers
        self._max_waiting = max_waiting
        self._processes: set[RequestProcess] = set()
        self._idle: asyncio.Queue[RequestProcess | None] = asyncio.Queue()
        """One for each worker that has no call; None for one that could not be replaced."""
        self._restarts: set[asyncio.Task[None]] = set()
        self._waiting = 0
        self.killed = 0
        """Calls that were ended because they used up their processor time. Count."""
        self.lost = 0
        """Workers that ended by themselves, were killed by something else, or stalled. Count."""

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the running workers."""
        return [process.pid for process in self._processes]

    async def start(self) -> None:
        """Starts all workers. Raises: Unavailable when one does not start."""
        starts = (self._started() for _ in range(self._workers))
        for started in await asyncio.gather(*starts, return_exceptions=True):
            if isinstance(started, BaseException):
                raise started
            self._idle.put_nowait(started)

    async def close(self) -> None:
        """Kills the workers. Idempotent."""
        for restart in self._restarts:
            restart.cancel()
        await asyncio.gather(*self._restarts, return_exceptions=True)
        await asyncio.gather(*(self._end(process) for process in tuple(self._processes)))
        self._idle = asyncio.Queue()

    async def call(self, argument: object) -> Any:
        """Returns the function's result.

        Raises: CallKilled beyond its processor time; CallFailed when the function raised; Unavailable when no worker
        completes the call; RateLimited when too many calls wait.
        """
        for _ in range(ATTEMPTS):
            try:
                answer = await self._answer(argument)
            except ProcessLost:
                self.lost += 1
                continue
            if "error" in answer:
                raise CallFailed(f"cannot complete the call: {answer['error']}", code="worker.call_failed")
            return answer["result"]
        raise Unavailable(
            f"cannot complete the call: {ATTEMPTS} worker processes ended or stalled before they replied; check the "
            "memory of the machine and its log of killed processes",
            code="worker.lost",
        )

    async def _answer(self, argument: object) -> dict[str, Any]:
        """Returns the answer of one worker. Raises: ProcessLost; CallKilled; Unavailable; RateLimited."""
        process = await self._idle_worker()
        has_answered = False
        try:
            if process is None or not process.is_usable:
                process = await self._started()
            answer = await process.request({"call": argument}, limit_s=self._stall_s)
            has_answered = True
            return answer
        except ProcessLost:
            if process is not None and process.code == -signal.SIGPROF:
                self.killed += 1
                raise CallKilled from None
            raise
        finally:
            if has_answered:
                self._idle.put_nowait(process)
            else:
                restart = asyncio.ensure_future(self._replace(process))
                self._restarts.add(restart)
                restart.add_done_callback(self._restarts.discard)

    async def _idle_worker(self) -> RequestProcess | None:
        if self._waiting >= self._max_waiting:
            raise RateLimited(
                f"cannot queue the call: {self._waiting} calls wait for {self._workers} workers; raise `workers`, "
                "or lower the capacity of the node",
                code="worker.queue_full",
            )
        self._waiting += 1
        try:
            return await self._idle.get()
        finally:
            self._waiting -= 1

    async def _replace(self, process: RequestProcess | None) -> None:
        other = None
        try:
            await self._end(process)
            other = await self._started()
        except Unavailable as problem:  # the next call tries again, and reports it
            log.warning("worker_not_restarted", problem=str(problem))
        self._idle.put_nowait(other)

    async def _started(self) -> RequestProcess:
        """Returns another worker, whose function is imported. Raises: Unavailable."""
        variables = child_environment(
            PYTHON_VARIABLES,
            PYTHONPATH=os.pathsep.join(filter(None, sys.path)),
            OMP_NUM_THREADS="1",
            **parent_variable(),
        )
        process = None
        try:
            process = await RequestProcess.spawn_answering(
                *self._command, environment=variables, max_answer_bytes=MAX_REPLY_BYTES
            )
            self._processes.add(process)
            await process.request({}, limit_s=START_LIMIT_S)
        except BaseException as problem:
            await self._end(process)
            if not isinstance(problem, OSError | ProcessLost):
                raise
            raise Unavailable(
                f"cannot start a worker process: {problem}; read the error that it printed above",
                code="worker.not_started",
            ) from problem
        return process

    async def _end(self, process: RequestProcess | None) -> None:
        if process is not None:
            self._processes.discard(process)
            await process.stop()


def main() -> None:
    """Serves the function `module:name` of the first argument; the others are processor seconds of a call, and bytes
    of memory. A request without a call asks whether the function is imported."""
    end_with_parent()
    function, limit_s, memory_bytes = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    answers = Answers()
    module, _, name = function.partition(":")
    call = getattr(import_module(module), name)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    for line in sys.stdin.buffer:
        request, answer = json.loads(line), {}
        if "call" in request:
            signal.setitimer(signal.ITIMER_PROF, limit_s)
            try:
                answer = {"result": call(request["call"])}
            except Exception as problem:  # any library, any text: the pool raises it again
                answer = {"error": f"{type(problem).__name__}: {problem}"[:500]}
            signal.setitimer(signal.ITIMER_PROF, 0)
        answers.send(request["number"], **answer)


if __name__ == "__main__":
    main()
