"""Pool of warm worker processes for calls that may hang or use up memory, such as computer algebra on hostile texts."""

import asyncio
import json
import os
import signal
import sys
from typing import Any

from astraflow.contract.errors import AstraFlowError, RateLimited, Unavailable
from astraflow.rewards.workers.process import __name__ as worker_module
from astraflow.runtime.child_environment import PYTHON_VARIABLES, child_environment
from astraflow.runtime.logs import get_logger

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
        self._stall_s = max(MIN_STALL_S, limit_s * STALL_FACTOR)
        self._command = ("-P", "-m", worker_module, function, str(limit_s), str(self._stall_s), str(memory_bytes))
        self._max_waiting = max_waiting
        self._workers = [_Worker(self._command) for _ in range(workers)]
        self._idle: asyncio.Queue[_Worker] = asyncio.Queue()
        self._restarts: set[asyncio.Task[None]] = set()
        self._waiting = 0
        self.killed = 0
        """Calls that were ended because they used up their processor time. Count."""
        self.lost = 0
        """Workers that ended by themselves, were killed by something else, or stalled. Count."""

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the running workers."""
        return [worker.process.pid for worker in self._workers if worker.process is not None]

    async def start(self) -> None:
        """Starts all workers. Raises: Unavailable when one does not start."""
        await asyncio.gather(*(worker.start() for worker in self._workers))
        for worker in self._workers:
            self._idle.put_nowait(worker)

    async def close(self) -> None:
        """Kills the workers. Idempotent."""
        for restart in self._restarts:
            restart.cancel()
        await asyncio.gather(*self._restarts, return_exceptions=True)
        await asyncio.gather(*(worker.kill() for worker in self._workers))
        self._idle = asyncio.Queue()

    async def call(self, argument: object) -> Any:
        """Returns the function's result.

        Raises: CallKilled beyond its processor time; CallFailed when the function raised; Unavailable when no worker
        completes the call; RateLimited when too many calls wait.
        """
        line = json.dumps(argument).encode() + b"\n"
        for _ in range(ATTEMPTS):
            reply = await self._call_once(line)
            if reply is None:
                continue
            if "error" in reply:
                raise CallFailed(f"cannot complete the call: {reply['error']}", code="worker.call_failed")
            return reply["result"]
        raise Unavailable(
            f"cannot complete the call: {ATTEMPTS} worker processes ended or stalled before they replied; check the "
            "memory of the machine and its log of killed processes",
            code="worker.lost",
        )

    async def _call_once(self, line: bytes) -> dict[str, Any] | None:
        """Returns the reply of one worker, None when it ended without one."""
        worker = await self._idle_worker()
        has_replied = False
        try:
            if not worker.is_alive:
                await worker.start()
            async with asyncio.timeout(self._stall_s):
                reply = await worker.exchange(line)
                has_replied = reply is not None
                has_used_its_time = not has_replied and await worker.has_used_its_time()
            if has_used_its_time:
                self.killed += 1
                raise CallKilled
            self.lost += reply is None
            return reply
        except TimeoutError:
            self.lost += 1
            return None
        finally:
            if has_replied:
                self._idle.put_nowait(worker)
            else:
                self._replace(worker)

    async def _idle_worker(self) -> "_Worker":
        if self._waiting >= self._max_waiting:
            raise RateLimited(
                f"cannot queue the call: {self._waiting} calls wait for {len(self._workers)} workers; raise `workers`, "
                "or lower the capacity of the node",
                code="worker.queue_full",
            )
        self._waiting += 1
        try:
            return await self._idle.get()
        finally:
            self._waiting -= 1

    def _replace(self, worker: "_Worker") -> None:
        restart = asyncio.ensure_future(self._restart(worker))
        self._restarts.add(restart)
        restart.add_done_callback(self._restarts.discard)

    async def _restart(self, worker: "_Worker") -> None:
        try:
            await worker.kill()
            await worker.start()
        except Unavailable as problem:  # the next call tries again, and reports it
            log.warning("worker_not_restarted", problem=str(problem))
        self._idle.put_nowait(worker)


class _Worker:
    """One process. At most one call runs in it."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command
        self.process: asyncio.subprocess.Process | None = None

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def start(self) -> None:
        """Starts the process and waits until its function is imported. Raises: Unavailable."""
        path = os.pathsep.join(filter(None, sys.path))
        variables = child_environment(PYTHON_VARIABLES, PYTHONPATH=path, OMP_NUM_THREADS="1")
        try:
            async with asyncio.timeout(START_LIMIT_S):
                self.process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *self._command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    limit=MAX_REPLY_BYTES,
                    env=variables,
                )
                is_ready = await self.exchange(b"") is not None
        except (OSError, TimeoutError) as problem:
            await self.kill()
            raise _not_started(str(problem) or f"not ready after {START_LIMIT_S:g} s") from problem
        except BaseException:
            await self.kill()
            raise
        if not is_ready:
            await self.kill()
            raise _not_started("it ended while it imported its function")

    async def exchange(self, line: bytes) -> dict[str, Any] | None:
        """Sends a line and returns the reply, None when the process ended."""
        process = self.process
        if process is None or process.stdin is None or process.stdout is None:
            return None
        try:
            process.stdin.write(line)
            await process.stdin.drain()
            reply = await process.stdout.readuntil(b"\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            return None
        parsed: dict[str, Any] = json.loads(reply)
        return parsed

    async def has_used_its_time(self) -> bool:
        """Returns whether the kernel ended the process because its processor time was used up."""
        return self.process is not None and await self.process.wait() == -signal.SIGPROF

    async def kill(self) -> None:
        """Kills the process and waits for its end. Idempotent."""
        process = self.process
        if process is None:
            return
        if process.returncode is None:
            try:
                process.kill()
            except ProcessLookupError:  # it ended meanwhile
                log.debug("worker_had_ended", pid=process.pid)
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()
        if self.process is process:
            self.process = None


def _not_started(cause: str) -> Unavailable:
    return Unavailable(
        f"cannot start a worker process: {cause}; read the error that it printed above", code="worker.not_started"
    )
