"""Operations of trainers on a run: attach, pull, report a step or its failure."""

import asyncio
from dataclasses import asdict
from functools import partial
from typing import Any

from astraflow.archive.set_aside import SetAsideBatch, failure_text, row_nodes
from astraflow.contract.batches import Batch, StepFailure, StepReport
from astraflow.contract.batching import BatchingFacts
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import problem_record
from astraflow.contract.rollouts.limits import RowLimits
from astraflow.dataflow.operations.evaluator import Evaluator
from astraflow.dataflow.run import Run
from astraflow.dataflow.serving.buffer import ServedBatch
from astraflow.dataflow.serving.failed_steps import MAX_IN_A_ROW, Verdict
from astraflow.dataflow.serving.stream import SET_ASIDE, STALE, Stream
from astraflow.runtime.tracing import span

NAMED_NODES = 3
"""Nodes that the event of a batch that is set aside names. Count."""


class TrainerOperations:
    """Serves batches to trainers, and acknowledges the steps that they report."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._evaluator = Evaluator(run)

    def attach(
        self,
        policy: PolicyId,
        version: Version,
        *,
        backend: str,
        is_simulated: bool,
        limits: RowLimits = RowLimits(),  # noqa: B008 (frozen)
        batching: BatchingFacts | None = None,
        damage: str = "",
    ) -> int:
        """Attaches a trainer to a policy, at `version`; returns the acknowledged steps of its stream. A policy that is
        not trained has no stream: its trainer only publishes it. limits: of the rows that it can train, which hold for
        results from now on; the trainer itself drops earlier rows beyond them. damage: sentence about checkpoints that
        it has set aside; empty without any. Raises: UnknownPolicy."""
        is_trained = policy not in self._run.untrained_policies
        stream = self._run.stream(policy) if is_trained else None
        self._run.trainers[policy] = {
            "backend": backend,
            "is_simulated": is_simulated,
            "limits": asdict(limits),
            "batching": None if batching is None else asdict(batching),
        }
        if stream is not None:
            damaged = problem_record("checkpoint_set_aside", policy, error=damage)
            if damage and damaged != stream.last_set_aside:
                stream.note_set_aside(damaged)
                self._run.events.add(RecordKind.CHECKPOINT_SET_ASIDE, policy, error=damage)
            self._advance(stream, version)
        text = "" if batching is None else batching.sentence
        self._run.events.add(RecordKind.TRAINER_ATTACHED, policy, backend=backend, version=version, batching=text)
        return stream.counts.steps if stream is not None else 0

    async def pull(self, policy: PolicyId, version: Version, *, wait_s: float, unacknowledged: int = 0) -> Batch | None:
        """Returns the batch for a trainer at `version`; None when none was complete within `wait_s`.

        unacknowledged: batches that the trainer has trained and acknowledges later; see `Stream.position_of`.
        Raises: UnknownPolicy, RunComplete.
        """
        stream = self._run.stream(policy)
        is_advance = version > stream.version
        self._advance(stream, version)
        if is_advance:
            await self._run.journal.wait_durable()
        deadline = self._run.clock.now() + wait_s
        self._run.pulled_at.setdefault(policy, self._run.clock.now())
        self._run.waiting_pulls[policy] += 1
        try:
            while True:
                if self._run.is_over:
                    await self._run.raise_run_complete()
                subscription = self._run.trainers_notifier.subscribe(policy)
                position = stream.position_of(version, unacknowledged=unacknowledged)
                is_new = position == len(stream.open_batches)
                is_over = self._is_beyond_end(stream, position)
                served = None if is_over else stream.next_batch(position, now=self._run.clock.now())
                if served is not None:
                    if is_new:
                        with span("rl.batch", step=served.id, groups=(group.id for group in served.fresh_groups)):
                            self._run.records.record_batch(policy, served)
                        fresh_groups = [group.id for group in served.fresh_groups]
                        self._run.samples.set_batched(policy, fresh_groups, at=self._run.clock.wall())
                        self._run.nodes_notifier.notify()  # the groups of the batch make room for others
                    await self._run.journal.wait_durable()
                    self._run.pulled_at.pop(policy, None)
                    return stream.deliver(served)
                if not await subscription.wait(deadline - self._run.clock.now()):
                    return None
        finally:
            self._run.waiting_pulls[policy] -= 1

    def report_wait(self, policy: PolicyId, problem: str) -> None:
        """Records what a trainer waits for; an empty text ends it."""
        self._run.trainer_waits[policy] = (self._run.clock.now(), problem)

    async def report_step(self, report: StepReport) -> bool:
        """Acknowledges a batch; returns False if it was acknowledged before. Raises: UnknownPolicy, InvalidInput."""
        stream = self._run.stream(report.policy)
        acknowledged = stream.acknowledge(report)
        if acknowledged is not None:
            trained_at = self._run.clock.wall()
            self._run.training_steps.add(stream, report, at=trained_at)
            self._run.records.record_trained(
                report.policy, report.batch, replayable=acknowledged.replayable, released=acknowledged.released
            )
            now = self._run.clock.now()
            for group in acknowledged.trained:
                self._run.activity[report.policy].consumed.add(1, now=now)
                self._run.samples.set_outcome(
                    report.policy, group.id, outcome="trained", step=stream.counts.steps, trained_at=trained_at
                )
            self._check_stop_condition(stream)
        self._advance(stream, report.version)
        await self._run.journal.wait_durable()
        return acknowledged is not None

    async def report_failure(self, failure: StepFailure) -> bool:
        """Counts a step that ended its trainer; returns True if that sets its batch aside.

        Raises: UnknownPolicy; InvalidInput when the batches before it were set aside too.
        """
        stream = self._run.stream(failure.policy)
        served = stream.open_batch(failure.batch)
        if served is None:
            return False
        is_hung = self._run.stall_detector.is_hung(failure.policy, failure.step_s)
        verdict = stream.failed_steps.observe(failure, is_hung=is_hung)
        if verdict is Verdict.NOTHING:
            return False
        failures = stream.failed_steps.of(failure.batch)
        error = failure_text(failures[-1])
        self._run.events.add(
            RecordKind.STEP_FAILED, failure.policy, attempt=len(failures), batch=failure.batch, error=error
        )
        if verdict is Verdict.OTHER_CAUSE:
            await self._run.journal.wait_durable()
            raise InvalidInput(
                f"cannot train {failure.policy!r}: the steps on batch {failure.batch!r} and on {MAX_IN_A_ROW} "
                f"batches that were set aside before it failed, so the batches are not the cause: {error}; correct the "
                "cause and start the trainer again",
                code="trainer.steps_keep_failing",
            )
        is_set_aside = verdict is Verdict.SET_ASIDE and await self._set_aside(stream, served)
        await self._run.journal.wait_durable()
        return is_set_aside

    async def _set_aside(self, stream: Stream, served: ServedBatch) -> bool:
        """Stores the rows of a batch and drops its groups; returns False if the batch is no longer open."""
        errors = [failure_text(failure) for failure in stream.failed_steps.of(served.id)]
        batch = SetAsideBatch(
            batch=served.id,
            policy=stream.policy,
            version=served.version,
            errors=tuple(errors),
            groups=len(served.fresh_groups) + len(served.replayed),
            nodes=row_nodes(served.rows),
        )
        store = partial(self._run.set_aside.store_batch, batch, served.rows, at=self._run.clock.wall())
        try:
            stored = {"stored_as": await asyncio.to_thread(store)}
        except OSError as problem:
            stored = {"store_error": str(problem)}
        if stream.open_batch(served.id) is not served:
            return False
        producers = ", ".join(f"{rows} of {node}" for node, rows in list(batch.nodes.items())[:NAMED_NODES])
        values: dict[str, Any] = {
            "batch": served.id,
            "rows": sum(batch.nodes.values()),
            "nodes": producers,
            "steps": len(errors),
            "error": errors[-1],
            **stored,
        }
        newer = stream.set_aside(served, problem_record("batch_set_aside", stream.policy, **values))
        groups = (*served.fresh_groups, *served.replayed)
        self._run.records.record_trained(stream.policy, served.id, replayable=(), released=groups)
        for dissolved in newer:
            self._run.records.record_dissolved(stream.policy, dissolved)
        for group in served.fresh_groups:
            self._run.samples.set_outcome(stream.policy, group.id, outcome=SET_ASIDE, step=None)
        self._run.events.record_action(RecordKind.BATCH_SET_ASIDE, stream.policy, **values)
        self._advance(stream, stream.version)
        return True

    def _is_beyond_end(self, stream: Stream, position: int) -> bool:
        """Returns True if the run ends when the batches before this one are acknowledged."""
        return position > 0 and self._run.stop_condition.ends_at(stream.policy, stream.counts.steps + position)

    def _check_stop_condition(self, stream: Stream) -> None:
        """Ends the run, or records the completion, if this step met the stop condition."""
        completion = self._run.stop_condition.observe(
            stream.policy,
            steps=stream.counts.steps,
            reward=stream.history.rewards[-1],
            loss=stream.history.losses[-1],
            at=self._run.clock.wall(),
        )
        if completion is not None:
            kind = RecordKind.RUN_COMPLETED if completion.ends_run else RecordKind.STOP_CONDITION_MET
            self._run.events.record_action(kind, stream.policy, condition=completion.reason)

    def _advance(self, stream: Stream, version: Version) -> None:
        """Sets the trainer's version, drops groups that are now too stale, and notifies nodes that wait at the gate."""
        stream.attach(version)
        for flow in self._run.flows.values():
            if stream.policy in flow.policies:
                flow.advance(min(self._run.streams[policy].version for policy in flow.policies))
                self._run.plugin_changes.activate_due(flow)
                for unfinished in flow.drop_stale_partial_rollouts(self._run.oldest_trainable_versions()):
                    self._run.records.record_unfinished(unfinished)
        self._run.plugin_changes.activate_due(stream)
        stale = stream.evict_stale()
        self._run.records.record_released(stream.policy, stale + stream.release_stale_replayable())
        for group in stale:
            self._run.samples.set_outcome(stream.policy, group.id, outcome=STALE, step=None)
        self._evaluator.advance()
        self._run.journal.touch()
        self._run.notify()
