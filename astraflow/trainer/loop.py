"""The training loop of one policy: pull, step, capture; meanwhile checkpoint, publish, acknowledge."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from astraflow.contract.batches import Batch, Rows, StepEnd, StepReport
from astraflow.contract.errors import AstraFlowError, Conflict, InvalidInput, RunComplete
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weight_reports import VersionReport
from astraflow.contract.weights import Probe
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.system_metrics import SystemMonitor
from astraflow.runtime.tracing import span
from astraflow.trainer.backends.base import CapturedState
from astraflow.trainer.batch_stream import BatchStream
from astraflow.trainer.checkpoints import TrainingProgress
from astraflow.trainer.driver import BackendDriver, ProbeEvery, ProbeSchedule
from astraflow.trainer.step_mark import ALIVE_S, REPORT_FAILURE_S, StepMark, step_end
from astraflow.weights.publish.publisher import Publisher, PublishStats
from astraflow.weights.publish.staging_buffers import StagedVersion

log = get_logger()


class TrainerLoop:
    """Trains each batch into exactly one version, also across crashes at any point.

    With `n` steps in the newest checkpoint, that checkpoint holds version `n`. A checkpoint is written while the next
    step computes, and so is the version published; the step waits only for the copies in host memory:

        pull ─► step ─► settled: version n ─► capture the state ─► pull ─► step ─► settled: version n+1 ─► ...
        batch n         (waits for it)        and the weights      batch n+1       (waits for it)
                                                 └─► write checkpoint n+1 ─► publish ─► acknowledge ─► in the store
                                                           (durable)        version n+1   batch n

            crash before "durable": dataflow has no report and serves the batch again; the restart trains it from
                checkpoint n. No other process saw what was computed before the crash.
            crash after "durable": the checkpoint names its batch and has its report. The restart acknowledges it again,
                which counts once, and publishes version n+1 again, which is harmless because the bits are the same. If
                the batch is served once more, it is acknowledged, not trained.

            checkpoint n+1 damaged: it is set aside. The restart goes on from checkpoint n as step n+1: what that step
                changed is lost, version n+1 stays as it was published, and batch n+1 follows.

    Therefore a version is published only when it can be reproduced bit for bit; the store lacks at most the newest
    version, so versions have no gaps; and an acknowledged batch is in every later checkpoint. At most one trained batch
    is not yet acknowledged while the next is trained; dataflow keeps both.
    """

    def __init__(
        self,
        *,
        policy: PolicyId,
        batches: BatchStream,
        driver: BackendDriver,
        publisher: Publisher,
        progress: TrainingProgress,
        mark: StepMark,
        max_steps: int | None,
        clock: Clock,
        probe_every: ProbeEvery = "auto",
        metadata: Mapping[str, str] | None = None,
        system: SystemMonitor | None = None,
    ) -> None:
        """metadata: of the manifest of each version. system: measures this process for the metrics of steps."""
        self._policy = policy
        self._batches = batches
        self._driver = driver
        self._publisher = publisher
        self._progress = progress
        """With the captured step, whose checkpoint may be in progress."""
        self._durable = progress
        self._mark = mark
        self._max_steps = max_steps
        self._clock = clock
        self._probes = ProbeSchedule(probe_every)
        self._metadata = metadata or {}
        self._system = system
        self._settling: asyncio.Task[None] | None = None
        self._unacknowledged = 0
        self._last_publish: PublishStats | None = None
        self._last_published_at = 0.0

    @property
    def progress(self) -> TrainingProgress:
        """Progress in the newest checkpoint."""
        return self._durable

    async def run(self, stop: asyncio.Event) -> None:
        """Trains until `stop` is set, the run is complete or `max_steps` are done; then waits until the last version is
        durable, in the store and acknowledged.

        May be cancelled anywhere. Raises: Conflict when the store has other bits under a version, and errors of the
        backend; the process then restarts from its checkpoint.
        """
        try:
            await self._begin()
            while not self._is_complete():
                began = self._clock.now()
                batch = await self._pull_unless_complete(stop)
                if batch is None:
                    break
                await self._train_step(batch, wait_s=self._clock.now() - began)
            await self._wait_until_settled()
        finally:
            if self._settling is not None:
                self._settling.cancel()
                await asyncio.gather(self._settling, return_exceptions=True)

    def _is_complete(self) -> bool:
        return self._max_steps is not None and self._progress.step >= self._max_steps

    async def _begin(self) -> None:
        """Reports the step that ended the previous process, if one did; then publishes and acknowledges the
        checkpoint's version, since nodes need a version. All calls may be repetitions."""
        failure = self._mark.failure()
        if failure is not None:
            try:
                await self._batches.report_failure(failure)
            finally:
                self._mark.end()
        staged, probe, _ = await self._snapshot(self._progress.version)
        await self._publisher.publish(self._progress.version, staged, probe=probe, metadata=self._metadata)
        if self._progress.report is not None:
            await self._batches.acknowledge(self._progress.report)
        await self._wait_until_published()
        log.info("trainer_ready", step=self._progress.step, is_simulated=self._driver.is_simulated)

    async def _pull_unless_complete(self, stop: asyncio.Event) -> Batch | None:
        """Returns the next batch; None when `stop` is set or the run is complete."""
        try:
            return await self._pull(stop)
        except RunComplete as end:
            log.info("run_complete", reason=str(end), step=self._progress.step)
            return None

    async def _pull(self, stop: asyncio.Event) -> Batch | None:
        """Returns the next batch; None when `stop` is set. Raises: the error of a version that cannot be settled."""
        pulling = asyncio.create_task(self._batches.pull(self._progress, unacknowledged=self._unacknowledged))
        stopping = asyncio.create_task(stop.wait())
        waiting: set[asyncio.Task[object]] = {pulling, stopping}
        if self._settling is not None:
            waiting.add(self._settling)
        try:
            while True:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if stopping in done:
                    return None
                if pulling in done:
                    return pulling.result()
                await self._wait_until_settled()
        finally:
            pulling.cancel()
            stopping.cancel()
            await asyncio.gather(pulling, stopping, return_exceptions=True)

    async def _train_step(self, batch: Batch, *, wait_s: float) -> None:
        report = self._progress.report
        if report is not None and batch.id == report.batch:
            log.info("batch_already_trained", batch=batch.id, step=self._progress.step)
            await self._wait_until_settled()
            await self._batches.acknowledge(report)
            return
        began = self._clock.now()
        with span("rl.step", step=batch.id, groups=Rows.of(batch.rows).groups, rows=len(batch.rows)):
            metrics = await self._step(batch)
        stepped = self._clock.now()
        await self._wait_until_settled()
        settled_at = self._clock.now()
        state = await self._driver.capture()
        captured_at = self._clock.now()
        version = Version(self._progress.step + 1)
        staged, probe, probe_s = await self._snapshot(version)
        ended = self._clock.now()
        self._probes.record_step(wait_s + ended - began)
        report = StepReport(
            batch=batch.id,
            policy=self._policy,
            version=version,
            wait_s=wait_s,
            compute_s=stepped - began,
            publish_s=ended - captured_at + settled_at - stepped,
            metrics={
                **metrics,
                **(self._system.latest if self._system is not None else {}),
                **_publish_metrics(self._last_publish, at=self._last_published_at),
                "publish_wait_s": settled_at - stepped,
                "publish_copy_s": ended - captured_at - probe_s,
                "publish_probe_s": probe_s,
                "checkpoint_s": captured_at - settled_at,
                "checkpoint_bytes": float(state.size_bytes),
            },
        )
        self._progress = replace(self._progress, step=int(version), report=report)
        self._unacknowledged = 1
        self._settling = asyncio.create_task(self._settle(self._progress, report, state, staged, probe))

    async def _step(self, batch: Batch) -> Mapping[str, float]:
        """Runs the step of the backend. One that ends this process is reported: its batch may be the cause."""
        self._mark.begin(batch.id)
        step = asyncio.ensure_future(self._driver.step(batch))
        try:
            while not (await asyncio.wait({step}, timeout=ALIVE_S))[0]:
                self._mark.renew()
            metrics = step.result()
        except asyncio.CancelledError:
            step.cancel()
            self._mark.note(StepEnd.STOPPED)
            raise
        except Exception as problem:
            await self._report_failure(problem)
            raise
        self._mark.end()
        return metrics

    async def _report_failure(self, problem: Exception) -> None:
        """Reports the error of a step, or leaves that to the next process. Raises: InvalidInput when too many batches
        in a row have failed."""
        end = step_end(problem)
        if end is None:
            self._mark.end()
            return
        failure = self._mark.note(end, problem)
        try:
            is_set_aside = await self._batches.report_failure(failure, give_up_after_s=REPORT_FAILURE_S)
        except InvalidInput:
            self._mark.end()
            raise
        except AstraFlowError as unreported:
            log.warning("step_failure_not_reported", batch=failure.batch, problem=str(unreported))
            return
        self._mark.end()
        log.error("step_failed", batch=failure.batch, error=failure.error, is_set_aside=is_set_aside)

    async def _settle(
        self,
        progress: TrainingProgress,
        report: StepReport,
        state: CapturedState,
        staged: StagedVersion,
        probe: Probe | None,
    ) -> None:
        """Makes a step durable, then publishes its version and acknowledges its batch, while the next step computes."""
        began = self._clock.now()
        writing = asyncio.create_task(self._driver.write_checkpoint(progress, state))
        try:
            await self._publisher.publish(progress.version, staged, probe=probe, metadata=self._metadata, after=writing)
            await writing
        finally:
            writing.cancel()
        self._durable = progress
        write_s = self._clock.now() - began
        await self._batches.acknowledge(replace(report, metrics={**report.metrics, "checkpoint_write_s": write_s}))
        self._unacknowledged = 0
        log.info(
            "step",
            step=progress.step,
            batch=report.batch,
            reward=report.metrics.get("reward_mean"),
            wait_s=round(report.wait_s, 3),
            compute_s=round(report.compute_s, 3),
            publish_s=round(report.publish_s, 3),
            checkpoint_s=round(report.metrics["checkpoint_s"], 3),
            checkpoint_write_s=round(write_s, 3),
        )
        await self._wait_until_published()

    async def _snapshot(self, version: Version) -> tuple[StagedVersion, Probe | None, float]:
        """Copies the weights off the device. Returns them with the probe, if due, and its duration in seconds."""
        staged = await self._publisher.begin_version(self._driver.published_shapes)
        await self._driver.snapshot(staged)
        if not self._probes.is_due(version):
            return staged, None, 0.0
        began = self._clock.now()
        probe = await self._driver.probe()
        probe_s = self._clock.now() - began
        self._probes.record_probe(probe_s)
        return staged, probe, probe_s

    async def _wait_until_published(self) -> None:
        """Waits until the last version is in the store. One of a checkpoint that is damaged keeps its bits there."""
        try:
            self._last_publish = await self._publisher.wait()
        except Conflict as problem:
            if self._progress.step > self._progress.damaged:
                raise
            log.warning("lost_version_kept", version=self._progress.version, problem=str(problem))
        self._last_published_at = self._clock.wall()

    async def _wait_until_settled(self) -> None:
        """Waits until the last step is durable and acknowledged, and its version is in the store."""
        if self._settling is not None:
            await self._settling
            self._settling = None


def _publish_metrics(stats: PublishStats | None, *, at: float) -> dict[str, float]:
    """Returns the costs of the previous publish. at: time at which the store had the version, Unix seconds."""
    if stats is None:
        return {}
    return VersionReport(
        version=stats.version,
        published_at=at,
        full_bytes=stats.full_bytes,
        sent_bytes=stats.sent_bytes,
        changed_elements=stats.changed_elements,
        elements=stats.elements,
        copy_s=stats.copy_s,
        hash_s=stats.hash_s,
        encode_s=stats.encode_s,
        send_s=stats.send_s,
    ).metrics()
