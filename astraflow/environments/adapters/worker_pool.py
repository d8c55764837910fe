"""Worker processes and the episodes in them."""

import asyncio
from collections.abc import Awaitable, Callable

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.environments.adapters.worker_process import WorkerProcess


class WorkerPool:
    """Workers and the episodes in them. A worker that cannot be used is replaced by the next episode."""

    def __init__(
        self, start: Callable[[], Awaitable[WorkerProcess]], *, workers: int, episodes_per_worker: int
    ) -> None:
        """start: starts a worker. Raises: InvalidInput, Unavailable."""
        self._start = start
        self._count = workers
        self._workers: list[WorkerProcess] = []
        self._free = asyncio.Semaphore(workers * episodes_per_worker)
        self._replacing = asyncio.Lock()

    async def start(self) -> None:
        """Starts all workers at once."""
        starts = [asyncio.ensure_future(self._start()) for _ in range(self._count)]
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
                self._workers[index] = await self._start()
            except (InvalidInput, Unavailable) as problem:
                raise RolloutFailed(
                    f"cannot begin an episode: a worker ended and another one does not start: {problem}",
                    boundary=Boundary.ENVIRONMENT,
                    code="environment.worker_not_replaced",
                ) from problem
            await worker.stop()
