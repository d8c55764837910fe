"""Test bench: dataflow and a weight store that keep running, and trainers on one folder that start, crash and end."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from astraflow.client.data_plane import TrainerDataClient
from astraflow.contract.batches import Batch, StepReport
from astraflow.contract.errors import Unavailable
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Dtype
from astraflow.runtime.clock import SystemClock
from astraflow.trainer.batch_stream import BatchStream
from astraflow.trainer.checkpoints import CheckpointIdentity, Checkpoints, TrainingProgress
from astraflow.trainer.driver import BackendDriver
from astraflow.trainer.loop import TrainerLoop
from astraflow.trainer.retention import Retention
from astraflow.trainer.step_mark import StepMark
from astraflow.trainer.worker import BackendThread
from astraflow.weights.publish.publisher import Publisher
from astraflow.weights.publish.staging_buffers import StagedVersion
from astraflow.weights.tensors import build_layout
from astraflow.wire.channel import ServiceChannel, dial
from astraflow.wire.server import ListenOptions, serving
from tests import make
from tests.fakes.backend import RecordedState, RecordingBackend, bits_of
from tests.fakes.crashes import Crashes
from tests.fakes.trainer_dataflow import FakeTrainerData
from tests.fakes.weight_plane import InMemoryWeightPlane

SOLVER = PolicyId("solver")
POINTS = (
    "pulled",
    "step begins",
    "step ends",
    "captured",
    "snapshot taken",
    "checkpoint half written",
    "checkpoint written",
    "checkpoint durable",
    "publish before",
    "publish after",
    "report before",
    "report after",
)


class CrashingBackend(RecordingBackend):
    def __init__(self, crashes: Crashes) -> None:
        super().__init__()
        self._crashes = crashes

    def step(self, batch: Batch) -> Mapping[str, float]:
        self._crashes.reach("step begins")
        metrics = super().step(batch)
        self._crashes.reach("step ends")
        return metrics

    def snapshot(self, staged: StagedVersion) -> None:
        super().snapshot(staged)
        self._crashes.reach("snapshot taken")

    def capture(self) -> "CrashingState":
        state = CrashingState(list(self.steps), self._crashes)
        self._crashes.reach("captured")
        return state


class CrashingState(RecordedState):
    def __init__(self, steps: list[str], crashes: Crashes) -> None:
        super().__init__(steps)
        self._crashes = crashes

    def write(self, folder: Path) -> None:
        (folder / "first.json").write_text("[]")
        self._crashes.reach("checkpoint half written")
        super().write(folder)
        self._crashes.reach("checkpoint written")


class CrashingCheckpoints(Checkpoints):
    def __init__(self, folder: Path, crashes: Crashes) -> None:
        super().__init__(
            folder, CheckpointIdentity(policy=SOLVER, model={}, backend="recording"), keep=Retention(newest=2)
        )
        self._crashes = crashes

    def save(
        self, progress: TrainingProgress, write: Callable[[Path], None], *, published: Mapping[str, str] | None = None
    ) -> Path:
        path = super().save(progress, write, published=published)
        self._crashes.reach("checkpoint durable")
        return path


class CrashingClient(TrainerDataClient):
    def __init__(self, link: ServiceChannel, bench: "Bench", crashes: Crashes) -> None:
        super().__init__(link, SOLVER)
        self._bench = bench
        self._crashes = crashes

    async def pull_batch(self, *, version: Version, wait_s: float, unacknowledged: int = 0) -> Batch | None:
        batch = await super().pull_batch(version=version, wait_s=wait_s, unacknowledged=unacknowledged)
        self._crashes.reach("pulled")
        return batch

    async def report_step(self, report: StepReport) -> bool:
        self._crashes.reach("report before")
        if self._bench.refuse_reports:
            self._bench.refuse_reports -= 1
            raise Unavailable("the link broke")
        is_first = await super().report_step(report)
        self._crashes.reach("report after")
        return is_first


class Bench:
    """Dataflow and weight store that keep running, and trainers on one folder that start and end."""

    def __init__(self, folder: Path, *, batches: int) -> None:
        self.folder = folder
        self.data = FakeTrainerData([make.batch(step) for step in range(1, batches + 1)])
        self.weights = InMemoryWeightPlane()
        self.address = ""
        self.refuse_reports = 0
        """Number of reports that fail with a broken link."""

    @asynccontextmanager
    async def trainer(
        self, crashes: Crashes | None = None, *, max_steps: int | None = None
    ) -> AsyncIterator[tuple[TrainerLoop, RecordingBackend]]:
        """Builds the parts of a new process as the service does. Waits for the threads that a killed process would not
        leave behind: a write that was in progress ends as if the process had been killed a little later."""
        writer = BackendThread("writer")
        try:
            async with self._built(crashes or Crashes(), writer, max_steps=max_steps) as built:
                yield built
        finally:
            await asyncio.to_thread(writer._thread.join)

    @asynccontextmanager
    async def _built(
        self, crashes: Crashes, writer: BackendThread, *, max_steps: int | None
    ) -> AsyncIterator[tuple[TrainerLoop, RecordingBackend]]:
        self.weights.on_publish = lambda point: crashes.reach(f"publish {point}")
        backend = CrashingBackend(crashes)
        checkpoints = CrashingCheckpoints(self.folder, crashes)
        clock = SystemClock()
        with checkpoints.exclusive_lock(), BackendThread("trainer") as worker, writer:
            learner = BackendDriver(lambda: backend, worker=worker, writer=writer, checkpoints=checkpoints, clock=clock)
            progress = await learner.start()
            async with dial(self.address, token="t") as link:
                feed = BatchStream(
                    CrashingClient(link, self, crashes),
                    SOLVER,
                    backend="recording",
                    is_simulated=True,
                    limits=learner.row_limits,
                    pull_wait_s=5.0,
                    clock=clock,
                )
                welcome = await feed.attach(progress)
                if progress is not None:
                    progress = progress.at_least(welcome.acknowledged_steps)
                else:
                    progress = TrainingProgress(run=welcome.run, step=0, report=None)
                    await learner.write_checkpoint(progress, await learner.capture())
                async with Publisher(self.weights, SOLVER) as publisher:
                    yield (
                        TrainerLoop(
                            policy=SOLVER,
                            batches=feed,
                            driver=learner,
                            publisher=publisher,
                            progress=progress,
                            mark=StepMark(self.folder, SOLVER, clock=clock),
                            max_steps=len(self.data.batches) if max_steps is None else max_steps,
                            clock=clock,
                            probe_every=1,
                        ),
                        backend,
                    )

    async def run(self, crashes: Crashes | None = None, *, max_steps: int | None = None) -> RecordingBackend:
        """Runs one process from start to end; returns the backend with its steps. Raises: Crash."""
        async with self.trainer(crashes, max_steps=max_steps) as (loop, backend):
            await loop.run(asyncio.Event())
        return backend

    def assert_exactly_once(self, backend: RecordingBackend) -> None:
        expected = [str(batch.id) for batch in self.data.batches]
        assert backend.trained == expected
        assert list(self.data.reports) == expected
        assert [report.version for report in self.data.reports.values()] == list(range(1, len(expected) + 1))
        hashes = [manifest.root_hash for manifest in self.weights.manifests]
        assert hashes == [_root_hash(backend.steps[:version], version) for version in range(len(expected) + 1)]


def _root_hash(steps: list[str], version: int) -> bytes:
    tensors = {"steps": (Dtype.FLOAT32, (8,), bits_of(steps))}
    manifest, _ = build_layout(tensors, policy=SOLVER, version=Version(version))
    return manifest.root_hash


async def until(holds: Callable[[], bool]) -> None:
    """Waits until the condition holds, for changes by other threads that set no event."""
    while not holds():  # noqa: ASYNC110 (the backend's thread sets no asyncio event)
        await asyncio.sleep(0.001)


@asynccontextmanager
async def bench(folder: Path, *, batches: int = 3) -> AsyncIterator[Bench]:
    trainer_bench = Bench(folder, batches=batches)
    async with serving(ListenOptions(token="t"), trainer_bench.data.register) as trainer_bench.address:
        yield trainer_bench
