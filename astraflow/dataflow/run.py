"""One run: its flows, streams and nodes, and their recovery after a restart.

All state lives on one event loop and changes in synchronous steps; an operation that must wait (for a task, for a
batch) waits for a notification and checks again. Answers to clients are sent after the journal reports durability.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from astraflow.archive.set_aside import SetAsideFiles, counts_text
from astraflow.contract.batching import BatchingFacts
from astraflow.contract.errors import InvalidInput, RunComplete, UnknownPolicy
from astraflow.contract.ids import FlowId, NodeId, PolicyId, Version
from astraflow.contract.plugins import PluginChange
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import Record, problem_record
from astraflow.contract.rollouts.limits import RowLimits
from astraflow.contract.rollouts.recording import Mixture
from astraflow.contract.values import Json, Value
from astraflow.dataflow.activity import RunActivity, TermActivity
from astraflow.dataflow.evaluation.evaluation import Evaluation
from astraflow.dataflow.evaluation.rounds import RoundArchive
from astraflow.dataflow.flow import Flow
from astraflow.dataflow.history.events import Events
from astraflow.dataflow.history.samples import TrajectorySamples
from astraflow.dataflow.history.training_steps import TrainingSteps
from astraflow.dataflow.issuing.shares import Shares
from astraflow.dataflow.notifier import Notifier
from astraflow.dataflow.plugin_changes import PluginChanges, selector_rows_owner
from astraflow.dataflow.pool.registry import NodeRegistry
from astraflow.dataflow.records import Records, RecoveredRun
from astraflow.dataflow.serving.stalls import StallDetector
from astraflow.dataflow.serving.stream import DAMAGED, Stream
from astraflow.dataflow.stop_condition import StopCondition
from astraflow.dataflow.storage.journal import Journal
from astraflow.dataflow.storage.prompt_rows import RowProvider
from astraflow.runtime.clock import Clock

TRAINER_WAIT_VALID_S = 10.0
"""Time for which a trainer's word about what it waits for is valid; it repeats it every two seconds."""


_ESSENTIAL = ("flow ", "stream ", "evaluation ")
"""Begins of the names of states without which a run cannot go on."""


@dataclass(kw_only=True, eq=False)
class Run:
    """State shared by the three loops; `NodeOperations` and `TrainerOperations` change it."""

    flows: dict[FlowId, Flow]
    streams: dict[PolicyId, Stream]
    evaluations: dict[FlowId, Evaluation]
    untrained_policies: frozenset[PolicyId] = frozenset()
    """Policies of the run that have no stream, such as judges. Their trainers publish version 0 and exit."""
    registry: NodeRegistry
    shares: Shares
    journal: Journal
    events: Events
    samples: TrajectorySamples
    training_steps: TrainingSteps
    round_archive: RoundArchive
    set_aside: SetAsideFiles
    stall_detector: StallDetector
    stop_condition: StopCondition
    lease_s: float
    episode_ceiling_s: float
    memory_bytes: int
    clock: Clock
    trainers: dict[PolicyId, dict[str, Json]] = field(default_factory=dict, init=False)
    """Facts that the trainer of each policy reported about itself."""
    trainer_waits: dict[PolicyId, tuple[float, str]] = field(default_factory=dict, init=False)
    """Time of the latest message of each policy's trainer, and why it waits, such as a full disk."""
    waiting_pulls: Counter[PolicyId] = field(default_factory=Counter, init=False)
    """Number of pulls that wait for a batch, by policy."""
    pulled_at: dict[PolicyId, float] = field(default_factory=dict, init=False)
    """Time of the first pull that has got no batch yet, by policy."""
    nodes_notifier: Notifier = field(default_factory=Notifier, init=False)
    """Notified when there may be tasks to lease, by node."""
    trainers_notifier: Notifier = field(default_factory=Notifier, init=False)
    """Notified when there may be a batch to pull, by policy."""
    _damage: Record | None = field(default=None, init=False)
    """Sentence about the records that could not be read at the start; empty if all could."""

    def __post_init__(self) -> None:
        self.records = Records(self.journal)
        self.activity = RunActivity(list(self.streams), now=self.clock.now())
        self.term_activity = TermActivity(self.flows, now=self.clock.now())
        self.plugin_changes = PluginChanges(
            self.flows,
            self.streams,
            trainers=self.trainers,
            journal=self.journal,
            records=self.records,
            events=self.events,
        )

    @property
    def all_flows(self) -> list[Flow]:
        """Flows of training and of evaluations."""
        return [*self.flows.values(), *(evaluation.flow for evaluation in self.evaluations.values())]

    def flow_named(self, name: FlowId) -> Flow | None:
        """Returns the flow of training or of an evaluation with this name, None for an unknown one."""
        evaluation = self.evaluations.get(name)
        return self.flows.get(name) if evaluation is None else evaluation.flow

    def stream(self, policy: PolicyId) -> Stream:
        """Returns the stream of a policy. Raises: UnknownPolicy."""
        if policy not in self.streams:
            raise UnknownPolicy(
                f"cannot find policy {policy!r}: this run has no such policy; choose from {', '.join(self.streams)}",
                code="policy.unknown",
            )
        return self.streams[policy]

    def row_limits(self, policies: Iterable[PolicyId]) -> dict[PolicyId, RowLimits]:
        """Returns what the trainers of these policies state about the rows that they can train."""
        return {policy: _row_limits(self.trainers[policy]) for policy in policies if policy in self.trainers}

    def batching(self, policy: PolicyId) -> BatchingFacts | None:
        """Returns how the trainer of a policy computes its passes; None before it has attached."""
        facts: Any = self.trainers.get(policy, {}).get("batching")
        return None if facts is None else BatchingFacts(**facts)

    @property
    def is_over(self) -> bool:
        """True if the stop condition is met and ends the run: nothing more is issued or served for training."""
        return self.stop_condition.is_over

    @property
    def trains_nothing(self) -> bool:
        """True if no training task is issued: the run is over, or all its flows are paused."""
        return self.is_over or all(flow.is_paused for flow in self.flows.values())

    @property
    def needs_no_nodes(self) -> bool:
        """True if the run is over and no evaluation round remains to finish."""
        has_evaluations = any(
            evaluation.rounds.round is not None or evaluation.pending_request
            for evaluation in self.evaluations.values()
        )
        return self.is_over and not has_evaluations

    async def raise_run_complete(self) -> None:
        """Raises RunComplete once the completion is durable. Raises: RunComplete, StorageFull."""
        await self.journal.wait_durable()
        completion = self.stop_condition.completion
        raise RunComplete(
            f"the run is complete: {completion.reason if completion else 'it was stopped'}", code="run.complete"
        )

    def drain_node(self, node_id: NodeId, *, actor: str, reason: str, deadline_s: float) -> str:
        """Drains a node: it finishes its running tasks and leaves, within `deadline_s` seconds (0: without a limit).

        Raises: UnknownNode, InvalidInput.
        """
        if not 0 <= deadline_s < math.inf:
            raise InvalidInput(
                f"cannot drain node {node_id!r} with a deadline of {deadline_s} s: it must be finite and not negative; "
                "give seconds, or 0 for no limit",
                code="drain.invalid_deadline",
            )
        until = self.clock.now() + deadline_s if deadline_s else None
        node = self.registry.drain(node_id, f"{actor}: {reason}", until=until)
        limit = f", within {round(deadline_s, 1):g} s" if deadline_s else ""
        within: dict[str, Any] = {"deadline_s": round(deadline_s, 1)} if deadline_s else {}
        self.events.record_action(RecordKind.NODE_DRAINED, node.id, actor=actor, reason=reason, **within)
        return f"{node.id} is draining: it leases no more tasks and leaves when its running tasks have ended{limit}"

    def pause_flow(self, flow_id: FlowId, *, is_paused: bool, actor: str, reason: str) -> str:
        """Pauses or resumes a flow. Raises: InvalidInput."""
        if flow_id not in self.flows:
            raise InvalidInput(
                f"cannot pause or resume flow {flow_id!r}: this run has no such flow; choose from "
                f"{', '.join(self.flows)}",
                code="flow.unknown",
            )
        self.flows[flow_id].is_paused = is_paused
        kind = RecordKind.FLOW_PAUSED if is_paused else RecordKind.FLOW_RESUMED
        self.events.record_action(kind, flow_id, actor=actor, reason=reason)
        self.plugin_changes.activate_due_of_paused_flow(self.flows[flow_id])
        self.notify()
        return f"{flow_id} is {'paused' if is_paused else 'resumed'}"

    def change_plugins(self, change: PluginChange) -> str:
        """Plans a change of data algorithms. Raises: InvalidInput, NotPermitted, UnknownPolicy."""
        answer = self.plugin_changes.plan(change)
        self.notify()
        return answer

    def restore(self, *, grace_s: float) -> None:
        """Restores the state from the journal, and registers the state that the journal saves from now on.

        What cannot be read is set aside, see `report_damage`. Raises: InvalidInput when the run cannot go on without
        it.
        """
        for name, part in self._parts().items():
            self._restore_part(name, part)
            self.journal.register_state(name, part.state_dict)
        self._restore_rows()
        self.journal.load_state("trainers", self._load_trainers)
        self.journal.register_state(
            "trainers", lambda: {str(policy): dict(facts) for policy, facts in self.trainers.items()}
        )
        recovered = self.records.recover()
        self._count_lost(recovered)
        now = self.clock.now()
        for flow in self.all_flows:
            groups = [group for group in recovered.open_groups if group.flow == flow.id]
            flow.restore(groups, recovered.partials, now=now, grace_s=grace_s)
        for policy, stream in self.streams.items():
            stream.restore(
                recovered.buffered.get(policy, []),
                recovered.batches.get(policy, []),
                recovered.replayable.get(policy, []),
            )
            self.records.record_released(policy, stream.release_unreplayed())
        for evaluation in self.evaluations.values():
            evaluation.restore(recovered.evaluations)
        self.round_archive.restore(recovered.evaluations)
        steps = {policy: stream.counts.steps for policy, stream in self.streams.items()}
        self.training_steps.restore(steps)
        self.stop_condition.resume(steps, at=self.clock.wall())
        self.samples.mark_unrecorded({policy: stream.untrained_groups() for policy, stream in self.streams.items()})

    def report_damage(self, run: str) -> None:
        """Stores the records that could not be read for a bug report, and records them as an event and a problem.

        run: name of the run.
        """
        records = list(self.journal.damaged.values())
        if not records:
            return
        try:
            stored: dict[str, Value] = {"stored_as": self.set_aside.store_records(records, at=self.clock.wall())}
        except OSError as problem:
            stored = {"store_error": str(problem)}
        first = f"{records[0].what} {records[0].key}: {records[0].problem}"
        values: dict[str, Any] = {"records": len(records), "counts": counts_text(records), "first": first, **stored}
        self._damage = problem_record("records_set_aside", run, **values)
        self.events.record_action(RecordKind.RECORDS_SET_ASIDE, run, **values)

    def _restore_part(self, name: str, part: Any) -> None:
        """Restores one state. Raises: InvalidInput when a flow's or a stream's cannot be read: it has the counts."""
        self.journal.load_state(name, part.load_state_dict)
        record = self.journal.damaged.get(("state", name))
        if record is not None and name.startswith(_ESSENTIAL):
            raise InvalidInput(
                f"cannot resume: the saved state of the {record.key} cannot be read ({record.problem}), which has the "
                "counts of the run; restore the folder of dataflow from a backup, or start a new run",
                code="journal.state_damaged",
            )

        for slot, plugins in getattr(part, "plugin_slots", {}).items():
            for label, (refusal, state) in plugins.unloaded.items():
                self.journal.set_aside("plugin state", f"{name} {slot.value} {label}", refusal, body=state)

    def _load_trainers(self, saved: Mapping[str, Any]) -> None:
        self.trainers.update(
            {
                PolicyId(policy): {
                    "backend": str(facts["backend"]),
                    "is_simulated": bool(facts["is_simulated"]),
                    "limits": asdict(_row_limits(facts)),
                    "batching": facts.get("batching"),
                }
                for policy, facts in saved.items()
            }
        )

    def _count_lost(self, recovered: RecoveredRun) -> None:
        """Counts the groups that could not be read as dropped."""
        for flow_id, count in recovered.lost_groups.items():
            if flow_id in self.flows:
                self.flows[flow_id].counts.dropped[DAMAGED] += count
                for policy in self.flows[flow_id].policies:
                    self.streams[policy].counts.refused += count
        for policy, count in recovered.lost_shares.items():
            if policy in self.streams:
                self.streams[policy].counts.dropped[DAMAGED] += count

    def oldest_trainable_versions(self) -> dict[PolicyId, Version]:
        """Returns the oldest version of each policy that can still be trained on."""
        return {policy: stream.oldest_trainable_version for policy, stream in self.streams.items()}

    def _restore_rows(self) -> None:
        """Restores rows, and deletes the rows of selectors that the run no longer has."""
        providers = {
            owner: flow.rows[1] for flow in self.all_flows if flow.rows and (owner := selector_rows_owner(flow))
        }
        for owner, provider in providers.items():
            self._load_rows(owner, provider)
            self.journal.register_rows(owner, provider.changed_rows)
        statement = "delete from rows where owner not in (select value from json_each(?))"
        self.journal.put(statement, json.dumps(list(providers)))

    def _load_rows(self, owner: str, provider: RowProvider) -> None:
        rows = self.journal.saved_rows(owner)
        try:
            provider.load_rows(rows)
        except Exception as problem:  # a plugin may reject the rows of another release with any error
            self.journal.set_aside("rows", owner, problem, body=json.dumps(rows))
            self.journal.put("delete from rows where owner = ?", owner)
            provider.load_rows({})

    def _parts(self) -> dict[str, Any]:
        return {
            "registry": self.registry,
            "stop": self.stop_condition,
            **{f"flow {flow_id}": flow for flow_id, flow in self.flows.items()},
            **{f"stream {policy}": stream for policy, stream in self.streams.items()},
            **{f"steps {policy}": stream.history for policy, stream in self.streams.items()},
            **{f"evaluation {flow_id}": evaluation for flow_id, evaluation in self.evaluations.items()},
        }

    @property
    def held_bytes(self) -> int:
        """Memory held by results and partial rollouts. Bytes."""
        return self.records.held_bytes + sum(flow.partial_rollouts.stored_bytes for flow in self.all_flows)

    @property
    def may_issue(self) -> bool:
        """True if new groups may be issued: the journal has not failed, and results do not fill the memory."""
        return self.journal.failure is None and self.held_bytes < self.memory_bytes

    def problems(self) -> tuple[Record, ...]:
        """Returns what blocks the run now."""
        problems = (
            [] if self.journal.failure is None else [problem_record("journal", "", error=str(self.journal.failure))]
        )
        waiting = [stream for policy, stream in self.streams.items() if self.waiting_pulls[policy]]
        is_starved = any(not stream.open_batches for stream in waiting)
        if is_starved and self.held_bytes >= self.memory_bytes:
            problems.append(problem_record("memory_full", "", limit_mib=self.memory_bytes / 2**20))
        now = self.clock.now()
        waits = [
            problem_record("trainer_problem", policy, policy=policy, error=error)
            for policy, (at, error) in self.trainer_waits.items()
            if error and now - at < TRAINER_WAIT_VALID_S
        ]
        set_aside = filter(None, [self._damage, *(stream.last_set_aside for stream in self.streams.values())])
        return (*problems, *waits, *self._flows_without_nodes(), *self._nodes_on_probation(), *set_aside)

    def _nodes_on_probation(self) -> list[Record]:
        """Returns a problem for each node that keeps tasks and returns no results."""
        kept = {node.facts.name: node.kept for node in self.registry.nodes() if node.kept and node.is_live}
        return [problem_record("node_on_probation", name, node=name, held=held) for name, held in kept.items()]

    def _flows_without_nodes(self) -> list[Record]:
        """Returns a problem for each flow that none of the nodes serves; none while the run has no nodes."""
        nodes = [node for node in self.registry.nodes() if node.is_live and node.drain_reason is None]
        with_nodes = [flow for flow in self.all_flows if flow.answers is None]
        unserved = [flow for flow in with_nodes if not any(node.facts.serves(flow.served_policies) for node in nodes)]
        return [
            problem_record("flow_unserved", flow.id, flow=flow.id, policies=", ".join(flow.served_policies))
            for flow in unserved
            if nodes and not self.is_over
        ]

    def notify(self) -> None:
        """Notifies all waiting operations, which check the state again."""
        self.nodes_notifier.notify()
        self.trainers_notifier.notify()

    def stop(self) -> None:
        """Ends all waits."""
        self.nodes_notifier.stop()
        self.trainers_notifier.stop()


def _row_limits(facts: Mapping[str, Any]) -> RowLimits:
    """Returns the limits in the facts of a trainer, which an earlier release may have stored without any."""
    limits = facts.get("limits", {})
    mixture = limits.get("mixture")
    return RowLimits(**{**limits, "mixture": None if mixture is None else Mixture(**mixture)})
