"""Stream cards: buffer depth, age of trained rows, and back-pressure of each policy."""

from dataclasses import dataclass

from astraflow.contract.reports.report import Pace, Report, StreamReport
from web.components import formats


@dataclass(frozen=True, slots=True, kw_only=True)
class AgeBar:
    """Rows of the latest batches with one age."""

    label: str
    rows: str
    share: str
    height: float
    """Height from 0 to 1."""
    level: str
    """CSS class: `current`, `behind`, or `beyond` the staleness bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamView:
    """Consumption of one policy's trainer: depth, age, version mix, back-pressure."""

    stream: StreamReport
    pressure: tuple[str, str]
    """What limits the issue of new groups, with a tone."""
    insight: str
    bars: tuple[AgeBar, ...]


def stream_view(stream: StreamReport, report: Report) -> StreamView:
    """Builds the card of a policy."""
    return StreamView(stream=stream, pressure=pressure(report, stream), insight=_mix(stream), bars=_bars(stream))


def pressure(report: Report, stream: StreamReport) -> tuple[str, str]:
    """Returns what limits the issue of new groups, in words, with a tone."""
    paused = [flow.id for flow in report.flows if flow.is_paused]
    if report.flows and len(paused) == len(report.flows):
        return f"Nothing is issued: {', '.join(paused)} is paused.", "warn"
    if report.memory_bytes and report.held_bytes >= report.memory_bytes:
        held = f"{formats.size(report.held_bytes)} of {formats.size(report.memory_bytes)}"
        return f"Nothing is issued: results have reached the memory limit ({held}).", "bad"
    is_short = stream.training.is_waiting and stream.groups.buffered < stream.batch_groups
    if is_short and stream.issue_headroom <= 0:
        return (
            "No further group may be issued while the trainer waits: those that are out have yet to return, and more "
            "nodes would not speed that up.",
            "bad",
        )
    if is_short:
        buffered = f"{formats.count(stream.groups.buffered)} of {formats.several(stream.batch_groups, 'group')}"
        return f"None: the trainer waits for rollouts. The buffer has {buffered} of a batch.", "bad"
    if stream.issue_headroom <= 0:
        steps = formats.several(stream.max_staleness + 1, "version")
        return f"No further group may be issued: those that are out already fill the trainer's next {steps}.", "warn"
    if stream.pace is not None:
        return _pacing(stream.pace)
    return f"None: {formats.several(stream.issue_headroom, 'more group')} may be issued now.", "good"


def _pacing(pace: Pace) -> tuple[str, str]:
    """Returns why no more groups are issued, or how many more will be, with a tone."""
    ahead = formats.several(round(pace.limit), "group")
    reason = f"a group takes {formats.duration(pace.group_s)}, a step {formats.duration(pace.step_s)}"
    if pace.is_reached:
        return f"Pacing: {ahead} ahead supply the trainer, and more would only age ({reason}).", "good"
    more = formats.several(max(1, round(pace.limit - pace.outstanding)), "more group")
    return f"None: pacing admits {more} now, up to {ahead} ahead ({reason}).", "good"


def _mix(stream: StreamReport) -> str:
    rows = sum(stream.staleness.values())
    if not rows:
        return "No batch served yet"
    beyond = sum(number for age, number in stream.staleness.items() if age > stream.max_staleness)
    if beyond:
        return f"{formats.percent(beyond / rows)} of rows exceed the bound of {stream.max_staleness}: report this bug"
    newest = formats.percent(stream.staleness.get(0, 0) / rows)
    mean = sum(age * number for age, number in stream.staleness.items()) / rows
    return f"{newest} of rows come from the newest version; {formats.rate(mean)} versions old on average"


def _bars(stream: StreamReport) -> tuple[AgeBar, ...]:
    rows = sum(stream.staleness.values())
    if not rows:
        return ()
    ages = range(max(stream.max_staleness, *stream.staleness) + 1)
    most = max(stream.staleness.values())
    return tuple(
        AgeBar(
            label="newest" if age == 0 else f"{formats.several(age, 'version')} old",
            rows=formats.count(stream.staleness.get(age, 0)),
            share=formats.percent(stream.staleness.get(age, 0) / rows),
            height=stream.staleness.get(age, 0) / most,
            level="current" if age == 0 else "behind" if age <= stream.max_staleness else "beyond",
        )
        for age in ages
    )
