"""The list of runs, and one run: what it is, where its groups are, how it went."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from astraflow.contract.reports import FlowReport, Report, StreamReport
from web.points import AVERAGED_STEPS, VALUES
from web.present import charts, formats, scales
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
from web.report_json import RecordedReport, report_from_json
from web.tables import RunRecord

SHOWN_POINTS = 600
CHART_HEIGHT = 176

EXTRA_LINES = {"reward": (charts.Line(value="reward_trained", label="trained on", style="second"),)}
"""Lines that only the page of a run shows: what the filters leave for the trainer."""


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
    points: dict[str, Any]
    is_live: bool
    flows: tuple[FlowReport, ...]
    figures: tuple[Figure, ...]


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


def run_view(
    record: RunRecord, rows: Sequence[charts.Row], *, policy: str, live: Report | None, dataflow: str
) -> RunView:
    """One run with its whole history (thinned). live: the newest report, when this is the run that goes on now."""
    recorded = report_from_json(record.report_json)
    streams = live.streams if live else recorded.streams
    flows = live.flows if live else recorded.flows
    stream = next((stream for stream in streams if stream.policy == policy), streams[0] if streams else None)
    window = scales.window_of(rows[0][0] if rows else None, rows[-1][0] if rows else None, None)
    return RunView(
        row=run_row(record, is_live=live is not None),
        policy=stream.policy if stream else "",
        policies=tuple(stream.policy for stream in streams),
        facts=_facts(record, recorded, live, stream, dataflow),
        balances=(
            *(flow_balance(flow) for flow in flows),
            *(prefix_balance(flow) for flow in flows if flow.prefixes.get("handed_back")),
            *(stream_balance(stream) for stream in streams),
        ),
        episodes=tuple((flow.id, episode_entries(flow)) for flow in flows if flow.episodes),
        drawings={
            spec.name: charts.draw(spec, rows, window, limit=charts.limit_of(spec, stream) if stream else None)
            for spec in _run_charts()
        },
        points=_points(stream.policy if stream else "", rows, sequence=record.last_sequence, is_live=live is not None),
        is_live=live is not None,
        flows=flows,
        figures=plugin_figures(flows, streams),
    )


def _fates(flows: Sequence[FlowReport], streams: Sequence[StreamReport]) -> tuple[str, ...]:
    dropped = {reason for flow in flows for reason in flow.dropped}
    return ("buffered", "trained", *sorted(dropped.union(*(stream.dropped for stream in streams))))


def _run_charts() -> list[charts.ChartSpec]:
    return [
        replace(spec, height=CHART_HEIGHT, lines=(*spec.lines, *EXTRA_LINES.get(spec.name, ())))
        for spec in charts.CHARTS.values()
    ]


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


def _points(policy: str, rows: Sequence[charts.Row], *, sequence: int, is_live: bool) -> dict[str, Any]:
    """For the scripts: what is recorded, all of it under the sequence that it was recorded up to."""
    packed = [[sequence, at, {policy: {"v": [numbers[name] for name in VALUES], "l": {}}}] for at, numbers in rows]
    return {"isLive": is_live, "policy": policy, "values": VALUES, "points": packed}
