"""Diagnosis of a run: the one stage that limits it this second, why, and what to do.

    nodes ──► buffer ──► trainer ──► store (weights back to the nodes)
      └── verifier (environments, tools and rewards of the episodes)

Pages, commands and the maintainer show this diagnosis; none of them judges the figures again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from astraflow.contract.fleet.pools import FleetStatus, KillScope
from astraflow.contract.fleet.recommendations import DEFAULT_WAIT_HIGH, LimitInEffect, Mode, Reason
from astraflow.contract.ids import PolicyId
from astraflow.contract.record_causes import CAUSES, STALLS
from astraflow.contract.record_kinds import FactEnum, Severity
from astraflow.contract.records import Record, fill, printed_rate
from astraflow.contract.reports.capacity import CapacityBalance, capacity_balance, measured_input
from astraflow.contract.reports.report import NodeReport, NodeState, Report, StreamReport
from astraflow.contract.values import Value, Values


class Stage(Enum):
    """Stage of the way of a rollout, in order."""

    NODES = "nodes"
    """Nodes that run episodes."""
    VERIFIER = "verifier"
    """Environments, tools, rewards and filters."""
    BUFFER = "buffer"
    """Groups that wait for the trainer, with the bounds on how far rollouts run ahead."""
    TRAINER = "trainer"
    STORE = "store"
    """Weights on their way from the trainer to the nodes."""
    NONE = "none"
    """Nothing limits the run: it is complete."""


@dataclass(frozen=True, slots=True)
class _Facts:
    code: str
    stage: Stage
    severity: Severity
    headline: str
    because: str
    """Template of the cause, with its figures."""
    remedy: str = ""
    """Template of what to do; empty where there is nothing to do."""


def _stated(code: str, stage: Stage, headline: str, severity: Severity = Severity.CRITICAL) -> _Facts:
    """Returns the facts of a cause that problems of the run state with the same code, in the same words."""
    texts = STALLS if code in STALLS else CAUSES
    return _Facts(code, stage, severity, headline, texts[code])


_INFO, _WARNING, _CRITICAL = Severity
_NEEDS = "[: ready nodes can make {ready:rate} groups/s of the {demand:rate} that the trainer needs]"
_READY = "{ready_nodes:.0f} of {expected_nodes:node} are ready[ ({pending_nodes:.0f} starting)]" + _NEEDS
_WAITS = "the trainer waits {wait:.0%} of each step"
_LOG = "read the message, and the log of the process that it names"
_DIFFER = "Engine and trainer differ"


class LimitingCause(FactEnum):
    """Causes: what limits the run, and how urgent that is for a person."""

    COMPLETE = _Facts("complete", Stage.NONE, _INFO, "The run is complete", "{steps:step} are trained")
    FED = _Facts(
        "fed",
        Stage.TRAINER,
        _INFO,
        "The trainer is fed",
        _WAITS + "[: it needs {demand:rate} groups/s, and ready nodes can make {enough:rate}]"
        "[: {buffered:.0f} groups are ready for its batches of {next_groups:.0f}]",
    )
    FIRST_BATCH = _Facts(
        "first_batch", Stage.NODES, _INFO, "The first batch fills", "{buffered:.0f} of {batch_groups:group} are ready"
    )
    FIRST_STEP = _Facts(
        "first_step", Stage.TRAINER, _INFO, "The trainer makes its first step", "a first batch is ready"
    )
    NODES_STARTING = _Facts(
        "nodes_starting", Stage.NODES, _INFO, "Nodes are starting", "none of {pending_nodes:node} is ready yet"
    )
    NO_NODE = _Facts(
        "no_node",
        Stage.NODES,
        _CRITICAL,
        "No node makes rollouts",
        "no node is in the run[, {lost_nodes:.0f} were lost]",
        "start one with `astraflow join`, or a pool",
    )
    NODES_MISSING = _Facts("nodes_missing", Stage.NODES, _WARNING, "{finding}", _READY, "{others}")
    NODES_HELD = _Facts(
        "nodes_held",
        Stage.NODES,
        _CRITICAL,
        "{finding}",
        _READY,
        "nothing starts the others, because {limits:words} holds them back: lift it, or plan a launch",
    )
    NODES_LIMITED = _Facts(
        "nodes_limited",
        Stage.NODES,
        _WARNING,
        "The trainer waits for rollouts",
        _WAITS + _NEEDS,
        "more nodes would help, and {limits:words} holds them back",
    )
    TOO_FEW_NODES = _Facts(
        "too_few_nodes",
        Stage.NODES,
        _INFO,
        "Rollouts set the pace",
        _WAITS + _NEEDS,
        "[{more:more node} would keep it busy]",
    )
    ROLLOUTS_SLOW = _Facts(
        "rollouts_slow", Stage.NODES, _INFO, "Rollouts set the pace", _WAITS + "; what it needs is not measured yet"
    )
    UNEVEN = _Facts(
        "uneven",
        Stage.BUFFER,
        _INFO,
        "The trainer waits at times",
        "the trainer waited {wait:.0%} of its last ten steps, although ready nodes can make {ready:rate} groups/s of "
        "the {demand:rate} that it needs: groups arrive unevenly, or nodes have just recovered",
    )
    STALENESS_BOUND = _Facts(
        "staleness_bound",
        Stage.BUFFER,
        _INFO,
        "The staleness bound sets the pace",
        _WAITS + ", and nodes may not run further ahead than max_staleness {max_staleness:.0f}"
        "[: {idle_slots:.0f} of {slots:.0f} slots are idle]",
        "more nodes would hardly help; {advice} would, with older rollouts in a batch",
    )
    PAUSED = _Facts(
        "flows_paused",
        Stage.BUFFER,
        _WARNING,
        "Issuing is paused",
        "nodes finish their tasks and get no new ones",
        "resume the flow",
    )
    MEMORY_FULL = _stated("memory_full", Stage.BUFFER, "The memory for results is full")
    WEIGHTS_BEHIND = _Facts(
        "weights_behind",
        Stage.STORE,
        _WARNING,
        "Nodes wait for weights",
        "{behind:.0f} of {ready_nodes:node} serve versions that are more than max_staleness {max_staleness:.0f} behind",
        "see Weights for the links of these nodes",
    )
    PUBLISHING = _Facts(
        "publishing",
        Stage.STORE,
        _INFO,
        "Publishing weights sets the pace",
        "it takes {publish:.0%} of each step",
        "see Weights for the cost of each version",
    )
    OUTSIDE_ENGINES = _Facts(
        "outside_engines",
        Stage.VERIFIER,
        _INFO,
        "Environments, tools or rewards set the pace",
        "of {leased:episode} that run, {generating:.0f} generate, and the others wait for environments, tools or "
        "rewards; " + _WAITS,
        "more nodes or more slots per node help, if what they wait for can take more",
    )
    TRAINER_PROBLEM = _Facts("trainer_problem", Stage.TRAINER, _CRITICAL, "The trainer cannot go on", "{error}", _LOG)
    MISMATCH_FILTERED = _stated("mismatch_filtered", Stage.NODES, _DIFFER)
    MISMATCH_ROUTED = _stated("mismatch_routed", Stage.NODES, _DIFFER)
    MISMATCH_COARSE = _stated("mismatch_coarse", Stage.NODES, _DIFFER)
    MISMATCH_SAMPLED = _stated("mismatch_sampled", Stage.NODES, _DIFFER)
    MISMATCH_UNEXPLAINED = _stated("mismatch_unexplained", Stage.NODES, _DIFFER)
    FLOW_UNSERVED = _stated("flow_unserved", Stage.NODES, "No node serves the flow")
    NO_TRAINER = _stated("no_trainer", Stage.TRAINER, "No trainer is connected")
    NO_PULL = _stated("no_pull", Stage.TRAINER, "The trainer pulls no batch")
    OTHER_POLICY = _stated("other_policy", Stage.TRAINER, "Another trainer makes no steps")
    EPISODES_FAIL = _stated("episodes_fail", Stage.VERIFIER, "All episodes fail")
    FILTERED = _stated("filtered", Stage.VERIFIER, "All groups are filtered out")
    OLD_WEIGHTS = _stated("old_weights", Stage.STORE, "Nodes serve old weights")
    TASKS_KEPT = _stated("tasks_kept", Stage.NODES, "A node returns no results")
    EVALUATING = _stated("evaluating", Stage.NODES, "All nodes evaluate", _WARNING)
    NO_LEASES = _stated("no_leases", Stage.NODES, "Nodes take no tasks")

    stage: Stage
    severity: Severity
    headline: str
    because: str
    remedy: str


_BY_CODE: Mapping[str, LimitingCause] = {cause.value: cause for cause in LimitingCause}


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Diagnosis of one policy's training at one second."""

    policy: PolicyId
    cause: LimitingCause
    severity: Severity
    """Critical only for what needs a person."""
    values: Values
    """Figures of the text; rates are rounded as they are printed."""
    balance: CapacityBalance
    """Capacity and demand that it was derived from."""
    wait: float
    """Share of a step that the trainer waits, a wait that goes on included."""
    publish_share: float
    """Share of a step that publishing takes."""

    @property
    def stage(self) -> Stage:
        """Stage that limits the run."""
        return self.cause.stage

    @property
    def headline(self) -> str:
        """Finding, as a short sentence."""
        return fill(self.cause.headline, self.values)

    @property
    def because(self) -> str:
        """Cause in numbers, as a clause."""
        return fill(self.cause.because, self.values)

    @property
    def remedy(self) -> str:
        """Remedy, as a clause; empty where none is needed."""
        return fill(self.cause.remedy, self.values)

    @property
    def explanation(self) -> str:
        """Cause and remedy in one sentence."""
        text = "; ".join(part for part in (self.because, self.remedy) if part)
        return f"{text[:1].upper()}{text[1:]}."


PUBLISH_SHARE = 0.3
"""Share of a step that publishing takes, from which it sets the pace."""

BEHIND_SHARE = 0.5
"""Share of ready nodes beyond the staleness bound, from which weights limit the run."""

GENERATING_SHARE = 0.5
"""Share of running episodes that generate, below which environments, tools or rewards set the pace."""

_HOLDS = (
    LimitInEffect.KILL_SWITCH,
    LimitInEffect.MODE,
    LimitInEffect.DOLLARS_PER_HOUR,
    LimitInEffect.DOLLARS_PER_DAY,
    LimitInEffect.QUOTA,
    LimitInEffect.MAX_NODES,
    LimitInEffect.BREAKER,
)
"""Limits that keep nodes from being launched until a person changes something, or launches succeed again."""


def diagnose(report: Report, policy: PolicyId, fleet: FleetStatus | None = None) -> Diagnosis:
    """Returns the diagnosis of a policy that the report trains. fleet: status of the fleet service, if there is one."""
    stream = next(stream for stream in report.streams if stream.policy == policy)
    balance = capacity_balance(report, fleet)
    cause, more = next(_candidates(report, stream, balance, fleet))
    return Diagnosis(
        policy=policy,
        cause=cause,
        severity=cause.severity,
        values={**_values(stream, balance), **more},
        balance=balance,
        wait=stream.training.current_wait,
        publish_share=_publish_share(stream),
    )


def fed_below(report: Report | None) -> float:
    """Returns the wait fraction up to which a trainer counts as fed: that of the sizer, if the report names it."""
    wait = measured_input(report.recommendations, "wait_high") if report is not None else None
    return DEFAULT_WAIT_HIGH if wait is None else wait


_Cause = tuple[LimitingCause, Values]


def _candidates(
    report: Report, stream: StreamReport, balance: CapacityBalance, fleet: FleetStatus | None
) -> Iterator[_Cause]:
    """Yields what holds now, the most important first; the last always holds."""
    if report.completion is not None and report.completion.ends_run:
        yield LimitingCause.COMPLETE, {}
    yield from _stalls(report, stream)
    yield from _without_production(report, stream, balance)
    yield from _missing_nodes(report, stream, balance, fleet)
    yield from _weights(report, stream, balance)
    if stream.training.steps == 0:
        has_batch = stream.groups.in_batch or stream.groups.buffered >= stream.batch_groups
        yield LimitingCause.FIRST_STEP if has_batch else LimitingCause.FIRST_BATCH, {}
    if stream.training.current_wait <= fed_below(report):
        # Rates are measured over minutes: a trainer that does not wait shows that they follow a change.
        is_covered = balance.ready is not None and balance.ratio is not None and balance.ratio >= 1
        yield (
            LimitingCause.FED,
            {"enough": balance.ready or 0.0} if is_covered else {"next_groups": stream.batch_groups},
        )
    yield from _staleness(report, stream)
    yield from _outside_engines(report)
    yield from _capacity(report, balance)


def _values(stream: StreamReport, balance: CapacityBalance) -> dict[str, Value]:
    """Returns the figures that texts of several causes name; a figure that is not measured is absent."""
    rates = {"ready": balance.ready, "demand": balance.demand, "ordered": balance.ordered}
    counts = {"pending_nodes": balance.pending_nodes, "lost_nodes": balance.lost_nodes}
    training = stream.training
    return {
        "steps": training.steps,
        "wait": training.current_wait,
        "buffered": stream.groups.buffered,
        "batch_groups": stream.batch_groups,
        "max_staleness": stream.max_staleness,
        "publish": _publish_share(stream),
        "ready_nodes": balance.ready_nodes,
        "expected_nodes": balance.expected_nodes,
        **{name: count for name, count in counts.items() if count},
        **{name: printed_rate(rate) for name, rate in rates.items() if rate is not None},
        **({} if balance.ratio is None else {"ratio": balance.ratio}),
    }


def _stalls(report: Report, stream: StreamReport) -> Iterator[_Cause]:
    """Yields problems that the run has held for some seconds: those of this policy, and those of all."""
    for problem in report.problems:
        cause = _BY_CODE.get(problem.cause)
        if cause is not None and problem.subject in ("", report.run, stream.policy, *_flows_of(problem)):
            yield cause, problem.values


def _flows_of(problem: Record) -> tuple[str, ...]:
    return (problem.subject,) if problem.cause in ("flow_unserved", "memory_full") else ()


def _without_production(report: Report, stream: StreamReport, balance: CapacityBalance) -> Iterator[_Cause]:
    working = [node.state for node in report.nodes if node.state in (NodeState.READY, NodeState.DRAINING)]
    has_nodes = bool(working) or balance.ready_nodes > 0
    if not has_nodes and balance.pending_nodes:
        yield LimitingCause.NODES_STARTING, {}
    if not has_nodes:
        yield LimitingCause.NO_NODE, {}
    if report.flows and all(flow.is_paused for flow in report.flows):
        yield LimitingCause.PAUSED, {}


def _missing_nodes(
    report: Report, stream: StreamReport, balance: CapacityBalance, fleet: FleetStatus | None
) -> Iterator[_Cause]:
    """Yields that nodes are missing which should be there, before the trainer has felt it."""
    is_short = balance.ratio is not None and balance.ratio < 1
    if not is_short or not balance.missing_nodes:
        return
    is_waiting = stream.training.is_waiting or stream.training.current_wait > fed_below(report)
    finding = "The trainer waits for rollouts" if is_waiting else "Rollouts fall behind the trainer"
    limits = _limits(report, fleet)
    if limits and balance.pending_nodes < balance.missing_nodes:
        yield LimitingCause.NODES_HELD, {"limits": limits, "finding": finding}
    others = "the others are starting" if balance.pending_nodes >= balance.missing_nodes else "the fleet starts others"
    yield LimitingCause.NODES_MISSING, {"finding": finding, "others": others}


def _limits(report: Report, fleet: FleetStatus | None) -> str:
    """Returns the limits that keep nodes from being launched, as words of a record."""
    limits = {limit for recommendation in report.recommendations for limit in recommendation.limited_by}
    if fleet is not None and fleet.kill is KillScope.ALL:
        limits.add(LimitInEffect.KILL_SWITCH)
    return ",".join(limit.value for limit in _HOLDS if limit in limits)


def _weights(report: Report, stream: StreamReport, balance: CapacityBalance) -> Iterator[_Cause]:
    ready = [node for node in report.nodes if node.state is NodeState.READY]
    behind = sum(_is_behind(node, stream) for node in ready)
    if ready and behind > BEHIND_SHARE * len(ready):
        yield LimitingCause.WEIGHTS_BEHIND, {"behind": behind, "ready_nodes": len(ready)}
    if _publish_share(stream) >= PUBLISH_SHARE:
        yield LimitingCause.PUBLISHING, {}


def _publish_share(stream: StreamReport) -> float:
    training = stream.training
    return training.publish_s / training.total_s if training.total_s else 0.0


def _is_behind(node: NodeReport, stream: StreamReport) -> bool:
    version = node.versions.get(stream.policy)
    return version is not None and stream.version - version > stream.max_staleness


def _staleness(report: Report, stream: StreamReport) -> Iterator[_Cause]:
    advice = next((advice for advice in report.recommendations if Reason.GATED in advice.reasons), None)
    if advice is None and stream.issue_headroom > 0:
        return
    inputs = advice.inputs if advice is not None else {}
    known: dict[str, Value] = {name: inputs[name] for name in ("idle_slots", "slots") if name in inputs}
    enough = inputs.get("staleness_needed")
    hint = "a higher max_staleness" if enough is None else f"max_staleness {enough:.0f}"
    yield LimitingCause.STALENESS_BOUND, {**known, "advice": hint}


def _outside_engines(report: Report) -> Iterator[_Cause]:
    """Yields that most running episodes do not generate, where all ready nodes report what their engines do."""
    ready = [node for node in report.nodes if node.state is NodeState.READY]
    if not ready or any("engine_running" not in node.gauges for node in ready):
        return
    leased = sum(node.leased for node in ready)
    generating = sum(node.gauges["engine_running"] + node.gauges.get("engine_waiting", 0.0) for node in ready)
    if leased and generating < GENERATING_SHARE * leased:
        yield LimitingCause.OUTSIDE_ENGINES, {"leased": leased, "generating": generating}


def _capacity(report: Report, balance: CapacityBalance) -> Iterator[_Cause]:
    """Yields why rollouts do not suffice although all expected nodes are ready."""
    if balance.ratio is None or balance.demand is None or balance.ready is None:
        yield LimitingCause.ROLLOUTS_SLOW, {}
        return
    if balance.ratio >= 1:
        yield LimitingCause.UNEVEN, {}
        return
    limits = _limits(report, None)
    if limits and any(advice.mode in (Mode.ON, Mode.UP_ONLY) for advice in report.recommendations):
        yield LimitingCause.NODES_LIMITED, {"limits": limits}
    rate = balance.node_rate
    more = {} if rate is None else {"more": max(1, -int((balance.ready - balance.demand) // rate))}
    yield LimitingCause.TOO_FEW_NODES, more
