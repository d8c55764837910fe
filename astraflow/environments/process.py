"""Adapter that runs another environment in worker processes: for code that is unsafe for threads, blocks, crashes, or
needs another Python interpreter."""

import asyncio
from typing import Any
from uuid import uuid4

from pydantic import Field

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.failures import Boundary, RolloutFailed
from astraflow.contract.tasks import Prompt
from astraflow.environments import environments
from astraflow.environments.base import EnvironmentLimits, Observation
from astraflow.environments.messages import decode_observation, too_long
from astraflow.environments.worker_process import WorkerProcess, start_worker
from astraflow.runtime.config import Config


class ProcessOptions(Config):
    """Environment to run, and its worker processes."""

    of: dict[str, Any]
    """Specification of the environment."""
    workers: int = Field(default=2, ge=1, le=256)
    """Processes."""
    episodes_per_worker: int = Field(default=1, ge=1, le=1024)
    """Episodes that a worker runs at once. With 1, an episode that hangs or crashes disturbs no other."""
    python: str = ""
    """Interpreter of the workers, in whose environment `pip install astraflow` and the environment's packages are
    installed; empty: the interpreter of the node. Workers import the plugins that `ASTRAFLOW_PLUGINS` names."""
    start_s: float = Field(default=120.0, gt=0)
    """Time for a worker to start, in seconds."""
    begin_s: float = Field(default=60.0, gt=0)
    """Time for the begin of an episode; a worker that needs longer is killed."""
    act_s: float = Field(default=30.0, gt=0)
    """Time for an action; a worker that needs longer is killed."""


@environments.register("process", options=ProcessOptions)
class ProcessFactory:
    """Runs the environment `of` in worker processes. A worker that dies or hangs fails its episodes and is replaced."""

    def __init__(self, options: ProcessOptions) -> None:
        self._options = options
        if not options.python:
            environments.check(options.of)
        self._pool: _WorkerPool | None = None

    @property
    def limits(self) -> EnvironmentLimits:
        """As many environments as the workers run. The adapter kills before a workflow would stop waiting."""
        options = self._options
        return EnvironmentLimits(
            concurrency=options.workers * options.episodes_per_worker,
            begin_s=options.begin_s + options.start_s + 1.0,
            act_s=options.act_s + 1.0,
        )

    async def start(self) -> None:
        """Starts the workers. Raises: InvalidInput or Unavailable when the environment does not work in them."""
        self._pool = _WorkerPool(self._options)
        await self._pool.start()

    async def close(self) -> None:
        """Stops the workers."""
        if self._pool is not None:
            await self._pool.stop()
            self._pool = None

    def make(self) -> "ProcessEnvironment":
        """Returns a new environment. Raises: InvalidInput before `start`."""
        if self._pool is None:
            raise InvalidInput(
                "cannot make an environment: its workers are not started; start the factory first",
                code="environment.not_started",
            )
        return ProcessEnvironment(self._pool, self._options)

    async def check(self) -> None:
        """Starts a worker, whose environment checks itself; after `start` all workers have done so."""
        if self._pool is not None:
            return
        worker = await _start(self._options)
        await worker.stop()


class ProcessEnvironment:
    """Environment in a worker process."""

    def __init__(self, pool: "_WorkerPool", options: ProcessOptions) -> None:
        self._pool = pool
        self._options = options
        self._episode = uuid4().hex
        self._worker: WorkerProcess | None = None
        self._turn = 0

    async def begin(self, prompt: Prompt, seed: int) -> Observation:
        """Begins the episode in a free worker; waits for one."""
        self._worker = await self._pool.acquire()
        values = {"episode": self._episode, "prompt_id": prompt.id, "fields": dict(prompt.fields), "seed": seed}
        return decode_observation(await self._worker.request("begin", values, limit_s=self._options.begin_s))

    async def act(self, action: str) -> Observation:
        """Performs an action."""
        if self._worker is None:
            raise InvalidInput(
                "cannot act in the environment: it has not begun; call `begin` first", code="environment.not_begun"
            )
        if (answer := too_long(action)) is not None:
            return answer
        self._turn += 1
        values = {"episode": self._episode, "turn": self._turn, "action": action}
        return decode_observation(await self._worker.request("act", values, limit_s=self._options.act_s))

    async def close(self) -> None:
        """Closes the episode and frees its place in the worker."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        try:
            if worker.is_usable:
                await worker.request("close", {"episode": self._episode}, limit_s=self._options.act_s)
        except RolloutFailed:
            pass  # the worker is gone, and the episode with it
        finally:
            self._pool.release(worker)


class _WorkerPool:
    """Workers and the episodes in them. A worker that cannot be used is replaced by the next episode."""

    def __init__(self, options: ProcessOptions) -> None:
        self._options = options
        self._workers: list[WorkerProcess] = []
        self._free = asyncio.Semaphore(options.workers * options.episodes_per_worker)
        self._replacing = asyncio.Lock()

    async def start(self) -> None:
        """Starts all workers at once."""
        starts = [asyncio.create_task(_start(self._options)) for _ in range(self._options.workers)]
        outcomes = await asyncio.gather(*starts, return_exceptions=True)
        self._workers = [outcome for outcome in outcomes if isinstance(outcome, WorkerProcess)]
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def stop(self) -> None:
        """Stops all workers."""
        await asyncio.gather(*(worker.stop() for worker in self._workers))

    async def acquire(self) -> WorkerProcess:
        """Returns the usable worker with the fewest episodes, once one has room. Raises: RolloutFailed."""
        await self._free.acquire()
        try:
            async with self._replacing:
                await self._replace_unusable()
                worker = min(self._workers, key=lambda worker: worker.episodes)
                worker.episodes += 1
                return worker
        except BaseException:
            self._free.release()
            raise

    def release(self, worker: WorkerProcess) -> None:
        """Frees the place of an episode."""
        worker.episodes -= 1
        self._free.release()

    async def _replace_unusable(self) -> None:
        for index, worker in enumerate(self._workers):
            if worker.is_usable:
                continue
            try:
                self._workers[index] = await _start(self._options)
            except (InvalidInput, Unavailable) as problem:
                raise RolloutFailed(
                    f"cannot begin an episode: a worker ended and another one does not start: {problem}",
                    boundary=Boundary.ENVIRONMENT,
                    code="environment.worker_not_replaced",
                ) from problem
            await worker.stop()


async def _start(options: ProcessOptions) -> WorkerProcess:
    return await start_worker(
        options.of,
        python=options.python,
        episodes=options.episodes_per_worker,
        limit_s=options.start_s,
    )
