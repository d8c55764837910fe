"""What one policy's trainer consumes: how deep its buffer is, how old rows are, and what holds new groups back."""

from dataclasses import dataclass

from astraflow.contract.reports import Report, StreamReport
from web.present import formats


@dataclass(frozen=True, slots=True, kw_only=True)
class AgeBar:
    """Rows of the latest batches of one age."""

    label: str
    rows: str
    share: str
    height: float
    """From 0 to 1."""
    level: str
    """`current`, `behind`, or `beyond` the bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamView:
    """What one policy's trainer consumes: depth, age, version mix, back-pressure."""

    policy: str
    depth: str
    depth_share: float
    """Of a batch, at most 1."""
    depth_note: str
    age: str
    produced: str
    consumed: str
    pressure: str
    pressure_tone: str
    finding: str
    bars: tuple[AgeBar, ...]


def stream_view(stream: StreamReport, report: Report) -> StreamView:
    """A policy's card."""
    batches = stream.buffered / max(1, stream.batch_groups)
    rate = stream.consumed_per_s
    words, tone = pressure(report, stream)
    return StreamView(
        policy=stream.policy,
        depth=formats.several(stream.buffered, "group"),
        depth_share=min(1.0, batches),
        depth_note=f"{formats.percent(batches)} of a batch of {formats.count(stream.batch_groups)}",
        age=formats.duration(stream.buffered / rate) if rate > 0 else formats.MISSING,
        produced=formats.rate(stream.produced_per_s),
        consumed=formats.rate(stream.consumed_per_s),
        pressure=words,
        pressure_tone=tone,
        finding=_mix(stream),
        bars=_bars(stream),
    )


def pressure(report: Report, stream: StreamReport) -> tuple[str, str]:
    """What holds new groups back, in words, and how good that is."""
    paused = [flow.id for flow in report.flows if flow.is_paused]
    if report.flows and len(paused) == len(report.flows):
        return f"Nothing is issued: {', '.join(paused)} is paused by somebody.", "warn"
    if report.memory_bytes and report.held_bytes >= report.memory_bytes:
        held = f"{formats.size(report.held_bytes)} of {formats.size(report.memory_bytes)}"
        return f"Nothing is issued: results in memory have reached their bound ({held}).", "bad"
    is_short = stream.is_waiting and stream.buffered < stream.batch_groups
    if is_short and stream.issue_room <= 0:
        return (
            "The staleness gate is closed although the trainer waits: what is out has yet to come back, and more nodes "
            "would not bring it sooner.",
            "bad",
        )
    if is_short:
        has = f"{formats.count(stream.buffered)} of the {formats.several(stream.batch_groups, 'group')}"
        return f"None, on the contrary: the trainer waits for rollouts. The buffer has {has} that a batch takes.", "bad"
    if stream.issue_room <= 0:
        steps = formats.several(stream.max_staleness + 1, "version")
        return f"The staleness gate is closed: what is out already fills the next {steps} of the trainer.", "warn"
    return f"None: the staleness gate lets {formats.several(stream.issue_room, 'more group')} out now.", "good"


def _mix(stream: StreamReport) -> str:
    rows = sum(stream.staleness.values())
    if not rows:
        return "No batch was served yet"
    beyond = sum(number for age, number in stream.staleness.items() if age > stream.max_staleness)
    if beyond:
        return f"{formats.percent(beyond / rows)} of rows are beyond the bound of {stream.max_staleness}: report this"
    newest = formats.percent(stream.staleness.get(0, 0) / rows)
    mean = sum(age * number for age, number in stream.staleness.items()) / rows
    return f"{newest} of rows are of the newest version; {formats.rate(mean)} versions old on average"


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
