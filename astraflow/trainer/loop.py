"""The training loop of one policy: pull, step, checkpoint, publish, acknowledge."""

import asyncio
from dataclasses import replace

from astraflow.contract.batches import Batch, StepReport
from astraflow.contract.errors import RunComplete
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.links import VersionReport
from astraflow.contract.weights import Probe
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.tracing import span
from astraflow.trainer.checkpoint import Progress
from astraflow.trainer.feed import Feed
from astraflow.trainer.learner import Learner
from astraflow.trainer.probing import ProbeEvery, ProbeSchedule
from astraflow.weights.drafts import Draft
from astraflow.weights.publisher import Publisher, PublishStats

log = get_logger()


class TrainerLoop:
    """Turns batches into versions, each batch into exactly one, whatever is killed when.

    With `n` steps in the newest checkpoint, version `n` is what that checkpoint holds:

        pull ─► step ─► version n is in the store ─► checkpoint n+1 ─► hand over version n+1 ─► acknowledge ─► pull
                             (waits for it)           (durable now)     (sent beside the         the batch
                                                                         next step)
        crash before "durable": dataflow was told nothing and serves the batch again; the restart trains it from
            checkpoint n. Nobody saw what was computed before the crash.
        crash after it: the checkpoint names its batch and has its report. The restart acknowledges it again, which
            counts once, and publishes version n+1 again, which is harmless because the bits are the same. Should the
            batch be served once more nevertheless, it is acknowledged, not trained.

    Hence: a version is published only when it can be made again bit for bit; at most one version, the newest, is ever
    missing in the store, so versions have no gaps; and an acknowledged batch is in every later checkpoint.
    """

    def __init__(
        self,
        *,
        policy: PolicyId,
        feed: Feed,
        learner: Learner,
        publisher: Publisher,
        progress: Progress,
        max_steps: int | None,
        clock: Clock,
        probe_every: ProbeEvery = "auto",
    ) -> None:
        self._policy = policy
        self._feed = feed
        self._learner = learner
        self._publisher = publisher
        self._progress = progress
        self._max_steps = max_steps
        self._clock = clock
        self._probes = ProbeSchedule(probe_every)
        self._publishing: asyncio.Task[PublishStats | None] | None = None
        self._sent: PublishStats | None = None
        self._sent_at = 0.0

    @property
    def progress(self) -> Progress:
        """How far it is, durably."""
        return self._progress

    async def run(self, stop: asyncio.Event) -> None:
        """Train until `stop` is set, the run is complete or `max_steps` are done; then the version at hand is in the
        store and acknowledged.

        May be cancelled anywhere. Raises: Conflict when the store has other bits under a version, and what the backend
        raises; the process then begins again from its checkpoint.
        """
        try:
            await self._begin()
            while not self._is_complete():
                began = self._clock.now()
                batch = await self._pull_or_end(stop)
                if batch is None:
                    break
                await self._learn(batch, wait_s=self._clock.now() - began)
            await self._published()
        finally:
            if self._publishing is not None:
                self._publishing.cancel()
                await asyncio.gather(self._publishing, return_exceptions=True)

    def _is_complete(self) -> bool:
        return self._max_steps is not None and self._progress.step >= self._max_steps

    async def _begin(self) -> None:
        """Nodes need a version to work with, and dataflow must know what the checkpoint has; both may know already."""
        draft, probe, _ = await self._snapshot(self._progress.version)
        await self._publish(draft, probe)
        if self._progress.report is not None:
            await self._feed.acknowledge(self._progress.report)
        await self._published()
        log.info("trainer_ready", step=self._progress.step, is_simulated=self._learner.is_simulated)

    async def _pull_or_end(self, stop: asyncio.Event) -> Batch | None:
        """The next batch; None when told to stop, or when the run is complete."""
        try:
            return await self._pull(stop)
        except RunComplete as end:
            log.info("run_complete", reason=str(end), step=self._progress.step)
            return None

    async def _pull(self, stop: asyncio.Event) -> Batch | None:
        """The next batch; None when told to stop. A version that the store refuses ends the wait with its error."""
        pulling = asyncio.create_task(self._feed.pull(self._progress))
        stopping = asyncio.create_task(stop.wait())
        waits: set[asyncio.Task[object]] = {pulling, stopping}
        if self._publishing is not None:
            waits.add(self._publishing)
        try:
            while True:
                done, waits = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if stopping in done:
                    return None
                if pulling in done:
                    return pulling.result()
                await self._published()
        finally:
            pulling.cancel()
            stopping.cancel()
            await asyncio.gather(pulling, stopping, return_exceptions=True)

    async def _learn(self, batch: Batch, *, wait_s: float) -> None:
        report = self._progress.report
        if report is not None and batch.id == report.batch:
            log.info("batch_known", batch=batch.id, step=self._progress.step)
            await self._feed.acknowledge(report)
            return
        began = self._clock.now()
        with span("rl.step", step=batch.id, groups=(row.group for row in batch.rows), rows=len(batch.rows)):
            metrics = await self._learner.step(batch)
        stepped = self._clock.now()
        await self._published()
        free_at = self._clock.now()
        version = Version(self._progress.step + 1)
        draft, probe, probe_s = await self._snapshot(version)
        ended = self._clock.now()
        self._probes.trained(wait_s + ended - began)
        report = StepReport(
            batch=batch.id,
            policy=self._policy,
            version=version,
            wait_s=wait_s,
            compute_s=stepped - began,
            publish_s=ended - stepped,
            metrics={
                **metrics,
                **_costs(self._sent, at=self._sent_at),
                "publish_wait_s": free_at - stepped,
                "publish_copy_s": ended - free_at - probe_s,
                "publish_probe_s": probe_s,
            },
        )
        await self._keep(report, draft, probe)

    async def _keep(self, report: StepReport, draft: Draft, probe: Probe | None) -> None:
        began = self._clock.now()
        progress = replace(self._progress, step=int(report.version), report=report)
        await self._learner.keep(progress)
        self._progress = progress
        checkpoint_s = self._clock.now() - began
        await self._publish(draft, probe)
        await self._feed.acknowledge(replace(report, metrics={**report.metrics, "checkpoint_s": checkpoint_s}))
        log.info(
            "step",
            step=progress.step,
            batch=report.batch,
            reward=report.metrics.get("reward_mean"),
            wait_s=round(report.wait_s, 3),
            compute_s=round(report.compute_s, 3),
            publish_s=round(report.publish_s, 3),
            checkpoint_s=round(checkpoint_s, 3),
        )

    async def _snapshot(self, version: Version) -> tuple[Draft, Probe | None, float]:
        """The weights now, copied off the device; nobody knows of them yet. With the probe, if it is due, and the
        seconds that took."""
        draft = await self._publisher.draft(self._learner.published)
        await self._learner.snapshot(draft)
        if not self._probes.is_due(version):
            return draft, None, 0.0
        began = self._clock.now()
        probe = await self._learner.probe()
        probe_s = self._clock.now() - began
        self._probes.made(probe_s)
        return draft, probe, probe_s

    async def _publish(self, draft: Draft, probe: Probe | None) -> None:
        """Hand the version over; it is sent beside what comes next."""
        await self._publisher.publish(self._progress.version, draft, probe=probe)
        self._publishing = asyncio.create_task(self._publisher.wait())

    async def _published(self) -> None:
        """Until the version handed over last is in the store."""
        if self._publishing is not None:
            self._sent = await self._publishing
            self._sent_at = self._clock.wall()
            self._publishing = None


def _costs(stats: PublishStats | None, *, at: float) -> dict[str, float]:
    """What the version before took to publish. at: when the store had it, Unix seconds."""
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
