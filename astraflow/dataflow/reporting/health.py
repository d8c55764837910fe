"""Derives events from the reports: a problem begins or is resolved.

A pure fold over reports: each finding has a threshold at which it begins and a lower one at which it ends, so that a
value that oscillates is reported once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from astraflow.contract.ids import FlowId, PolicyId
from astraflow.contract.reports.report import FlowReport, NodeReport, Report, StreamReport
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An event to record."""

    kind: str
    subject: str
    message: str


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
        self._problems: tuple[str, ...] = ()

    def findings(self, report: Report) -> list[Finding]:
        """Returns the problems that began or ended with this report."""
        findings = list(self._problem_findings(report))
        for stream in report.streams:
            findings += self._stream_findings(stream, report.uptime_s)
        for flow in report.flows:
            findings += self._flow_findings(flow, report.nodes)
        return findings

    def _problem_findings(self, report: Report) -> Iterator[Finding]:
        for problem in report.problems:
            if problem not in self._problems:
                yield Finding(kind="problem", subject=report.run, message=problem)
        for problem in self._problems:
            if problem not in report.problems:
                yield Finding(kind="problem_resolved", subject=report.run, message=f"resolved: {problem}")
        self._problems = report.problems

    def _stream_findings(self, stream: StreamReport, now: float) -> Iterator[Finding]:
        state = self._streams.get(stream.policy)
        if state is None:
            state = _StreamState(steps=stream.steps, stepped_at=now, redelivered=stream.redelivered)
            state.stale.total, state.stale.count = stream.admitted, stream.dropped.get(STALE, 0)
            self._streams[stream.policy] = state
        if stream.steps != state.steps:
            state.steps, state.stepped_at = stream.steps, now
        yield from _starvation(stream, state, now)
        yield from _stale_drops(stream, state)
        if stream.redelivered > state.redelivered:
            state.redelivered = stream.redelivered
            yield Finding(
                kind="batch_redelivered", subject=stream.policy, message="a batch was delivered to its trainer again"
            )

    def _flow_findings(self, flow: FlowReport, nodes: Sequence[NodeReport]) -> Iterator[Finding]:
        episodes, failed = returned_episodes(flow.episodes)
        share = self._failing.setdefault(flow.id, _Share(FAILED_SHARE, FAILED_EPISODES, total=episodes, count=failed))
        crossed_share = share.observe(failed, episodes)
        if crossed_share is not None:
            message = f"{crossed_share:.0%} of the latest episodes failed"
            if share.is_above_threshold:
                yield Finding(kind="flow_failing", subject=flow.id, message=message + latest_error(nodes))
            else:
                yield Finding(kind="flow_recovered", subject=flow.id, message=message)


def _starvation(stream: StreamReport, state: _StreamState, now: float) -> Iterator[Finding]:
    if not stream.is_waiting:
        if state.is_starved:
            yield Finding(kind="stream_supplied", subject=stream.policy, message="the trainer has a batch again")
        state.waiting_since, state.is_starved = None, False
        return
    if state.waiting_since is None or state.waiting_since < state.stepped_at:
        state.waiting_since = now
    waited_s = now - state.waiting_since
    if waited_s >= STARVED_S and not state.is_starved:
        state.is_starved = True
        message = (
            f"the trainer has waited for {waited_s:.0f} s: {stream.buffered} of {stream.batch_groups} groups are "
            f"buffered, issue headroom {stream.issue_headroom}"
        )
        yield Finding(kind="stream_starved", subject=stream.policy, message=message)


def _stale_drops(stream: StreamReport, state: _StreamState) -> Iterator[Finding]:
    crossed_share = state.stale.observe(stream.dropped.get(STALE, 0), stream.admitted)
    if crossed_share is not None:
        kind = "stale_drops" if state.stale.is_above_threshold else "stale_drops_resolved"
        message = f"{crossed_share:.1%} of the latest groups were too stale to be trained on"
        yield Finding(kind=kind, subject=stream.policy, message=message)


def returned_episodes(episodes: Mapping[str, int]) -> tuple[int, int]:
    """Returns the numbers of all returned and of the failed episodes."""
    failed = sum(
        count for outcome, count in episodes.items() if outcome.startswith(FAILED_PREFIX) or outcome == "retried"
    )
    return failed + episodes.get("accepted", 0), failed
