"""Derives events from the reports: a problem begins or is resolved.

A pure fold over reports: each finding has a threshold at which it begins and a lower one at which it ends, so that a
value that oscillates is reported once.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from astraflow.contract.ids import FlowId, PolicyId
from astraflow.contract.mismatch import mismatch_cause
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import Record, problem_record
from astraflow.contract.reports.report import FlowReport, NodeReport, NodeState, Report, StreamReport
from astraflow.contract.values import Value
from astraflow.dataflow.reporting.binding_constraints import latest_error
from astraflow.dataflow.serving.stream import STALE

STARVED_S = 30.0
"""A trainer that waits this long for a batch is starved. Seconds."""

STALE_GROUPS = 200
STALE_SHARE = 0.01
"""A stream has stale drops when more than this share of the latest admitted groups is dropped as stale."""

FAILED_EPISODES = 100
FAILED_SHARE = 0.2
"""A flow is failing when more than this share of the latest episodes failed."""

RECOVERY_FACTOR = 0.5
"""A share has recovered below this fraction of its threshold."""

FAILED_PREFIX = "failed_"


@dataclass(slots=True)
class _Share:
    """Share over the latest `min_total` or more items, compared with a threshold."""

    threshold: float
    min_total: int
    total: int = 0
    count: int = 0
    is_above_threshold: bool = False

    def observe(self, count: int, total: int) -> float | None:
        """Adds cumulative counts; returns the share if it just crossed the threshold or recovered."""
        if total < self.total or total - self.total < self.min_total:
            self.total = min(self.total, total)
            return None
        share = (count - self.count) / (total - self.total)
        self.count, self.total = count, total
        was_large, self.is_above_threshold = (
            self.is_above_threshold,
            share > self.threshold * (RECOVERY_FACTOR if self.is_above_threshold else 1.0),
        )
        return share if self.is_above_threshold != was_large else None


@dataclass(slots=True)
class _StreamState:
    steps: int
    stepped_at: float
    """Uptime at which the number of steps changed last. Seconds."""
    redelivered: int
    waiting_since: float | None = None
    is_starved: bool = False
    stale: _Share = field(default_factory=lambda: _Share(STALE_SHARE, STALE_GROUPS))


class HealthMonitor:
    """Compares each report with the previous reports."""

    def __init__(self) -> None:
        self._streams: dict[PolicyId, _StreamState] = {}
        self._failing: dict[FlowId, _Share] = {}
        self._problems: Mapping[tuple[str, str], Record] = {}
        """Problems of the latest report, by cause and subject."""
        self._reply_length = 1.0
        """Factor of the script of simulated engines."""

    def changes(self, report: Report) -> Iterator[Record]:
        """Yields the problems that began or ended with this report."""
        yield from self._problem_changes(report)
        yield from self._load_changes(report)
        for stream in report.streams:
            yield from self._stream_changes(stream, report.uptime_s)
        for flow in report.flows:
            yield from self._flow_changes(flow, report.nodes)

    def _problem_changes(self, report: Report) -> Iterator[Record]:
        problems = {(problem.cause, problem.subject): problem for problem in report.problems}
        for key, problem in problems.items():
            if key not in self._problems:
                yield replace(problem, subject=problem.subject or report.run)
        for key, problem in self._problems.items():
            if key not in problems:
                subject = problem.subject or report.run
                yield replace(problem, kind=RecordKind.PROBLEM_RESOLVED, subject=subject)
        self._problems = problems

    def _load_changes(self, report: Report) -> Iterator[Record]:
        """Yields a change of the simulated load when all nodes that follow the script have reported it."""
        ready = [node.gauges for node in report.nodes if node.state is NodeState.READY]
        lengths = {gauges["simulated_reply_length"] for gauges in ready if "simulated_reply_length" in gauges}
        if len(lengths) == 1 and lengths != {self._reply_length}:
            before, (self._reply_length,) = self._reply_length, lengths
            yield _record(RecordKind.LOAD_CHANGED, report.run, factor=self._reply_length, before=before)

    def _stream_changes(self, stream: StreamReport, now: float) -> Iterator[Record]:
        state = self._streams.get(stream.policy)
        if state is None:
            state = _StreamState(steps=stream.training.steps, stepped_at=now, redelivered=stream.training.redelivered)
            state.stale.total, state.stale.count = stream.groups.admitted, stream.groups.dropped.get(STALE, 0)
            self._streams[stream.policy] = state
        if stream.training.steps != state.steps:
            state.steps, state.stepped_at = stream.training.steps, now
        yield from _starvation(stream, state, now)
        yield from _stale_drops(stream, state)
        if stream.training.redelivered > state.redelivered:
            state.redelivered = stream.training.redelivered
            yield _record(RecordKind.BATCH_REDELIVERED, stream.policy)

    def _flow_changes(self, flow: FlowReport, nodes: Sequence[NodeReport]) -> Iterator[Record]:
        episodes, failed = returned_episodes(flow.episodes)
        share = self._failing.setdefault(flow.id, _Share(FAILED_SHARE, FAILED_EPISODES, total=episodes, count=failed))
        crossed_share = share.observe(failed, episodes)
        if crossed_share is None:
            return
        if share.is_above_threshold:
            error = latest_error(nodes)
            yield _record(RecordKind.FLOW_FAILING, flow.id, share=crossed_share, error=error)
        else:
            yield _record(RecordKind.FLOW_RECOVERED, flow.id, share=crossed_share)


def _starvation(stream: StreamReport, state: _StreamState, now: float) -> Iterator[Record]:
    if not stream.training.is_waiting:
        if state.is_starved:
            yield _record(RecordKind.STREAM_SUPPLIED, stream.policy)
        state.waiting_since, state.is_starved = None, False
        return
    if state.waiting_since is None or state.waiting_since < state.stepped_at:
        state.waiting_since = now
    waited_s = now - state.waiting_since
    if waited_s >= STARVED_S and not state.is_starved:
        state.is_starved = True
        yield _record(
            RecordKind.STREAM_STARVED,
            stream.policy,
            waited_s=waited_s,
            buffered=stream.groups.buffered,
            batch_groups=stream.batch_groups,
            headroom=stream.issue_headroom,
        )


def _stale_drops(stream: StreamReport, state: _StreamState) -> Iterator[Record]:
    crossed_share = state.stale.observe(stream.groups.dropped.get(STALE, 0), stream.groups.admitted)
    if crossed_share is not None:
        kind = RecordKind.STALE_DROPS if state.stale.is_above_threshold else RecordKind.STALE_DROPS_RESOLVED
        yield _record(kind, stream.policy, share=crossed_share)


def _record(kind: RecordKind, subject: str, **values: Value) -> Record:
    return Record(kind=kind, subject=subject, values=values)


def returned_episodes(episodes: Mapping[str, int]) -> tuple[int, int]:
    """Returns the numbers of all returned and of the failed episodes."""
    failed = sum(
        count for outcome, count in episodes.items() if outcome.startswith(FAILED_PREFIX) or outcome == "retried"
    )
    return failed + episodes.get("accepted", 0), failed


def mismatch_problems(report: Report, *, mixtures: Collection[PolicyId] = ()) -> tuple[Record, ...]:
    """Returns a problem for each policy whose latest measured divergence is above its trainer's bound.

    mixtures: policies whose trainers state that their model is a mixture of experts.
    """
    return tuple(
        _problem(report, stream, is_mixture=stream.policy in mixtures)
        for stream in report.streams
        if stream.training.metrics.get("mismatch_of_bound", 0.0) > 1 and "mismatch_k3" in stream.training.metrics
    )


def _problem(report: Report, stream: StreamReport, *, is_mixture: bool) -> Record:
    nodes = [node for node in report.nodes if node.state is NodeState.READY and node.facts.serves([stream.policy])]
    probes = [node.gauges["logprob_mismatch_max"] for node in nodes if "logprob_mismatch_max" in node.gauges]
    precisions = dict.fromkeys(node.facts.precision for node in nodes if node.facts.precision)
    cause, values = mismatch_cause(
        stream.training.metrics,
        probe=max(probes, default=None),
        engines=", ".join(precisions),
        trainer="" if stream.batching is None else stream.batching.precision,
        is_mixture=is_mixture,
    )
    return problem_record(cause, stream.policy, policy=stream.policy, **values)
