"""Driver of a backend: runs it in its thread, and writes its captured states in another."""

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from astraflow.contract.batches import Batch
from astraflow.contract.batching import BatchingFacts
from astraflow.contract.errors import StorageFull
from astraflow.contract.ids import Version
from astraflow.contract.rollouts.limits import RowLimits
from astraflow.contract.weights import Probe
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import retry
from astraflow.trainer.backends.base import Backend, CapturedState, FrozenBase
from astraflow.trainer.checkpoints import Checkpoints, TrainingProgress
from astraflow.trainer.worker import BackendThread
from astraflow.weights.publish.staging_buffers import StagedVersion
from astraflow.weights.tensors import TensorShapes
from astraflow.wire.errors import is_disk_full

log = get_logger()


class BackendDriver:
    """Runs a backend's blocking calls in the worker's thread and writes its state to checkpoints in the writer's.

    The backend is built in that thread too: its imports may take seconds, during which the event loop must keep
    running.
    """

    def __init__(
        self,
        build: Callable[[], Backend],
        *,
        worker: BackendThread,
        writer: BackendThread,
        checkpoints: Checkpoints,
        clock: Clock,
    ) -> None:
        self._build = build
        self._worker = worker
        self._writer = writer
        self._checkpoints = checkpoints
        self._clock = clock

    async def start(self) -> TrainingProgress | None:
        """Builds the backend and restores the newest intact checkpoint; returns None when there is no checkpoint.

        Raises: InvalidInput for a wrong spec, a checkpoint of another identity, and when none is intact.
        """
        self._backend = await self._worker.call(self._build)
        return await self._worker.call(self._checkpoints.load, self._backend.load)

    @property
    def is_simulated(self) -> bool:
        """True when the backend is simulated."""
        return self._backend.is_simulated

    @property
    def row_limits(self) -> RowLimits:
        """Limits of the rows that the backend can train."""
        return self._backend.row_limits

    @property
    def batching(self) -> BatchingFacts | None:
        """Batching of the backend's passes; None where it computes none."""
        return self._backend.batching

    async def step(self, batch: Batch) -> Mapping[str, float]:
        """Runs one optimizer step; returns the backend's metrics."""
        return await self._worker.call(self._backend.step, batch)

    @property
    def frozen_base(self) -> FrozenBase | None:
        """Base of the versions, which are then adapters; None for versions of the whole model."""
        return self._backend.frozen_base

    async def write_base(self, base: FrozenBase, staged: StagedVersion) -> None:
        """Writes the frozen weights to the staging buffer."""
        await self._worker.call(base.write, staged)

    @property
    def published_shapes(self) -> TensorShapes:
        """Shapes and element types of the tensors in every version."""
        return self._backend.published_shapes

    async def snapshot(self, staged: StagedVersion) -> None:
        """Writes the current weights to the staging buffer."""
        await self._worker.call(self._backend.snapshot, staged)

    async def probe(self) -> Probe | None:
        """Returns a probe under the current weights; None where the backend has none."""
        return await self._worker.call(self._backend.probe)

    async def capture(self) -> CapturedState:
        """Copies the state to host memory. The checkpoint before must have been written."""
        return await self._worker.call(self._backend.capture)

    async def write_checkpoint(self, progress: TrainingProgress, state: CapturedState) -> None:
        """Persists a captured state as `progress`, while the backend may step; waits without limit while the disk is
        full."""
        await retry(
            lambda: self._writer.call(self._write, progress, state),
            what=f"writing checkpoint {progress.step}",
            first_delay_s=0.5,
            max_delay_s=5.0,
            retry_on=(StorageFull,),
            clock=self._clock,
        )

    def _write(self, progress: TrainingProgress, state: CapturedState) -> None:
        try:
            published = {name: dtype.value for name, (dtype, _) in self._backend.published_shapes.items()}
            self._checkpoints.save(progress, state.write, published=published)
        except OSError as problem:
            if not is_disk_full(problem):
                raise
            log.error("disk_full", folder=str(self._checkpoints.folder), step=progress.step)
            raise StorageFull(
                f"cannot write checkpoint {progress.step} to {str(self._checkpoints.folder)!r}: the disk is full; free "
                "some space and training resumes by itself (the previous checkpoint is intact, the batch not "
                "acknowledged)",
                code="storage.disk_full",
            ) from problem


ProbeEvery: TypeAlias = int | Literal["auto"]

PROBE_TIME_SHARE = 0.003
"""Default share of the training time for probes: a third of the share for all weight transfer."""


class ProbeSchedule:
    """Decides when a probe is due: at a fixed interval, or when `PROBE_TIME_SHARE` of the time since the last pays for
    it.

    Version 0 always has a probe; in automatic mode the first versions after a start have one too.

    >>> schedule = ProbeSchedule(3)
    >>> [version for version in range(8) if schedule.is_due(Version(version))]
    [0, 3, 6]
    """

    def __init__(self, every: ProbeEvery) -> None:
        self._every = every
        self._since_probe_s = 0.0
        self._cost_s: float | None = None
        """Duration of the latest probe in seconds; None before the second one, since the first takes longer."""
        self._probes = 0

    def is_due(self, version: Version) -> bool:
        """Returns whether this version needs a probe."""
        if self._every != "auto":
            return version % self._every == 0
        return self._cost_s is None or self._since_probe_s >= self._cost_s

    def record_probe(self, cost_s: float) -> None:
        """Records a probe and its duration."""
        self._probes += 1
        self._since_probe_s = 0.0
        self._cost_s = cost_s if self._probes > 1 else None

    def record_step(self, step_s: float) -> None:
        """Records a step and its duration."""
        self._since_probe_s += PROBE_TIME_SHARE * step_s
