"""Page of one run: facts, balances of groups, charts and annotations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any
from urllib.parse import urlencode

from astraflow.contract.reports.diagnosis import fed_below
from astraflow.contract.reports.report import FlowReport, Report, StreamReport
from web.charts import charts, scales
from web.charts.chart_data import chart_data
from web.charts.version_lag import NodeLagRow, node_lag_row
from web.components import formats
from web.components.group_counts import (
    CountBalance,
    CountEntry,
    PluginFigure,
    episode_entries,
    flow_balance,
    partial_rollout_balance,
    plugin_figures,
    stream_balance,
)
from web.components.insights import run_insights, version_lag_insight
from web.components.layout import LinkChoice, datetime_field_text
from web.database.tables import RunRecord
from web.history.points import AVERAGED_STEPS
from web.history.report_json import RecordedReport, report_from_json
from web.history.time_ranges import NAMED_RANGES_S, TimeRange
from web.requests.run_lookup import ENDED, LIVE, NOT_CONNECTED
from web.runs.annotation_groups import AnnotationGroup, annotation_groups
from web.runs.timeline import Timeline, timeline
from web.state.annotations import Annotation

TONES = {LIVE: "good", "running": "good", "starting": "warn", ENDED: "off", NOT_CONNECTED: "off"}
"""Tone of each state."""

SHOWN_POINTS = 600
CHART_HEIGHT = 176

EXTRA_LINES = {"reward": (charts.Line(value="reward_trained", label="trained on", style="second"),)}
"""Lines that only the page of a run shows: the mean reward of trained groups."""

RUN_CHARTS = {
    spec.name: replace(spec, height=CHART_HEIGHT, lines=(*spec.lines, *EXTRA_LINES.get(spec.name, ())))
    for spec in charts.CHARTS.values()
}
"""Charts of the page of a run, by name."""


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
    """Latest figures of one policy."""

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
class RunView:
    """View model of one run. A live run uses its newest report, a past run its last recorded one."""

    row: RunRow
    policy: str
    policies: tuple[str, ...]
    facts: tuple[Fact, ...]
    balances: tuple[CountBalance, ...]
    episodes: tuple[tuple[str, tuple[CountEntry, ...]], ...]
    drawings: dict[str, charts.Drawing]
    insights: dict[str, str]
    """Titles of the drawings and of the version lag chart (`versions`)."""
    points: dict[str, Any]
    is_live: bool
    flows: tuple[FlowReport, ...]
    figures: tuple[PluginFigure, ...]
    ranges: tuple[LinkChoice, ...]
    query: str
    """Query of the shown selection."""
    begin: str
    """Begin of the shown range, UTC, in the format of a date field; `end` likewise."""
    end: str
    is_custom: bool
    has_steps: bool
    """Whether the shown policy has trained a step at any time."""
    timeline: Timeline
    lag_rows: tuple[NodeLagRow, ...]
    bound: int
    x_ticks: Sequence[tuple[float, str]]
    axis_ends: Mapping[str, float]
    """Unix seconds of the two ends of the x axis, for the scripts."""
    annotation_groups: tuple[AnnotationGroup, ...]
    """Fleet events in the shown range, newest first."""

    @property
    def is_moving(self) -> bool:
        """Whether the shown range follows the live run."""
        return self.is_live and not self.is_custom


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHistory:
    """Recorded figures of a run over the shown time range."""

    rows: Sequence[charts.Row]
    lags: Mapping[str, Sequence[charts.Row]]
    """Version lag of the nodes that lag most, by node name."""
    training: Sequence[charts.Row]
    """Training metrics by step; empty if they were not requested."""
    training_thinned_from: int | None
    """Number of steps of which `training` is a part; None if it has all steps."""
    annotations: Sequence[Annotation]
    span: TimeRange | None
    """Requested range; None for the whole run."""


def run_row(record: RunRecord, state: str) -> RunRow:
    """Returns a record as the head of its page."""
    report = report_from_json(record.report_json)
    return RunRow(
        id=record.id or 0,
        name=record.name,
        recipe=record.recipe,
        state=state,
        tone=TONES[state],
        started_at=record.started_at,
        duration=formats.duration(record.last_at - record.started_at),
        policies=[_policy_summary(stream) for stream in report.streams],
        simulated=bool(report.simulated),
    )


def run_view(
    record: RunRecord, past: RunHistory, *, policy: str, live: Report | None, dataflow: str, state: str
) -> RunView:
    """Builds the page over a time range. live: newest report of a live run; None for a past one. state: in a word."""
    recorded = report_from_json(record.report_json)
    streams = live.streams if live else recorded.streams
    flows = live.flows if live else recorded.flows
    kinds = live.plugin_kinds if live else recorded.plugin_kinds
    stream = next((stream for stream in streams if stream.policy == policy), streams[0] if streams else None)
    window = _window(past, record, is_live=live is not None)
    annotations = [annotation for annotation in past.annotations if window.start <= annotation.at <= window.end]
    marks = tuple(
        (round(window.x_of(annotation.at), 1), round(annotation.at, 2), annotation.kind.value)
        for annotation in annotations
    )
    bound = stream.max_staleness if stream else 0
    lag_rows = _lag_rows(past, window, bound)
    lags = [max((interval.lag for interval in row.intervals), default=0) for row in lag_rows]
    policy_id, fed = stream.policy if stream else "", fed_below(live)
    return RunView(
        row=run_row(record, state),
        policy=policy_id,
        policies=tuple(stream.policy for stream in streams),
        facts=_facts(record, recorded, live, stream, dataflow),
        balances=(
            *(flow_balance(flow, kinds) for flow in flows),
            *(partial_rollout_balance(flow) for flow in flows if flow.partial_rollouts.get("handed_back")),
            *(stream_balance(stream, kinds) for stream in streams),
        ),
        episodes=tuple((flow.id, episode_entries(flow)) for flow in flows if flow.episodes),
        drawings={
            spec.name: replace(
                charts.draw(
                    spec, past.rows, window, limit=charts.limit_of(spec, stream, fed_below=fed) if stream else None
                ),
                annotations=marks,
            )
            for spec in RUN_CHARTS.values()
        },
        insights=run_insights(past.rows) | {charts.VERSION_LAG: version_lag_insight(lags, bound)},
        points=chart_data(
            policy_id,
            past.rows,
            RUN_CHARTS.values(),
            sequences=[record.last_sequence]
            * len(past.rows),  # all rows carry the sequence of the last recorded report
            is_moving=live is not None and window.is_moving,
        ),
        is_live=live is not None,
        flows=flows,
        figures=plugin_figures(flows, streams),
        ranges=_ranges(past.span, policy_id if len(streams) > 1 else ""),
        query=urlencode({"policy": policy_id, **(past.span.query if past.span else {})}),
        begin=datetime_field_text(window.start),
        end=datetime_field_text(window.end),
        is_custom=past.span is not None and not past.span.is_moving,
        has_steps=stream is not None and stream.training.steps > 0,
        timeline=timeline(past.rows, window),
        lag_rows=lag_rows,
        bound=bound,
        x_ticks=scales.x_ticks(window),
        axis_ends={"start": window.start, "end": window.end},
        annotation_groups=annotation_groups(sorted(annotations, key=lambda annotation: -annotation.at)),
    )


def _window(past: RunHistory, record: RunRecord, *, is_live: bool) -> scales.Window:
    rows, span = past.rows, past.span
    if span is None:
        return scales.window_of(rows[0][0] if rows else None, rows[-1][0] if rows else None, None)
    end = span.end if span.end is not None else rows[-1][0] if rows else record.last_at
    is_moving = span.is_moving and is_live
    return scales.Window(start=end - span.duration_s, end=end, range_s=span.duration_s, is_moving=is_moving)


def _ranges(span: TimeRange | None, policy: str) -> tuple[LinkChoice, ...]:
    """Returns links to the whole run and to the latest part of it."""
    policy_query = {"policy": policy} if policy else {}
    whole = LinkChoice(label="whole run", href=f"?{urlencode(policy_query)}", is_chosen=span is None)
    chosen = span.name if span else ""
    return (
        whole,
        *(
            LinkChoice(label=name, href=f"?{urlencode({**policy_query, 'range': name})}", is_chosen=name == chosen)
            for name in NAMED_RANGES_S
        ),
    )


def _lag_rows(past: RunHistory, window: scales.Window, bound: int) -> tuple[NodeLagRow, ...]:
    rows_by_node = []
    for name, rows in past.lags.items():
        lags = [(at, None if (lag := numbers["lag"]) is None else round(lag)) for at, numbers in rows]
        widths = [later - earlier for (earlier, _), (later, _) in pairwise(lags)]
        rows_by_node.append(node_lag_row(name, lags, window, bound=bound, gap_s=3 * median(widths) if widths else 0.0))
    return tuple(rows_by_node)


def _policy_summary(stream: StreamReport) -> PolicySummary:
    has_steps = stream.training.steps > 0
    return PolicySummary(
        policy=stream.policy,
        steps=formats.count(stream.training.steps),
        version=f"v{stream.version}",
        reward=formats.reward(_reward(stream)),
        wait=formats.percent(stream.training.wait_fraction) if has_steps else formats.MISSING,
    )


def _reward(stream: StreamReport) -> float | None:
    """Returns the mean reward of the last ten steps, as the charts show it."""
    latest = stream.training.rewards[-AVERAGED_STEPS:]
    return sum(latest) / len(latest) if latest else None


def _facts(
    record: RunRecord, recorded: RecordedReport, live: Report | None, stream: StreamReport | None, dataflow: str
) -> tuple[Fact, ...]:
    facts = [
        Fact(label="Recipe", value=record.recipe or "unnamed"),
        Fact(label="Dataflow", value=dataflow),
        Fact(label="Simulated", value=", ".join(recorded.simulated) or "nothing"),
        Fact(label="Flows", value=", ".join(flow.id for flow in recorded.flows)),
    ]
    if stream is not None:
        facts += [
            Fact(label="Batch", value=formats.several(stream.batch_groups, "group")),
            Fact(label="Staleness bound", value=formats.several(stream.max_staleness, "version")),
            Fact(label="Batches redelivered", value=formats.count(stream.training.redelivered)),
        ]
    if live is not None:
        engines = sorted({f"{node.facts.engine} on {node.facts.hardware}" for node in live.nodes})
        facts.append(Fact(label="Engines", value=formats.shortened("; ".join(engines), at_most=160) or "no node yet"))
    return tuple(facts)
