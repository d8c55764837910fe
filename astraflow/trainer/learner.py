"""A backend in its thread, whose steps are made durable."""

from collections.abc import Callable, Mapping

from astraflow.contract.batches import Batch
from astraflow.contract.errors import StorageFull
from astraflow.contract.weights import Probe
from astraflow.runtime.aio import retry
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.trainer.backends.base import Backend
from astraflow.trainer.checkpoint import Checkpoints, Progress
from astraflow.trainer.worker import Worker
from astraflow.weights.drafts import Draft
from astraflow.weights.tensors import TensorShapes
from astraflow.wire.errors import is_disk_full

log = get_logger()


class Learner:
    """Runs a backend's blocking calls in the worker's thread and keeps its state in checkpoints.

    The backend is built there too: importing what it needs may take seconds, in which the process must still listen.
    """

    def __init__(self, build: Callable[[], Backend], *, worker: Worker, checkpoints: Checkpoints, clock: Clock) -> None:
        self._build = build
        self._worker = worker
        self._checkpoints = checkpoints
        self._clock = clock

    async def start(self) -> Progress | None:
        """Build the backend and restore the newest whole checkpoint; None when there has never been one.

        Raises: InvalidInput for a wrong spec or a checkpoint of something else, CorruptData when none is whole.
        """
        self._backend = await self._worker.call(self._build)
        return await self._worker.call(self._checkpoints.load, self._backend.load)

    @property
    def is_simulated(self) -> bool:
        """Whether the backend is a stand-in."""
        return self._backend.is_simulated

    async def step(self, batch: Batch) -> Mapping[str, float]:
        """One optimizer step; returns the backend's metrics."""
        return await self._worker.call(self._backend.step, batch)

    @property
    def published(self) -> TensorShapes:
        """What every version has."""
        return self._backend.published

    async def snapshot(self, draft: Draft) -> None:
        """Write the weights now to the draft."""
        await self._worker.call(self._backend.snapshot, draft)

    async def probe(self) -> Probe | None:
        """What an engine's logprobs are compared with, under the weights now; None where the backend has none."""
        return await self._worker.call(self._backend.probe)

    async def keep(self, progress: Progress) -> None:
        """Make the backend's state durable as `progress`; waits for room on a full disk, whatever that takes."""
        await retry(
            lambda: self._worker.call(self._save, progress),
            what=f"writing checkpoint {progress.step}",
            first_delay_s=0.5,
            max_delay_s=5.0,
            retry_on=(StorageFull,),
            clock=self._clock,
        )

    def _save(self, progress: Progress) -> None:
        try:
            self._checkpoints.save(progress, self._backend.save)
        except OSError as problem:
            if not is_disk_full(problem):
                raise
            log.error("disk_full", folder=str(self._checkpoints.folder), step=progress.step)
            raise StorageFull(
                f"no room for checkpoint {progress.step} in {self._checkpoints.folder}: free some space; the one "
                "before is kept, the batch is not acknowledged, and training goes on by itself"
            ) from problem
