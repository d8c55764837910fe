"""Names what keeps a trainer without a batch: a fold over reports, with one problem for each policy.

    supplied ──the same cause for HELD_S──► a problem names it ──another cause or none for HELD_S──► supplied

A trainer that waits for rollouts which run and succeed has no problem, however long they take.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from astraflow.contract.ids import FlowId, PolicyId
from astraflow.contract.records import Record, problem_record
from astraflow.contract.reports.report import FlowReport, NodeReport, NodeState, Report, StreamReport
from astraflow.contract.rollouts.failures import Boundary
from astraflow.contract.values import Value
from astraflow.dataflow.issuing.patience import DEFAULT_LIMIT_S

HELD_S = 10.0
"""A cause is reported when it holds for this long, and forgotten when it has not held for this long. Seconds."""

START_S = 45.0
"""Before the first step, trainers and engines that start are reported only after this long. Seconds."""

KEPT_GROUPS = 4.0
"""Mean time of a group, as a multiple, after which a task is held suspiciously long."""

MIN_GROUPS = 8
"""Groups without an admitted one, after which the filters count as the cause."""

MIN_EPISODES = 4
"""Failed episodes without a successful one, after which failures count as the cause."""

_FAILED = {f"failed_{boundary.value}" for boundary in Boundary} | {"retried"}
_LIVE = (NodeState.JOINING, NodeState.READY)


class Constraint(Enum):
    """Cause for which a trainer gets no batch."""

    NO_TRAINER = "no_trainer"
    """Nothing pulls batches for the policy."""
    NO_PULL = "no_pull"
    """The trainer pulls no batch although one is ready."""
    FLOWS_PAUSED = "flows_paused"
    """All flows of the policy are paused."""
    NO_NODE = "no_node"
    """No node is in the run."""
    NODES_STARTING = "nodes_starting"
    """No node has loaded a version yet."""
    EPISODES_FAIL = "episodes_fail"
    """All episodes fail: engine, environment, workflow or reward."""
    FILTERED = "filtered"
    """All groups are dropped when they are admitted."""
    OTHER_POLICY = "other_policy"
    """The staleness gate of another policy of the flow is closed."""
    OLD_WEIGHTS = "old_weights"
    """The staleness gate is closed, because all nodes serve versions that are too old."""
    TASKS_KEPT = "tasks_kept"
    """Nodes hold tasks for much longer than episodes take."""
    EVALUATING = "evaluating"
    """All nodes are reserved for evaluations."""
    NO_LEASES = "no_leases"
    """Nodes are ready and lease no task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRole:
    """Part of a flow in the run: whose trainers it supplies."""

    policies: tuple[PolicyId, ...]
    served_policies: tuple[PolicyId, ...]
    """Policies that a node must serve: the flow's own and its judges."""
    needs_nodes: bool
    """False for a flow that is trained on the answers of its dataset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stall:
    constraint: Constraint
    problem: Record
    held_s: float = HELD_S
    """Time for which the cause must hold. Seconds."""


@dataclass(frozen=True, slots=True)
class _Counts:
    """Cumulative counts of the flows of a policy."""

    accepted: int
    failed: Counter[str]
    """Failed episodes by outcome."""
    dropped: Counter[str]
    """Groups that were not admitted, by reason."""

    @classmethod
    def of(cls, flows: Iterable[FlowReport]) -> "_Counts":
        episodes, dropped = Counter[str](), Counter[str]()
        for flow in flows:
            episodes.update(flow.episodes)
            dropped.update(flow.dropped)
        return cls(
            accepted=episodes["accepted"],
            failed=Counter({outcome: count for outcome, count in episodes.items() if outcome in _FAILED}),
            dropped=dropped,
        )

    def since(self, earlier: "_Counts") -> "_Counts":
        """Returns the counts after an earlier time."""
        return _Counts(
            accepted=self.accepted - earlier.accepted,
            failed=self.failed - earlier.failed,
            dropped=self.dropped - earlier.dropped,
        )


@dataclass(slots=True)
class _StreamState:
    progress: tuple[int, int]
    """Steps and admitted groups."""
    base: _Counts
    """Counts when the progress changed last."""
    candidate: Constraint | None = None
    """Cause at the latest report, not yet reported."""
    candidate_since: float = 0.0
    reported: _Stall | None = None


class ConstraintMonitor:
    """Compares each report with the previous ones. Its problems keep their values while their cause holds."""

    def __init__(self, flows: Mapping[FlowId, FlowRole], *, is_attached: Callable[[PolicyId], bool]) -> None:
        """is_attached: whether a trainer of the policy has ever attached."""
        self._flows = flows
        self._is_attached = is_attached
        self._streams: dict[PolicyId, _StreamState] = {}

    def problems(self, report: Report) -> tuple[Record, ...]:
        """Returns a problem for each policy whose trainer gets no batch. Call it once for each report, in order."""
        if report.completion is not None and report.completion.ends_run:
            return ()
        stalls = (self._reported(report, stream) for stream in report.streams)
        return tuple(stall.problem for stall in stalls if stall is not None)

    def _reported(self, report: Report, stream: StreamReport) -> _Stall | None:
        flows = [flow for flow in report.flows if stream.policy in self._flows[flow.id].policies]
        counts = _Counts.of(flows)
        progress = (stream.training.steps, stream.groups.admitted)
        state = self._streams.get(stream.policy)
        if state is None:
            state = self._streams[stream.policy] = _StreamState(progress=progress, base=counts)
        if progress != state.progress:
            state.progress, state.base = progress, counts
        stall = self._stall_of(report, stream, flows, counts.since(state.base))
        return _debounced(state, stall, now=report.uptime_s)

    def _stall_of(
        self, report: Report, stream: StreamReport, flows: Sequence[FlowReport], counts: _Counts
    ) -> _Stall | None:
        """Returns the first cause that holds now, in the order of a rollout's way to the trainer."""
        if not stream.training.is_waiting:
            return self._trainer_stall(stream)
        running = [flow for flow in flows if not flow.is_paused]
        if not running:
            names = ", ".join(repr(str(flow.id)) for flow in flows)
            return _stall(Constraint.FLOWS_PAUSED, stream, flows=names)
        served = {policy for flow in running for policy in self._flows[flow.id].served_policies}
        nodes = [node for node in report.nodes if node.state in _LIVE and node.facts.serves(served)]
        if any(self._flows[flow.id].needs_nodes for flow in running):
            stall = _node_stall(report, stream, nodes)
            if stall is not None:
                return stall
        return (
            _failures(stream, counts, nodes)
            or _drops(stream, counts, nodes)
            or _kept_stall(stream, nodes)
            or self._gate_stall(report, stream, running)
            or _lease_stall(report, stream, running, nodes)
        )

    def _trainer_stall(self, stream: StreamReport) -> _Stall | None:
        if not self._is_attached(stream.policy):
            return _stall(Constraint.NO_TRAINER, stream)
        if stream.groups.in_batch or stream.groups.buffered < stream.batch_groups:
            return None  # it computes a step, or would have to wait
        return _stall(Constraint.NO_PULL, stream, buffered=stream.groups.buffered)

    def _gate_stall(self, report: Report, stream: StreamReport, flows: Sequence[FlowReport]) -> _Stall | None:
        """Returns the other policy whose trainer makes no step while a flow waits for it."""
        if any(flow.open for flow in flows):
            return None
        others = {policy for flow in flows for policy in self._flows[flow.id].policies if policy != stream.policy}
        full = [other.policy for other in report.streams if other.policy in others and other.issue_headroom <= 0]
        if not full:
            return None
        return _stall(Constraint.OTHER_POLICY, stream, other=full[0])


def _debounced(state: _StreamState, stall: _Stall | None, *, now: float) -> _Stall | None:
    """Returns the reported stall: a new one after it has held, none after no cause has held, for its time."""
    constraint = stall.constraint if stall else None
    if constraint != state.candidate:
        state.candidate, state.candidate_since = constraint, now
    is_same = state.reported is not None and state.reported.constraint is constraint
    if not is_same and now - state.candidate_since >= (stall.held_s if stall else HELD_S):
        state.reported = stall
    return state.reported


def _node_stall(report: Report, stream: StreamReport, nodes: Sequence[NodeReport]) -> _Stall | None:
    if any(node.state is NodeState.READY for node in nodes):
        return None
    if nodes:
        return _stall(Constraint.NODES_STARTING, stream, nodes=len(nodes), error=latest_error(nodes))
    if any(node.state in _LIVE for node in report.nodes):
        return None  # none that serves the policies, which is a problem of its own
    return _stall(Constraint.NO_NODE, stream)


def _failures(stream: StreamReport, counts: _Counts, nodes: Sequence[NodeReport]) -> _Stall | None:
    failed = sum(counts.failed.values())
    if counts.accepted or failed < MIN_EPISODES:
        return None
    return _stall(
        Constraint.EPISODES_FAIL,
        stream,
        failed=failed,
        step=stream.training.steps,
        outcomes=_shares(counts.failed),
        error=latest_error(nodes),
        outcome="failed",
    )


def _drops(stream: StreamReport, counts: _Counts, nodes: Sequence[NodeReport]) -> _Stall | None:
    dropped = sum(counts.dropped.values())
    if dropped >= MIN_GROUPS:
        reason = counts.dropped.most_common(1)[0][0]
        return _stall(
            Constraint.FILTERED,
            stream,
            dropped=dropped,
            step=stream.training.steps,
            outcomes=_shares(counts.dropped),
            reward=stream.reward_produced,
            error=latest_error(nodes) if "failed" in counts.dropped else "",
            outcome=reason,
        )
    return None


def _kept_stall(stream: StreamReport, nodes: Sequence[NodeReport]) -> _Stall | None:
    """Returns the node that has held tasks for longest, when that is much longer than a group takes."""
    holding = [node for node in nodes if node.leased and node.oldest_lease_s > _usual_s(stream, node)]
    if not holding:
        return None
    node = max(holding, key=lambda node: (node.leased, node.oldest_lease_s))
    return _stall(
        Constraint.TASKS_KEPT,
        stream,
        node=node.facts.name,
        tasks=node.leased,
        held_s=node.oldest_lease_s,
        results=node.results,
    )


def _usual_s(stream: StreamReport, node: NodeReport) -> float:
    """Returns the time for which a node may hold a task without being suspected: of several groups once they were
    measured, else its time limit of an episode."""
    if stream.pace is not None:
        return max(HELD_S, KEPT_GROUPS * stream.pace.group_s)
    return node.facts.episode_timeout_s or DEFAULT_LIMIT_S


def _lease_stall(
    report: Report, stream: StreamReport, flows: Sequence[FlowReport], nodes: Sequence[NodeReport]
) -> _Stall | None:
    if not nodes or any(flow.tasks_leased for flow in flows):
        return None
    reserved = {node: round_ for round_ in report.evaluations for node in round_.reserved_nodes}
    if all(node.id in reserved for node in nodes):
        round_ = reserved[nodes[0].id]
        return _stall(Constraint.EVALUATING, stream, evaluation=round_.flow, done=round_.done, total=round_.total)
    lag = min(report.lag(node).get(stream.policy, 0) for node in nodes)
    if lag > stream.max_staleness:
        error = latest_error(nodes)
        return _stall(Constraint.OLD_WEIGHTS, stream, lag=lag, max_staleness=stream.max_staleness, error=error)
    return _stall(Constraint.NO_LEASES, stream, nodes=len(nodes), error=latest_error(nodes))


def _stall(constraint: Constraint, stream: StreamReport, **values: Value) -> _Stall:
    """values: of the cause's text; `outcome`: of the trajectories that show the cause."""
    starting = (Constraint.NO_TRAINER, Constraint.NO_PULL, Constraint.NODES_STARTING)
    is_start = stream.training.steps == 0 and constraint in starting
    problem = problem_record(constraint.value, stream.policy, policy=stream.policy, **values)
    return _Stall(constraint=constraint, held_s=START_S if is_start else HELD_S, problem=problem)


def latest_error(nodes: Iterable[NodeReport]) -> str:
    """Returns the latest error of a node; empty without any."""
    return next((node.errors[-1] for node in nodes if node.errors), "")


def _shares(counts: Counter[str]) -> str:
    return ", ".join(f"{count} `{name}`" for name, count in counts.most_common(4))
