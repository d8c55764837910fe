"""One run: its flows, streams and nodes, and how they come back after a restart.

All state lives on one event loop and changes in plain synchronous steps; whoever must wait (for a task, for a batch)
waits for a change and looks again. What is answered to the outside is answered after the journal says it is durable.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from astraflow.contract.errors import InvalidInput, RunComplete, UnknownPolicy
from astraflow.contract.ids import FlowId, NodeId, PolicyId, Version
from astraflow.contract.plugins import PluginChange
from astraflow.contract.values import Json
from astraflow.dataflow.bell import Bell
from astraflow.dataflow.changes import PluginChanges, owner_of_rows
from astraflow.dataflow.evaluating.evaluation import Evaluation
from astraflow.dataflow.flow import Flow
from astraflow.dataflow.issuing.stalls import Stalls
from astraflow.dataflow.journal import Journal
from astraflow.dataflow.pool.registry import Registry
from astraflow.dataflow.records import Records
from astraflow.dataflow.reporting.events import Events
from astraflow.dataflow.reporting.ledger import Ledger
from astraflow.dataflow.reporting.rounds import KeptRounds
from astraflow.dataflow.reporting.samples import Samples
from astraflow.dataflow.serving.stream import Stream
from astraflow.dataflow.stopping import StopCondition
from astraflow.runtime.clock import Clock


class Run:
    """The state that the three loops share; `NodeSide` and `TrainerSide` are what they do to it."""

    def __init__(
        self,
        flows: Mapping[FlowId, Flow],
        streams: Mapping[PolicyId, Stream],
        evaluations: Mapping[FlowId, Evaluation],
        *,
        registry: Registry,
        journal: Journal,
        events: Events,
        samples: Samples,
        rounds: KeptRounds,
        stalls: Stalls,
        stop_condition: StopCondition,
        lease_s: float,
        memory_bytes: int,
        clock: Clock,
    ) -> None:
        self.flows = dict(flows)
        self.streams = dict(streams)
        self.evaluations = dict(evaluations)
        self.registry = registry
        self.journal = journal
        self.records = Records(journal)
        self.events = events
        self.samples = samples
        self.rounds = rounds
        self.stalls = stalls
        self.stop_condition = stop_condition
        self.ledger = Ledger(list(streams), now=clock.now())
        self.trainers: dict[PolicyId, dict[str, Json]] = {}
        """What the trainer of each policy said about itself."""
        self.changes = PluginChanges(
            self.flows,
            self.streams,
            trainers=self.trainers,
            journal=journal,
            records=self.records,
            events=self.events,
        )
        self.waiting: Counter[PolicyId] = Counter()
        """Pulls that wait for a batch now."""
        self.lease_s = lease_s
        self.memory_bytes = memory_bytes
        self.clock = clock
        self.nodes_bell = Bell()
        """Rung when there may be tasks to lease, by node."""
        self.trainers_bell = Bell()
        """Rung when there may be a batch to pull, by policy."""

    @property
    def every_flow(self) -> list[Flow]:
        """Those that are trained on, and those of the evaluations."""
        return [*self.flows.values(), *(evaluation.flow for evaluation in self.evaluations.values())]

    def stream(self, policy: PolicyId) -> Stream:
        """The stream of a policy. Raises: UnknownPolicy."""
        if policy not in self.streams:
            raise UnknownPolicy(f"this run has no policy {policy!r}; it has {', '.join(self.streams)}")
        return self.streams[policy]

    @property
    def is_over(self) -> bool:
        """The stop condition is met and ends the run: nothing is issued or served for training any more."""
        return self.stop_condition.is_over

    @property
    def needs_no_nodes(self) -> bool:
        """The run is over, and no round of an evaluation is left to finish."""
        is_evaluated = any(
            evaluation.rounds.round is not None or evaluation.waiting for evaluation in self.evaluations.values()
        )
        return self.is_over and not is_evaluated

    async def refuse_complete(self) -> None:
        """Tells the caller, once that is durable, that the run is complete. Raises: RunComplete, StorageFull."""
        await self.journal.durable()
        completion = self.stop_condition.completion
        raise RunComplete(f"the run is complete: {completion.reason if completion else 'it was stopped'}")

    def drain_node(self, node_id: NodeId, *, actor: str, reason: str, deadline_s: float) -> str:
        """Have a node finish what runs and leave; within `deadline_s`, unless it is 0.

        Raises: UnknownNode, InvalidInput.
        """
        if not 0 <= deadline_s < math.inf:
            raise InvalidInput(f"a deadline of {deadline_s} s: give the seconds that the node has, or 0 for no limit")
        until = self.clock.now() + deadline_s if deadline_s else None
        node = self.registry.drain(node_id, f"{actor}: {reason}", until=until)
        limit = f", at the latest in {deadline_s:g} s" if deadline_s else ""
        self.events.act("node_drained", node.id, actor=actor, reason=f"{reason}{limit}")
        return f"{node.id} leases nothing more; it leaves when what runs has ended{limit}"

    def pause_flow(self, flow_id: FlowId, *, is_paused: bool, actor: str, reason: str) -> str:
        """Stop or go on issuing. Raises: InvalidInput."""
        if flow_id not in self.flows:
            raise InvalidInput(f"this run has no flow {flow_id!r}; it has {', '.join(self.flows)}")
        self.flows[flow_id].is_paused = is_paused
        word = "paused" if is_paused else "resumed"
        self.events.act(f"flow_{word}", flow_id, actor=actor, reason=reason)
        self.changes.carry_out_paused(self.flows[flow_id])
        self.notify()
        return f"{flow_id} is {word}"

    def change_plugins(self, change: PluginChange) -> str:
        """Have other data algorithms decide from the next version on. Raises: InvalidInput, UnknownPolicy."""
        answer = self.changes.ask(change)
        self.notify()
        return answer

    def restore(self, *, grace_s: float) -> None:
        """Take up what the journal holds, and have it keep the rest from now on."""
        for name, part in self._parts().items():
            saved = self.journal.saved_state(name)
            if saved is not None:
                part.load_state_dict(saved)
            self.journal.keep_state(name, part.state_dict)
        self._restore_rows()
        saved = self.journal.saved_state("trainers")
        self.trainers.update({PolicyId(policy): facts for policy, facts in (saved or {}).items()})
        self.journal.keep_state("trainers", lambda: {str(policy): dict(f) for policy, f in self.trainers.items()})
        recovered = self.records.recover()
        now = self.clock.now()
        for flow in self.every_flow:
            groups = [group for group in recovered.open_groups if group.flow == flow.id]
            flow.restore(groups, recovered.partials, now=now, grace_s=grace_s)
        for policy, stream in self.streams.items():
            stream.restore(
                recovered.buffered.get(policy, []),
                recovered.batches.get(policy),
                recovered.replayable.get(policy, []),
            )
            self.records.released(policy, stream.forget_unreplayed())
        for evaluation in self.evaluations.values():
            evaluation.restore(recovered.evaluations)
        self.rounds.restore(recovered.evaluations)
        steps = {policy: stream.counts.steps for policy, stream in self.streams.items()}
        self.stop_condition.resume(steps, at=self.clock.wall())
        self.samples.settle({policy: stream.waiting() for policy, stream in self.streams.items()})

    def floors(self) -> dict[PolicyId, Version]:
        """The oldest version of each policy that can still be trained on."""
        return {policy: stream.floor for policy, stream in self.streams.items()}

    def _restore_rows(self) -> None:
        """Rows of a selector that the run has no more are forgotten: it would begin anew with its other state."""
        keepers = {owner: flow.rows[1] for flow in self.every_flow if flow.rows and (owner := owner_of_rows(flow))}
        for owner, keeper in keepers.items():
            keeper.load_rows(self.journal.saved_rows(owner))
            self.journal.keep_rows(owner, keeper.changed_rows)
        statement = "delete from rows where owner not in (select value from json_each(?))"
        self.journal.put(statement, json.dumps(list(keepers)))

    def _parts(self) -> dict[str, Any]:
        return {
            "registry": self.registry,
            "stop": self.stop_condition,
            **{f"flow {flow_id}": flow for flow_id, flow in self.flows.items()},
            **{f"stream {policy}": stream for policy, stream in self.streams.items()},
            **{f"evaluation {flow_id}": evaluation for flow_id, evaluation in self.evaluations.items()},
        }

    @property
    def held_bytes(self) -> int:
        """Of results, and of what was handed back: what waits in memory for its use."""
        return self.records.held_bytes + sum(flow.prefixes.kept_bytes for flow in self.every_flow)

    @property
    def may_begin(self) -> bool:
        """Whether new groups may be issued at all: not while the disk fails, nor while results fill the memory."""
        return self.journal.failure is None and self.held_bytes < self.memory_bytes

    def troubles(self) -> tuple[str, ...]:
        """What keeps the run from going on now, each with what to do."""
        found = [] if self.journal.failure is None else [str(self.journal.failure)]
        is_starved = any(self.waiting[policy] and stream.batch is None for policy, stream in self.streams.items())
        if is_starved and self.held_bytes >= self.memory_bytes:
            found.append(
                f"results fill the {self.memory_bytes / 2**20:.0f} MiB they may take, and no batch is complete: "
                "raise dataflow.memory_bytes, or lower batch_groups or max_staleness"
            )
        return tuple(found)

    def notify(self) -> None:
        """Something changed that may matter to anyone: whoever waits looks again."""
        self.nodes_bell.ring()
        self.trainers_bell.ring()

    def stop(self) -> None:
        """Whoever waits comes back empty-handed."""
        self.nodes_bell.stop()
        self.trainers_bell.stop()
