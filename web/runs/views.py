"""Page of one run: facts, balances of groups, charts and annotations."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from astraflow.contract.reports.diagnosis import fed_below
from astraflow.contract.reports.report import FlowReport, Report, StreamReport
from web.charts import panels
from web.charts.panels import PanelView, Row, Series, panel_view
from web.charts.tables import POINT_KINDS, columns_json, points_json, run_length_encoded
from web.charts.version_lag import version_lag_panel
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
from web.history.report_json import RecordedReport, report_from_json
from web.history.run_summary import PolicyFigures, policy_figures
from web.history.time_ranges import NAMED_RANGES_S, TimeRange
from web.requests.run_lookup import ENDED, LIVE, NOT_CONNECTED
from web.runs.annotation_groups import AnnotationGroup, annotation_groups
from web.runs.timeline import Timeline, timeline
from web.state.annotations import Annotation

TONES = {LIVE: "good", "running": "good", "starting": "warn", ENDED: "off", NOT_CONNECTED: "off"}
"""Tone of each state."""

SHOWN_POINTS = 600
CHART_HEIGHT = 176

TRAINED_REWARD = Series(
    value="reward_trained",
    label="trained on",
    style="second",
    note="Mean reward of the trained batch: filters drop groups whose answers are all equally good, so it stays lower",
)
EXTRA_SERIES = {"reward": (TRAINED_REWARD,)}
"""Series that only the page of a run shows."""

RUN_CHARTS = {
    panel.name: replace(panel, height=CHART_HEIGHT, series=(*panel.series, *EXTRA_SERIES.get(panel.name, ())))
    for panel in panels.CHARTS.values()
}
"""Charts of the page of a run, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """View model of one run. A live run uses its newest report, a past run its last recorded one."""

    row: RunRecord
    state: str
    policy: str
    policies: tuple[PolicyFigures, ...]
    facts: tuple[tuple[str, str], ...]
    balances: tuple[CountBalance, ...]
    episodes: tuple[tuple[str, tuple[CountEntry, ...]], ...]
    charts: dict[str, PanelView]
    insights: dict[str, str]
    """Titles of the charts."""
    points: dict[str, Any]
    """Table of the charts over time."""
    lags: dict[str, Any]
    """Table of the version lag chart."""
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
    annotation_groups: tuple[AnnotationGroup, ...]
    """Fleet events in the shown range, newest first."""

    @property
    def is_moving(self) -> bool:
        """Whether the shown range follows the live run."""
        return self.is_live and not self.is_custom


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHistory:
    """Recorded figures of a run over the shown time range."""

    rows: Sequence[Row]
    lags: Mapping[str, Sequence[Row]]
    """Version lag of the nodes that lag most, by node name."""
    training: Sequence[Row]
    """Training metrics by step; empty if they were not requested."""
    training_thinned_from: int | None
    """Number of steps of which `training` is a part; None if it has all steps."""
    annotations: Sequence[Annotation]
    span: TimeRange | None
    """Requested range; None for the whole run."""


def run_view(
    record: RunRecord, past: RunHistory, *, policy: str, live: Report | None, dataflow: str, state: str
) -> RunView:
    """Builds the page over a time range. live: newest report of a live run; None for a past one. state: in a word."""
    recorded = report_from_json(record.report_json)
    streams = live.streams if live else recorded.streams
    flows = live.flows if live else recorded.flows
    kinds = live.plugin_kinds if live else recorded.plugin_kinds
    stream = next((stream for stream in streams if stream.policy == policy), streams[0] if streams else None)
    begin, end = _range_ends(past, record)
    is_moving = live is not None and (past.span is None or past.span.is_moving)
    annotations = [annotation for annotation in past.annotations if begin <= annotation.at <= end]
    bound = stream.max_staleness if stream else 0
    lags = [round(max((numbers["lag"] or 0.0 for _, numbers in rows), default=0.0)) for rows in past.lags.values()]
    trainer_time = timeline(past.rows)
    has_steps = stream is not None and stream.training.steps > 0
    policy_id, fed = stream.policy if stream else "", fed_below(live)
    return RunView(
        row=record,
        state=state,
        policy=policy_id,
        policies=tuple(map(policy_figures, streams)),
        facts=_facts(record, recorded, live, stream, dataflow),
        balances=(
            *(flow_balance(flow, kinds) for flow in flows),
            *(partial_rollout_balance(flow) for flow in flows if flow.partial_rollouts.get("handed_back")),
            *(stream_balance(stream, kinds) for stream in streams),
        ),
        episodes=tuple((flow.id, episode_entries(flow)) for flow in flows if flow.episodes),
        charts={
            **{
                panel.name: panel_view(
                    replace(panel, limit=panels.limit_of(panel, stream, fed_below=fed) if stream else None), past.rows
                )
                for panel in RUN_CHARTS.values()
            },
            trainer_time.view.panel.name: trainer_time.view,
            panels.VERSION_LAG: panel_view(replace(version_lag_panel(bound), table="lags"), past.rows),
        },
        insights=run_insights(past.rows)
        | {panels.VERSION_LAG: version_lag_insight(lags, bound), "timeline": trainer_time.insight},
        points=points_json(
            policy_id,
            past.rows,
            (*RUN_CHARTS.values(), trainer_time.view.panel),
            sequences=[record.last_sequence]
            * len(past.rows),  # all rows carry the sequence of the last recorded report
            span=past.span,
            annotations=annotations,
            is_moving=is_moving,
            kinds=_by_step_first(POINT_KINDS) if has_steps else POINT_KINDS,
        ),
        lags=_lag_columns(past, has_steps=has_steps),
        is_live=live is not None,
        flows=flows,
        figures=plugin_figures(flows, streams),
        ranges=_ranges(past.span, policy_id if len(streams) > 1 else ""),
        query=urlencode({"policy": policy_id, **(past.span.query if past.span else {})}),
        begin=datetime_field_text(begin),
        end=datetime_field_text(end),
        is_custom=past.span is not None and not past.span.is_moving,
        has_steps=has_steps,
        timeline=trainer_time,
        annotation_groups=annotation_groups(sorted(annotations, key=lambda annotation: -annotation.at)),
    )


def _range_ends(past: RunHistory, record: RunRecord) -> tuple[float, float]:
    """Returns begin and end of the shown range, in Unix seconds."""
    rows, span = past.rows, past.span
    last = rows[-1][0] if rows else record.last_at
    if span is None:
        return rows[0][0] if rows else last, last
    end = span.end if span.end is not None else last
    return end - span.duration_s, end


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


def _by_step_first(kinds: Mapping[str, str]) -> dict[str, str]:
    return dict(sorted(kinds.items(), key=lambda item: item[0] != "step"))


def _lag_columns(past: RunHistory, *, has_steps: bool) -> dict[str, Any]:
    """Returns the table of the version lag chart: a column for each node, over the times of all of them."""
    lags: dict[float, dict[str, float | None]] = {}
    for name, rows in past.lags.items():
        for at, numbers in rows:
            lags.setdefault(at, {})[name] = numbers["lag"]
    times = sorted(lags)
    known = [at for at, _ in past.rows]
    steps = [past.rows[max(0, bisect_right(known, at) - 1)][1].get("steps") if known else None for at in times]
    return columns_json(
        [(at, {"steps": step}) for at, step in zip(times, steps, strict=True)],
        (),
        kinds=_by_step_first(POINT_KINDS) if has_steps else POINT_KINDS,
        span=past.span,
        lags={
            name: run_length_encoded(None if (lag := lags[at].get(name)) is None else round(lag) for at in times)
            for name in past.lags
        },
    )


def _facts(
    record: RunRecord, recorded: RecordedReport, live: Report | None, stream: StreamReport | None, dataflow: str
) -> tuple[tuple[str, str], ...]:
    facts = [
        ("Recipe", record.recipe or "unnamed"),
        ("Dataflow", dataflow),
        ("Simulated", ", ".join(recorded.simulated) or "nothing"),
        ("Flows", ", ".join(flow.id for flow in recorded.flows)),
    ]
    if stream is not None:
        facts += [
            ("Batch", formats.several(stream.batch_groups, "group")),
            ("Last batch", _last_batch(stream.training.metrics)),
            ("Staleness bound", formats.several(stream.max_staleness, "version")),
            ("Batching", stream.batching.sentence if stream.batching else formats.MISSING),
            ("Batches redelivered", formats.count(stream.training.redelivered)),
        ]
    if live is not None:
        engines = sorted({f"{node.facts.engine} on {node.facts.hardware}" for node in live.nodes})
        facts.append(("Engines", formats.shortened("; ".join(engines), at_most=160) or "no node yet"))
    return tuple(facts)


def _last_batch(metrics: Mapping[str, float]) -> str:
    """Returns the size of the batch of the last step, where its trainer reports it."""
    if "groups" not in metrics or "distinct_tokens" not in metrics:
        return formats.MISSING
    return f"{formats.several(metrics['groups'], 'group')}, {formats.count(metrics['distinct_tokens'])} distinct tokens"
