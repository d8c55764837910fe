"""What trainers do to a run: attach, pull, report a step."""

from astraflow.contract.batches import Batch, StepReport
from astraflow.contract.ids import PolicyId, Version
from astraflow.dataflow.evaluating.evaluator import Evaluator
from astraflow.dataflow.run import Run
from astraflow.dataflow.serving.stream import STALE, Stream
from astraflow.runtime.tracing import span


class TrainerSide:
    """The way of a group through a run, from buffer to trained."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._evaluator = Evaluator(run)

    def attach(self, policy: PolicyId, version: Version, *, backend: str, is_simulated: bool) -> Stream:
        """A trainer consumes a policy's stream from `version` on. Raises: UnknownPolicy."""
        stream = self._run.stream(policy)
        self._run.trainers[policy] = {"backend": backend, "is_simulated": is_simulated}
        self._advance(stream, version)
        self._run.events.add("trainer_attached", policy, f"backend {backend} at version {version}")
        return stream

    async def pull(self, policy: PolicyId, version: Version, *, wait_s: float) -> Batch | None:
        """The batch for a trainer at `version`; None when none was complete within `wait_s`.

        Raises: UnknownPolicy, RunComplete.
        """
        stream = self._run.stream(policy)
        self._advance(stream, version)
        deadline = self._run.clock.now() + wait_s
        self._run.waiting[policy] += 1
        try:
            while True:
                if self._run.is_over:
                    await self._run.refuse_complete()
                ring = self._run.trainers_bell.listen(policy)
                is_new = stream.batch is None
                served = stream.next_batch()
                if served is not None:
                    if is_new:
                        with span("rl.batch", step=served.id, groups=(group.id for group in served.groups)):
                            self._run.records.batched(policy, served)
                    await self._run.journal.durable()
                    return stream.deliver(served)
                if not await ring.within(deadline - self._run.clock.now()):
                    return None
        finally:
            self._run.waiting[policy] -= 1

    async def report_step(self, report: StepReport) -> bool:
        """A trainer acknowledges a batch; False when it had before. Raises: UnknownPolicy, InvalidInput."""
        stream = self._run.stream(report.policy)
        step = stream.counts.steps
        done = stream.acknowledge(report)
        if done is not None:
            self._run.records.trained(report.policy, kept=done.kept, forgotten=done.forgotten)
            now = self._run.clock.now()
            for group in done.trained:
                self._run.ledger[report.policy].consumed.add(1, now=now)
                self._run.samples.mark(report.policy, group.id, fate="trained", step=step)
            self._judge(stream)
        self._advance(stream, report.version)
        await self._run.journal.durable()
        return done is not None

    def _judge(self, stream: Stream) -> None:
        """Ends the run, or notes what it reached, when this step met its stop condition."""
        completion = self._run.stop_condition.observe(
            stream.policy, steps=stream.counts.steps, reward=stream.rewards[-1], at=self._run.clock.wall()
        )
        if completion is not None:
            kind = "run_completed" if completion.ends_run else "stop_condition_met"
            self._run.events.act(kind, stream.policy, actor="dataflow", reason=completion.reason)

    def _advance(self, stream: Stream, version: Version) -> None:
        """The trainer is at this version: drop what became too stale, and wake whoever the gate held back."""
        stream.attach(version)
        for flow in self._run.flows.values():
            if stream.policy in flow.policies:
                flow.advance(min(self._run.streams[policy].version for policy in flow.policies))
                self._run.changes.carry_out(flow)
                for begun_anew in flow.drop_stale_prefixes(self._run.floors()):
                    self._run.records.unfinished(begun_anew)
        self._run.changes.carry_out(stream)
        stale = stream.evict_stale()
        self._run.records.released(stream.policy, stale + stream.forget_stale())
        for group in stale:
            self._run.samples.mark(stream.policy, group.id, fate=STALE, step=None)
        self._evaluator.advance()
        self._run.journal.touch()
        self._run.notify()
