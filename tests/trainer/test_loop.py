"""Training loop against a real data plane: every batch is trained exactly once, wherever it crashes."""

import asyncio
import errno
import shutil
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.contract.batches import Batch, StepEnd
from astraflow.contract.errors import Conflict, InvalidInput, Unavailable
from astraflow.runtime.clock import SystemClock
from astraflow.wire.server import ListenOptions, serving
from tests import make
from tests.errors import raises_code
from tests.fakes.backend import RecordedState, RecordingBackend
from tests.fakes.crashes import Crash, Crashes
from tests.fakes.trainer_dataflow import FakeTrainerData
from tests.trainer.bench import POINTS, Bench, bench, until


@pytest.mark.anyio
async def test_every_batch_is_trained_published_and_acknowledged_in_order(tmp_path: Path) -> None:
    async with bench(tmp_path) as trainer_bench:
        trainer_bench.assert_exactly_once(await trainer_bench.run())
        assert trainer_bench.data.repeats == []
        assert trainer_bench.weights.repeats == 0
        assert [batch.is_redelivered for batch in trainer_bench.data.served] == [False] * 3


@pytest.mark.anyio
async def test_step_reports_have_the_times_of_the_step(tmp_path: Path) -> None:
    async with bench(tmp_path) as trainer_bench:
        await trainer_bench.run()
        report = trainer_bench.data.reports["solver:2"]
        assert report.compute_s > 0
        assert report.publish_s > 0
        assert report.wait_s > 0
        assert report.metrics["loss"] == 2
        assert report.metrics["checkpoint_s"] > 0
        assert report.metrics["published_full_bytes"] == 32
        lost = ("publish_wait_s", "publish_copy_s", "publish_probe_s")
        assert all(report.metrics[name] > 0 for name in lost)
        assert sum(report.metrics[name] for name in lost) == pytest.approx(report.publish_s)
        assert {"published_hash_s", "published_encode_s", "published_send_s"} <= report.metrics.keys()


@pytest.mark.anyio
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("time", [1, 2, 3])
async def test_after_a_crash_at_any_point_every_batch_is_trained_once(tmp_path: Path, point: str, time: int) -> None:
    async with bench(tmp_path) as trainer_bench:
        crashes = Crashes((point, time))
        with pytest.raises((Crash, BaseExceptionGroup)):
            await trainer_bench.run(crashes)
        assert crashes.has_crashed
        trainer_bench.assert_exactly_once(await trainer_bench.run())


class FailingStep:
    """Step that raises an error each time it reaches a batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, problem: Exception, *, batch: str) -> None:
        step = RecordingBackend.step

        def failing(backend: RecordingBackend, pulled: Batch) -> Mapping[str, float]:
            if pulled.id == batch:
                raise problem
            return step(backend, pulled)

        monkeypatch.setattr(RecordingBackend, "step", failing)


@pytest.mark.anyio
async def test_an_error_of_a_step_is_reported_with_its_batch_and_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FailingStep(monkeypatch, IndexError("index out of range"), batch="solver:2")
    async with bench(tmp_path) as trainer_bench:
        for _ in range(2):
            with pytest.raises(IndexError):
                await trainer_bench.run()
        failures = trainer_bench.data.failures
        assert [(failure.batch, failure.end) for failure in failures] == [("solver:2", StepEnd.ERROR)] * 2
        assert all(
            failure.error.startswith("IndexError: index out of range (test_loop.py, line ") for failure in failures
        )
        assert len({failure.attempt for failure in failures}) == 2


@pytest.mark.anyio
@pytest.mark.parametrize("point", POINTS)
async def test_only_a_crash_within_a_step_is_reported_by_the_next_process(tmp_path: Path, point: str) -> None:
    async with bench(tmp_path) as trainer_bench:
        crashes = Crashes((point, 2))
        with pytest.raises((Crash, BaseExceptionGroup)):
            await trainer_bench.run(crashes)
        trainer_bench.assert_exactly_once(await trainer_bench.run())
        ends = [failure.end for failure in trainer_bench.data.failures]
        assert ends == ([StepEnd.UNEXPLAINED] if point in ("step begins", "step ends") else [])


@pytest.mark.anyio
async def test_a_full_disk_in_a_step_is_not_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FailingStep(monkeypatch, OSError(errno.ENOSPC, "No space left on device"), batch="solver:2")
    async with bench(tmp_path) as trainer_bench:
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                await trainer_bench.run()
        assert trainer_bench.data.failures == []


@pytest.mark.anyio
async def test_an_error_that_cannot_be_reported_is_reported_by_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astraflow.trainer.loop.REPORT_FAILURE_S", 0.0)
    report = FakeTrainerData.ReportFailure

    async def unavailable(*_: object) -> object:
        raise Unavailable("the service restarts")

    with monkeypatch.context() as broken:
        FailingStep(broken, IndexError("index out of range"), batch="solver:2")
        async with bench(tmp_path) as trainer_bench:
            broken.setattr(FakeTrainerData, "ReportFailure", unavailable)
            with pytest.raises(IndexError):
                await trainer_bench.run()
            broken.setattr(FakeTrainerData, "ReportFailure", report)
            with pytest.raises(IndexError):
                await trainer_bench.run()
            errors = [failure.error for failure in trainer_bench.data.failures]
            assert [error.partition(" (")[0] for error in errors] == ["IndexError: index out of range"] * 2


@pytest.mark.anyio
async def test_a_trainer_that_is_refused_for_failing_steps_ends_with_that_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> object:
        raise InvalidInput("the batches are not the cause", code="trainer.steps_keep_failing")

    monkeypatch.setattr(FakeTrainerData, "ReportFailure", refuse)
    FailingStep(monkeypatch, IndexError("index out of range"), batch="solver:2")
    async with bench(tmp_path) as trainer_bench:
        for _ in range(2):
            with raises_code(InvalidInput, "trainer.steps_keep_failing"):
                await trainer_bench.run()


class SlowDisk:
    """Disk that holds every write of a state with this many steps until `free` is set, or the process is killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, steps: int) -> None:
        self.free = threading.Event()
        self.is_killed = False
        write = RecordedState.write

        def held(state: RecordedState, folder: Path) -> None:
            if len(state.steps) == steps:
                self.free.wait(timeout=30)
                if self.is_killed:
                    raise Crash("killed")
            write(state, folder)

        monkeypatch.setattr(RecordedState, "write", held)


@pytest.mark.anyio
async def test_the_next_step_computes_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch, steps=1)
    async with bench(tmp_path) as trainer_bench, trainer_bench.trainer() as (loop, backend):
        running = asyncio.create_task(loop.run(asyncio.Event()))
        await until(lambda: len(backend.steps) == 2)
        await asyncio.sleep(0.05)  # leaves time for a publish or a third step, which must not happen
        assert [batch.id for batch in trainer_bench.data.served] == ["solver:1", "solver:2"]
        assert (len(backend.steps), loop.progress.step) == (2, 0)
        assert (len(trainer_bench.data.reports), len(trainer_bench.weights.manifests)) == (0, 1)
        disk.free.set()
        await running
        trainer_bench.assert_exactly_once(backend)
        assert [batch.is_redelivered for batch in trainer_bench.data.served] == [False] * 3


@pytest.mark.anyio
async def test_a_crash_during_a_checkpoint_loses_no_open_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(tmp_path) as trainer_bench:
        with monkeypatch.context() as patch:
            disk = SlowDisk(patch, steps=1)
            crashes = Crashes(("step ends", 2))
            running = asyncio.create_task(trainer_bench.run(crashes))
            await until(lambda: crashes.has_crashed)
            disk.is_killed = True
            disk.free.set()
            with pytest.raises(Crash):
                await running
        assert len(trainer_bench.data.reports) == 0
        trainer_bench.assert_exactly_once(await trainer_bench.run())
        assert [batch.is_redelivered for batch in trainer_bench.data.served] == [False, False, True, True, False]


@pytest.mark.long
@settings(max_examples=15, deadline=None)
@given(plans=st.lists(st.tuples(st.sampled_from(POINTS), st.integers(1, 3)), max_size=6))
def test_after_any_number_of_crashes_every_batch_is_trained_once(plans: list[tuple[str, int]]) -> None:
    async def scenario(folder: Path) -> None:
        async with bench(folder, batches=4) as trainer_bench:
            for plan in plans:
                try:
                    await trainer_bench.run(Crashes(plan))
                except Crash:
                    continue
            trainer_bench.assert_exactly_once(await trainer_bench.run())

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(scenario(Path(folder)))


@pytest.mark.anyio
async def test_a_saved_batch_is_acknowledged_without_training(tmp_path: Path) -> None:
    async with bench(tmp_path) as trainer_bench:
        with pytest.raises(Crash):
            await trainer_bench.run(Crashes(("report before", 2)))
        crashes = Crashes()
        trained = await trainer_bench.run(crashes)
        trainer_bench.assert_exactly_once(trained)
        assert crashes.passed["step begins"] == 1  # only the third batch
        assert trainer_bench.data.reports["solver:2"].metrics["loss"] == 2


@pytest.mark.anyio
async def test_a_redelivered_batch_of_the_checkpoint_is_acknowledged_without_training(tmp_path: Path) -> None:
    async with bench(tmp_path) as trainer_bench:
        await trainer_bench.run()
        last = trainer_bench.data.reports.pop(
            "solver:3"
        )  # dataflow lost the acknowledgement while the trainer was attached
        async with trainer_bench.trainer(max_steps=4) as (loop, backend):
            stop = asyncio.Event()
            running = asyncio.create_task(loop.run(stop))
            await trainer_bench.data.until_reported(3)
            del trainer_bench.data.reports["solver:3"]
            await trainer_bench.data.until_reported(3)
            stop.set()
            await running
        assert backend.trained == ["solver:1", "solver:2", "solver:3"]
        assert trainer_bench.data.reports["solver:3"].version == last.version
        assert loop.progress.step == 3


@pytest.mark.anyio
async def test_a_checkpoint_is_written_after_the_previous_version_is_published(tmp_path: Path) -> None:
    async with bench(tmp_path) as trainer_bench, trainer_bench.trainer() as (loop, backend):
        trainer_bench.weights.held = 2
        running = asyncio.create_task(loop.run(asyncio.Event()))
        await until(lambda: len(backend.steps) == 3 and len(trainer_bench.data.reports) == 2)
        await asyncio.sleep(0.05)  # leaves time for a step that must not happen
        assert (loop.progress.step, list(trainer_bench.data.reports)) == (2, ["solver:1", "solver:2"])
        trainer_bench.weights.released.set()
        await running
        trainer_bench.assert_exactly_once(backend)


@pytest.mark.anyio
async def test_stopping_while_waiting_for_a_batch_ends_immediately(tmp_path: Path) -> None:
    async with bench(tmp_path) as trainer_bench, trainer_bench.trainer(max_steps=99) as (loop, _):
        stop = asyncio.Event()
        running = asyncio.create_task(loop.run(stop))
        await trainer_bench.data.until_reported(3)
        stop.set()
        await running
        assert len(trainer_bench.weights.manifests) == 4


@pytest.mark.anyio
async def test_an_outage_of_dataflow_loses_no_batch(tmp_path: Path) -> None:
    trainer_bench = Bench(tmp_path, batches=4)
    async with serving(ListenOptions(token="t", drain_s=0.0), trainer_bench.data.register) as trainer_bench.address:
        running = asyncio.create_task(trainer_bench.run())
        await trainer_bench.data.until_reported(2)
    port = int(trainer_bench.address.rpartition(":")[2])
    async with serving(ListenOptions(token="t", port=port), trainer_bench.data.register):
        trainer_bench.assert_exactly_once(await running)


@pytest.mark.anyio
async def test_a_trainer_attaches_again_after_an_outage_during_a_pull(tmp_path: Path) -> None:
    trainer_bench = Bench(tmp_path, batches=1)
    async with serving(ListenOptions(token="t", drain_s=0.0), trainer_bench.data.register) as trainer_bench.address:
        running = asyncio.create_task(trainer_bench.run(max_steps=2))
        await trainer_bench.data.until_waiting(1)
    trainer_bench.data.attached.clear()
    trainer_bench.data.batches.append(make.batch(2))
    port = int(trainer_bench.address.rpartition(":")[2])
    async with serving(ListenOptions(token="t", port=port), trainer_bench.data.register):
        trainer_bench.assert_exactly_once(await running)
    assert [(request.backend, request.version) for request in trainer_bench.data.attached] == [("recording", 1)]


@pytest.mark.anyio
async def test_a_trainer_attaches_again_after_an_outage_during_a_report(tmp_path: Path) -> None:
    async with bench(tmp_path, batches=3) as trainer_bench:
        trainer_bench.refuse_reports = 1
        trainer_bench.assert_exactly_once(await trainer_bench.run())
        assert len(trainer_bench.data.attached) == 2


@pytest.mark.anyio
async def test_other_weights_under_a_published_version_end_the_training(tmp_path: Path) -> None:
    async with bench(tmp_path / "one") as trainer_bench:
        await trainer_bench.run()
        trainer_bench.folder = tmp_path / "two"
        trainer_bench.data.reports.clear()
        trainer_bench.data.batches = [make.batch(7)]
        with raises_code(Conflict, "conflict", "version 1"):
            await trainer_bench.run()


@pytest.mark.anyio
async def test_a_refused_version_is_raised_while_waiting_for_a_batch(tmp_path: Path) -> None:
    async with bench(tmp_path / "one") as trainer_bench:
        await trainer_bench.run()
        trainer_bench.folder = tmp_path / "two"
        trainer_bench.data.reports.clear()
        trainer_bench.data.batches = [make.batch(7)]
        async with trainer_bench.trainer(max_steps=2) as (loop, _):
            with pytest.raises(Conflict):
                await loop.run(asyncio.Event())


@pytest.mark.anyio
async def test_a_lost_directory_is_refused_when_dataflow_has_acknowledged_steps(tmp_path: Path) -> None:
    async with bench(tmp_path / "one") as trainer_bench:
        await trainer_bench.run()
        trainer_bench.folder = tmp_path / "two"
        with raises_code(InvalidInput, "trainer.checkpoint_mismatch", "3 acknowledged steps"):
            await trainer_bench.run()


@pytest.mark.anyio
async def test_training_goes_on_from_an_older_checkpoint_when_the_newest_is_damaged(tmp_path: Path) -> None:
    async with bench(tmp_path) as trainer_bench:
        await trainer_bench.run()
        (tmp_path / "step-00000003" / "manifest.json").unlink()
        trainer_bench.data.batches += [make.batch(4), make.batch(5)]
        backend = await trainer_bench.run()
        assert backend.trained == ["solver:1", "solver:2", "solver:4", "solver:5"]
        assert [report.version for report in trainer_bench.data.reports.values()] == [1, 2, 3, 4, 5]
        assert [manifest.version for manifest in trainer_bench.weights.manifests] == [0, 1, 2, 3, 4, 5]
        first, second = trainer_bench.data.attached
        assert (first.damage, second.version) == ("", 2)
        assert "step-00000003.damaged" in second.damage
        await trainer_bench.run()
        assert trainer_bench.data.attached[-1].damage == ""


@pytest.mark.anyio
async def test_training_goes_on_when_a_version_of_a_damaged_checkpoint_was_published_but_not_acknowledged(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as trainer_bench:
        with pytest.raises((Crash, BaseExceptionGroup)):
            await trainer_bench.run(Crashes(("publish after", 4)))
        trainer_bench.data.reports.pop("solver:3", None)
        shutil.rmtree(tmp_path / "step-00000003" / "state")
        trainer_bench.data.batches[2:] = [make.batch(7), make.batch(8)]  # its bits are others this time
        assert (await trainer_bench.run(max_steps=3)).trained == ["solver:1", "solver:2", "solver:7"]
        assert (await trainer_bench.run()).trained == ["solver:1", "solver:2", "solver:7", "solver:8"]
        assert [manifest.version for manifest in trainer_bench.weights.manifests] == [0, 1, 2, 3, 4]


@pytest.mark.anyio
async def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    async with bench(tmp_path) as trainer_bench:
        await trainer_bench.run()
        trainer_bench.data.run = "other"
        with raises_code(InvalidInput, "trainer.wrong_run"):
            await trainer_bench.run()


@pytest.mark.anyio
async def test_a_batch_of_another_policy_is_refused(tmp_path: Path) -> None:
    async with bench(tmp_path) as trainer_bench:
        trainer_bench.data.batches[1] = make.batch(2, policy="verifier")
        with raises_code(InvalidInput, "trainer.wrong_policy"):
            await trainer_bench.run()


@pytest.mark.anyio
async def test_training_waits_on_a_full_disk_without_acknowledgements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(tmp_path) as trainer_bench:
        refused: list[list[str]] = []
        write = RecordedState.write

        def full(state: RecordedState, folder: Path) -> None:
            if len(state.steps) == 2 and len(refused) < 2:
                (folder / "steps.json").write_text("[")
                refused.append(list(trainer_bench.data.reports))
                raise OSError(28, "No space left on device")
            write(state, folder)

        monkeypatch.setattr(RecordedState, "write", full)
        monkeypatch.setattr(SystemClock, "sleep", _no_sleep)
        trainer_bench.assert_exactly_once(await trainer_bench.run())
        assert refused == [["solver:1"], ["solver:1"]]


async def _no_sleep(clock: SystemClock, duration_s: float) -> None:
    await asyncio.sleep(0)


@pytest.mark.anyio
async def test_an_error_of_the_backend_ends_the_training_and_keeps_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(tmp_path) as trainer_bench:
        with monkeypatch.context() as patch:
            patch.setattr(RecordingBackend, "step", _broken)
            with pytest.raises(FloatingPointError):
                await trainer_bench.run()
        trainer_bench.assert_exactly_once(await trainer_bench.run())


def _broken(backend: RecordingBackend, batch: Batch) -> Mapping[str, float]:
    raise FloatingPointError("loss is not a number")
