"""The list of runs, and one run: what it is, where its groups are, how it went."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any
from urllib.parse import urlencode

from astraflow.contract.reports import FlowReport, Report, StreamReport
from web.feed.pins import Pin
from web.feed.report_json import RecordedReport, report_from_json
from web.history.points import AVERAGED_STEPS
from web.history.ranges import RANGES_S, TimeRange
from web.present import charts, formats, scales
from web.present.ladder import Rung, rung
from web.present.ledger import (
    Balance,
    Entry,
    Figure,
    episode_entries,
    flow_balance,
    plugin_figures,
    prefix_balance,
    stream_balance,
)
from web.present.moments import Moment, moments_of
from web.present.page_points import page_points
from web.present.run_findings import ladder_finding, run_findings
from web.present.shell import Choice, moment
from web.present.timeline import Timeline, timeline
from web.tables import RunRecord

SHOWN_POINTS = 600
CHART_HEIGHT = 176

EXTRA_LINES = {"reward": (charts.Line(value="reward_trained", label="trained on", style="second"),)}
"""Lines that only the page of a run shows: what the filters leave for the trainer."""

RUN_CHARTS = {
    spec.name: replace(spec, height=CHART_HEIGHT, lines=(*spec.lines, *EXTRA_LINES.get(spec.name, ())))
    for spec in (*charts.CHARTS.values(), *charts.TRAINING_CHARTS.values())
}
"""Those of the page of a run, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One line of the list of runs."""

    id: int
    name: str
    recipe: str
    state: str
    tone: str
    started_at: float
    duration: str
    policies: Sequence["PolicySummary"]
    simulated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySummary:
    """How one policy stands."""

    policy: str
    steps: str
    version: str
    reward: str
    wait: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A named property of a run."""

    label: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHead:
    """What the pages below a run's say of it."""

    id: int
    name: str
    recipe: str
    is_live: bool
    policies: tuple[str, ...]
    fates: tuple[str, ...]
    """What may have become of a sampled group, as far as this run has seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """One run. The live one comes with its report, a past one with what was recorded of its last."""

    row: RunRow
    policy: str
    policies: tuple[str, ...]
    facts: tuple[Fact, ...]
    balances: tuple[Balance, ...]
    episodes: tuple[tuple[str, tuple[Entry, ...]], ...]
    drawings: dict[str, charts.Drawing]
    findings: dict[str, str]
    """Titles of the drawings and of the version ladder (`versions`)."""
    points: dict[str, Any]
    is_live: bool
    flows: tuple[FlowReport, ...]
    figures: tuple[Figure, ...]
    ranges: tuple[Choice, ...]
    query: str
    """What is shown, as its address has it."""
    begin: str
    """UTC, as a date field has it; with `end`, what is shown."""
    end: str
    is_custom: bool
    timeline: Timeline
    rungs: tuple[Rung, ...]
    bound: int
    x_ticks: Sequence[tuple[float, str]]
    ends: Mapping[str, float]
    """Unix seconds of the two ends of the axis, for the scripts."""
    moments: tuple[Moment, ...]
    """What happened to the fleet meanwhile, newest first."""

    @property
    def is_moving(self) -> bool:
        """Whether what is shown goes on."""
        return self.is_live and not self.is_custom


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPast:
    """What is known of a run over the stretch of time that is shown."""

    rows: Sequence[charts.Row]
    lags: Mapping[str, Sequence[charts.Row]]
    """Of the nodes that were farthest behind, by name."""
    pins: Sequence[Pin]
    span: TimeRange | None
    """What was asked for; None for the whole run."""


def run_row(record: RunRecord, *, is_live: bool) -> RunRow:
    """A record as a line of the list."""
    report = report_from_json(record.report_json)
    return RunRow(
        id=record.id or 0,
        name=record.name,
        recipe=record.recipe,
        state="live" if is_live else "out of sight",
        tone="good" if is_live else "off",
        started_at=record.started_at,
        duration=formats.duration(record.last_at - record.started_at),
        policies=[_policy_summary(stream) for stream in report.streams],
        simulated=bool(report.simulated),
    )


def head_of(record: RunRecord, *, live: Report | None) -> RunHead:
    """live: the newest report, when this is a run that goes on now."""
    recorded = report_from_json(record.report_json)
    streams = live.streams if live else recorded.streams
    flows = live.flows if live else recorded.flows
    return RunHead(
        id=record.id or 0,
        name=record.name,
        recipe=record.recipe,
        is_live=live is not None,
        policies=tuple(stream.policy for stream in streams),
        fates=_fates(flows, streams),
    )


def run_view(record: RunRecord, past: RunPast, *, policy: str, live: Report | None, dataflow: str) -> RunView:
    """One run over a stretch of time. live: the newest report, when this is the run that goes on now."""
    recorded = report_from_json(record.report_json)
    streams = live.streams if live else recorded.streams
    flows = live.flows if live else recorded.flows
    stream = next((stream for stream in streams if stream.policy == policy), streams[0] if streams else None)
    window = _window(past, record, is_live=live is not None)
    pins = [pin for pin in past.pins if window.start <= pin.at <= window.end]
    marks = tuple((round(window.place(pin.at), 1), round(pin.at, 2), pin.kind.value) for pin in pins)
    bound = stream.max_staleness if stream else 0
    rungs = _rungs(past, window, bound)
    shown = stream.policy if stream else ""
    return RunView(
        row=run_row(record, is_live=live is not None),
        policy=shown,
        policies=tuple(stream.policy for stream in streams),
        facts=_facts(record, recorded, live, stream, dataflow),
        balances=(
            *(flow_balance(flow) for flow in flows),
            *(prefix_balance(flow) for flow in flows if flow.prefixes.get("handed_back")),
            *(stream_balance(stream) for stream in streams),
        ),
        episodes=tuple((flow.id, episode_entries(flow)) for flow in flows if flow.episodes),
        drawings={
            spec.name: replace(
                charts.draw(spec, past.rows, window, limit=charts.limit_of(spec, stream) if stream else None),
                pins=marks,
            )
            for spec in RUN_CHARTS.values()
        },
        findings=run_findings(past.rows) | {charts.LADDER: ladder_finding(rungs, bound)},
        points=page_points(
            shown,
            past.rows,
            RUN_CHARTS.values(),
            sequences=[record.last_sequence] * len(past.rows),  # all of it under the one that it was recorded up to
            is_moving=live is not None and window.is_moving,
        ),
        is_live=live is not None,
        flows=flows,
        figures=plugin_figures(flows, streams),
        ranges=_ranges(past.span, shown if len(streams) > 1 else ""),
        query=urlencode({"policy": shown, **(past.span.query if past.span else {})}),
        begin=moment(window.start),
        end=moment(window.end),
        is_custom=past.span is not None and not past.span.is_moving,
        timeline=timeline(past.rows, window),
        rungs=rungs,
        bound=bound,
        x_ticks=scales.x_ticks(window),
        ends={"start": window.start, "end": window.end},
        moments=moments_of(reversed(pins)),
    )


def _window(past: RunPast, record: RunRecord, *, is_live: bool) -> scales.Window:
    rows, span = past.rows, past.span
    if span is None:
        return scales.window_of(rows[0][0] if rows else None, rows[-1][0] if rows else None, None)
    end = span.end if span.end is not None else rows[-1][0] if rows else record.last_at
    is_moving = span.is_moving and is_live
    return scales.Window(start=end - span.duration_s, end=end, range_s=span.duration_s, is_moving=is_moving)


def _ranges(span: TimeRange | None, policy: str) -> tuple[Choice, ...]:
    """The whole run, and its last so many hours."""
    more = {"policy": policy} if policy else {}
    whole = Choice(label="whole run", href=f"?{urlencode(more)}", is_chosen=span is None)
    chosen = span.name if span else ""
    return (
        whole,
        *(
            Choice(label=name, href=f"?{urlencode({**more, 'range': name})}", is_chosen=name == chosen)
            for name in RANGES_S
        ),
    )


def _rungs(past: RunPast, window: scales.Window, bound: int) -> tuple[Rung, ...]:
    found = []
    for name, rows in past.lags.items():
        lags = [(at, None if (lag := numbers["lag"]) is None else round(lag)) for at, numbers in rows]
        widths = [after - before for (before, _), (after, _) in pairwise(lags)]
        found.append(rung(name, lags, window, bound=bound, gap_s=3 * median(widths) if widths else 0.0))
    return tuple(found)


def _fates(flows: Sequence[FlowReport], streams: Sequence[StreamReport]) -> tuple[str, ...]:
    dropped = {reason for flow in flows for reason in flow.dropped}
    return ("buffered", "trained", *sorted(dropped.union(*(stream.dropped for stream in streams))))


def _policy_summary(stream: StreamReport) -> PolicySummary:
    has_steps = stream.steps > 0
    return PolicySummary(
        policy=stream.policy,
        steps=formats.count(stream.steps),
        version=f"v{stream.version}",
        reward=formats.reward(_reward(stream)),
        wait=formats.percent(stream.wait_fraction) if has_steps else formats.MISSING,
    )


def _reward(stream: StreamReport) -> float | None:
    """As the charts have it: the mean of the last ten steps."""
    latest = stream.rewards[-AVERAGED_STEPS:]
    return sum(latest) / len(latest) if latest else None


def _facts(
    record: RunRecord, recorded: RecordedReport, live: Report | None, stream: StreamReport | None, dataflow: str
) -> tuple[Fact, ...]:
    facts = [
        Fact(label="Recipe", value=record.recipe or "not named"),
        Fact(label="Dataflow", value=dataflow),
        Fact(label="Stand-ins", value=", ".join(recorded.simulated) or "none: everything is real"),
        Fact(label="Flows", value=", ".join(flow.id for flow in recorded.flows)),
    ]
    if stream is not None:
        facts += [
            Fact(label="Batch", value=formats.several(stream.batch_groups, "group")),
            Fact(label="Staleness bound", value=formats.several(stream.max_staleness, "version")),
            Fact(label="Batches served again", value=formats.count(stream.redelivered)),
        ]
    if live is not None:
        engines = sorted({f"{node.facts.engine} on {node.facts.hardware}" for node in live.nodes})
        facts.append(Fact(label="Engines", value=formats.shortened("; ".join(engines), at_most=160) or "no node yet"))
    return tuple(facts)
