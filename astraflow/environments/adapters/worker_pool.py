"""Worker processes and the episodes in them."""

import asyncio
from collections.abc import Awaitable, Callable

from pydantic import Field

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.environments.adapters.worker_process import WorkerProcess
from astraflow.environments.base import EnvironmentLimits
from astraflow.runtime.config.base import Config


class PoolOptions(Config):
    """Worker processes."""

    workers: int = Field(default=2, ge=1, le=256)
    """Processes."""
    episodes_per_worker: int = Field(default=1, ge=1, le=1024)
    """Episodes that a worker runs at once. With 1, an episode that hangs or crashes disturbs no other."""
    start_s: float = Field(default=120.0, gt=0)
    """Time for a worker to start, in seconds."""


class StepOptions(PoolOptions):
    """Worker processes in which the policy acts step by step."""

    begin_s: float = Field(default=60.0, gt=0)
    """Time for the begin of an episode; a worker that needs longer is killed."""
    act_s: float = Field(default=30.0, gt=0)
    """Time for an action; a worker that needs longer is killed."""


class WorkerPool:
    """Workers and the episodes in them. A worker that cannot be used is replaced by the next episode."""

    def __init__(self, start: Callable[[], Awaitable[WorkerProcess]], options: PoolOptions) -> None:
        """start: starts a worker. Raises: InvalidInput, Unavailable."""
        self._start = start
        self._count = options.workers
        self._workers: list[WorkerProcess] = []
        self._free = asyncio.Semaphore(options.workers * options.episodes_per_worker)
        self._replacing = asyncio.Lock()

    async def start(self) -> None:
        """Starts all workers at once. Raises: InvalidInput or Unavailable when the environment does not work."""
        starts = [asyncio.ensure_future(self._start()) for _ in range(self._count)]
        outcomes = await asyncio.gather(*starts, return_exceptions=True)
        self._workers = [outcome for outcome in outcomes if isinstance(outcome, WorkerProcess)]
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def stop(self) -> None:
        """Stops all workers."""
        await asyncio.gather(*(worker.stop() for worker in self._workers))
        self._workers = []

    async def acquire(self) -> WorkerProcess:
        """Returns the usable worker with the fewest episodes, once one has room. Raises: InvalidInput before
        `start` and after `stop`; RolloutFailed."""
        await self._free.acquire()
        try:
            async with self._replacing:
                if not self._workers:
                    raise InvalidInput(
                        "cannot begin an episode: its workers are not started; start the factory first",
                        code="environment.not_started",
                    )
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
                self._workers[index] = await self._start()
            except (InvalidInput, Unavailable) as problem:
                raise RolloutFailed(
                    f"cannot begin an episode: a worker ended and another one does not start: {problem}",
                    boundary=Boundary.ENVIRONMENT,
                    code="environment.worker_not_replaced",
                ) from problem
            await worker.stop()


class PooledFactory:
    """Factory of environments or games in the workers of a pool."""

    def __init__(self, pool: WorkerPool, options: StepOptions) -> None:
        self._pool = pool
        self._options = options

    @property
    def limits(self) -> EnvironmentLimits:
        """As many environments as the workers run. A worker is killed before a workflow would stop waiting."""
        options = self._options
        return EnvironmentLimits(
            concurrency=options.workers * options.episodes_per_worker,
            begin_s=options.begin_s + options.start_s + 1.0,
            act_s=options.act_s + 1.0,
        )

    async def start(self) -> None:
        """Starts the workers. Raises: InvalidInput or Unavailable when the environment does not work in them."""
        await self._pool.start()

    async def close(self) -> None:
        """Stops the workers and everything below them."""
        await self._pool.stop()

    async def check(self) -> None:
        """Nothing to do: the start of a worker has checked its environment."""
