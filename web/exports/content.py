"""Content of an export: everything that the file shows, as one JSON document of bounded size."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sqlmodel import Session, col, select

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.records import render
from astraflow.contract.reports.evaluations import EvaluationReport
from astraflow.contract.reports.queries import EventPage, EventQuery, TrajectoryPage, TrajectoryQuery
from astraflow.contract.reports.report import Event, SampledTrajectory
from astraflow.contract.training_metrics import MetricGroup
from astraflow.runtime.folders.run_folders import RunFolder
from astraflow.runtime.folders.run_metadata import read_metadata
from astraflow.runtime.redaction import without_secrets
from web.charts.panels import metric_format, sparkline, value_text
from web.components import formats
from web.components.group_counts import flow_balance, stream_balance
from web.components.texts import visible
from web.database.tables import Alert, AuditChain, RunRecord
from web.exports.settings import settings_of
from web.history import series_queries
from web.history.points import VALUES
from web.history.report_json import RecordedReport, report_from_json
from web.history.run_summary import PolicyFigures, policy_figures
from web.history.samples import FLEET_SUBJECT, policy_subject
from web.history.training_steps import STEP, recorded_metrics, training_rows

SCHEMA = "astraflow.export.v1"
"""Version of the data in the file."""

MAX_CHART_POINTS = 600
MAX_CHARTS = 60
MAX_EVENTS = 500
MAX_ALERTS = 100
MAX_ROUNDS = 60
MAX_SAMPLES_READ = 200
MAX_SAMPLE_CHARS = 4000
SAMPLES_PER_STEP = 2
TABLE_ROWS = 20

FLEET_LABELS = {"nodes": "Ready nodes", "demand": "Demand, groups/s", "ready": "Ready capacity, groups/s"}
POLICY_LABELS = {
    "wait": ("Share of a step that the trainer waits", "percent"),
    "produced": ("Groups produced per second", "rate"),
    "consumed": ("Groups consumed per second", "rate"),
    "buffered": ("Groups in the buffer", "count"),
    "lag": ("Versions that the slowest node is behind", "count"),
}


class RunSource(Protocol):
    """Interface of the source of samples, rounds and events: the client of the control plane, or of a run's folder."""

    async def trajectories(self, query: TrajectoryQuery) -> TrajectoryPage:
        """Returns sampled trajectories."""

    async def evaluations(self, *, before: int | None = None, limit: int = 20) -> tuple[EvaluationReport, ...]:
        """Returns evaluation rounds, newest first."""

    async def events(self, query: EventQuery) -> EventPage:
        """Returns events of the whole run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """Recorded data of a run, read from the database."""

    record: RunRecord
    report: RecordedReport
    charts: list[dict[str, Any]]
    thinned: list[str]
    alerts: list[dict[str, Any]]
    audit: dict[str, Any]


def recorded_run(session: Session, record: RunRecord) -> RecordedRun:
    """Reads the database."""
    report = report_from_json(record.report_json)
    charts, thinned = _charts(session, record.id or 0, [stream.policy for stream in report.streams])
    if len(charts) > MAX_CHARTS:
        thinned.append(f"{len(charts) - MAX_CHARTS} of {len(charts)} charts are left out.")
    chain = session.get_one(AuditChain, 1)
    return RecordedRun(
        record=record,
        report=report,
        charts=charts[:MAX_CHARTS],
        thinned=thinned,
        alerts=_alerts(session, record.name),
        audit={"last_sequence": chain.last_sequence, "last_hash": chain.last_hash},
    )


async def export_content(
    recorded: RecordedRun, source: RunSource | None, folder: Path | None, *, at: float, release: str
) -> dict[str, Any]:
    """Returns the document. source: None without one. folder: None if it is not on this machine."""
    record, report = recorded.record, recorded.report
    thinned = [*recorded.thinned]
    samples = await _samples(source, [stream.policy for stream in report.streams], thinned)
    events = await _events(source, report.events, thinned)
    content = {
        "schema": SCHEMA,
        "exported_at": at,
        "release": release,
        "run": _run_facts(record, folder),
        "policies": [_policy(policy_figures(stream)) for stream in report.streams],
        "simulated": list(report.simulated),
        "settings": await settings_of(folder),
        "charts": recorded.charts,
        "evaluations": await _evaluations(source, thinned),
        "samples": samples,
        "events": events,
        "alerts": recorded.alerts,
        "balances": _balances(report),
        "audit": recorded.audit,
        "thinned": thinned,
    }
    cleaned: dict[str, Any] = without_secrets(content)
    return cleaned


def _run_facts(record: RunRecord, folder: Path | None) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": record.name,
        "recipe": record.recipe,
        "started_at": record.started_at,
        "last_at": record.last_at,
        **dict.fromkeys(("title", "note", "group", "commit"), ""),
        "tags": [],
        "seed": None,
    }
    if folder is None:
        return facts
    try:
        known, metadata = RunFolder(folder).facts, read_metadata(folder)
    except (AstraFlowError, OSError):
        return facts
    texts = {"title": metadata.title, "note": metadata.note, "group": metadata.group}
    return facts | texts | {"tags": list(metadata.tags), "seed": known.seed, "commit": known.commit}


def _policy(figures: PolicyFigures) -> dict[str, Any]:
    return {name: getattr(figures, name) for name in ("policy", "steps", "version", "reward")}


def _charts(session: Session, run_id: int, policies: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the charts with their columns, and what was thinned."""
    charts, thinned = [], []
    for policy in policies:
        steps = training_rows(session, run_id, policy, at_most=MAX_CHART_POINTS)
        if steps.thinned_from:
            thinned.append(f"Training of {policy}: {len(steps.rows)} of {steps.thinned_from} steps are shown.")
        places = list(MetricGroup)
        for metric in sorted(recorded_metrics(steps.rows), key=lambda metric: places.index(metric.group)):
            xs = [values[STEP] for _, values in steps.rows]
            column = [values.get(metric.name) for _, values in steps.rows]
            label = f"{metric.label} of {policy}" if len(policies) > 1 else metric.label
            charts.append(_chart(f"training/{policy}/{metric.name}", label, "step", xs, column, metric_format(metric)))
    for subject, labels in _seconds(policies):
        rows = series_queries.rows(session, run_id, subject, tuple(labels), at_most=MAX_CHART_POINTS)
        if len(rows) >= MAX_CHART_POINTS // 2:
            thinned.append(f"Series of {subject}: means over stretches of the {len(rows)} shown times.")
        for value, (label, kind) in labels.items():
            column = [numbers[value] for _, numbers in rows]
            if any(number is not None for number in column):
                times = [at - rows[0][0] for at, _ in rows]
                charts.append(_chart(f"{subject}/{value}", label, "seconds", times, column, kind))
    return charts, thinned


def _seconds(policies: Sequence[str]) -> Iterable[tuple[str, dict[str, tuple[str, str]]]]:
    """Yields the subjects recorded by the second, with labels and formats of their values."""
    for policy in policies:
        end = f" of {policy}" if len(policies) > 1 else ""
        known = {value: (label + end, kind) for value, (label, kind) in POLICY_LABELS.items() if value in VALUES}
        yield policy_subject(policy), known
    yield FLEET_SUBJECT, {value: (label, "rate") for value, label in FLEET_LABELS.items()}


def _chart(
    name: str, label: str, by: str, xs: Sequence[float | None], column: Sequence[float | None], kind: str
) -> dict[str, Any]:
    known = [value for value in column if value is not None]
    stride = max(1, -(-len(xs) // TABLE_ROWS))
    return {
        "name": name,
        "label": label,
        "by": by,
        "x": [None if x is None else round(x, 2) for x in xs],
        "y": [None if value is None else float(f"{value:.6g}") for value in column],
        "latest": value_text(known[-1] if known else None, kind),
        "low": value_text(min(known), kind) if known else "",
        "high": value_text(max(known), kind) if known else "",
        "sparkline": sparkline(column),
        "table": [
            [formats.count(x) if by == "step" else formats.duration(x), value_text(value, kind)]
            for x, value in list(zip(xs, column, strict=True))[::-1][::stride]
        ],
    }


async def _samples(source: RunSource | None, policies: Sequence[str], thinned: list[str]) -> list[dict[str, Any]]:
    """Returns some samples: the best, the worst, those whose reward changed most, and of the first, middle and last
    step."""
    if source is None:
        thinned.append("Samples are not available: the folder of the run is not on this machine.")
        return []
    try:
        chosen = [sample for policy in policies for sample in await _chosen(source, policy)]
    except AstraFlowError as problem:
        thinned.append(f"Samples could not be read: {problem}")
        return []
    thinned.append(f"{len(chosen)} samples are shown, each up to {formats.count(MAX_SAMPLE_CHARS)} characters.")
    return chosen


async def _chosen(source: RunSource, policy: str) -> list[dict[str, Any]]:
    newest = (await source.trajectories(_query(policy))).trajectories
    steps = sorted({sample.step for sample in newest if sample.step is not None})
    first = await _trained(source, policy, 0, steps[0]) if steps else ()
    last_step = steps[-1] if steps else 0
    middle = await _trained(source, policy, last_step // 2, last_step // 2 + max(1, last_step // 20)) if steps else ()
    known = {sample.ordinal: sample for sample in (*newest, *first, *middle) if sample.failure is None}
    ranked = sorted(known.values(), key=lambda sample: (sample.reward, sample.ordinal))
    groups = {
        "best": _of_several_groups(ranked[::-1]),
        "worst": _of_several_groups(ranked),
        "changed": _changed(list(known.values())),
        "first step": _of_step(known.values(), min),
        "middle step": _of_several_groups(sorted(middle, key=lambda sample: -sample.ordinal)),
        "last step": _of_step(known.values(), max),
    }
    return [_sample(kind, sample) for kind, members in groups.items() for sample in members]


def _query(policy: str, **more: Any) -> TrajectoryQuery:
    return TrajectoryQuery(policy=policy, limit=MAX_SAMPLES_READ, is_failed=False, **more)


async def _trained(source: RunSource, policy: str, first: int, last: int) -> tuple[SampledTrajectory, ...]:
    """Returns the oldest kept samples that were trained between two steps."""
    return (await source.trajectories(_query(policy, first_step=first, last_step=last, after=0))).trajectories


def _of_step(samples: Iterable[SampledTrajectory], pick: Any) -> list[SampledTrajectory]:
    trained = [sample for sample in samples if sample.step is not None]
    step = pick((sample.step for sample in trained), default=None)
    return _of_several_groups([sample for sample in trained if sample.step == step])


def _of_several_groups(samples: Iterable[SampledTrajectory]) -> list[SampledTrajectory]:
    """Returns the first samples, one of each group."""
    by_group: dict[str, SampledTrajectory] = {}
    for sample in samples:
        by_group.setdefault(sample.group, sample)
    return list(by_group.values())[:SAMPLES_PER_STEP]


def _changed(samples: list[SampledTrajectory]) -> list[SampledTrajectory]:
    """Returns the earliest and the latest answer to the prompt whose reward changed most."""
    by_prompt: dict[str, list[SampledTrajectory]] = {}
    for sample in sorted(samples, key=lambda sample: sample.ordinal):
        by_prompt.setdefault(sample.prompt_text, []).append(sample)
    pairs = [(members[0], members[-1]) for members in by_prompt.values() if len(members) > 1]
    pair = max(pairs, key=lambda pair: abs(pair[1].reward - pair[0].reward), default=None)
    return [] if pair is None or pair[0].reward == pair[1].reward else [*pair]


def _sample(kind: str, sample: SampledTrajectory) -> dict[str, Any]:
    texts = {"prompt": sample.prompt_text, "completion": sample.completion_text, "reference": sample.reference_text}
    return {
        "kind": kind,
        "policy": sample.policy,
        "step": sample.step,
        "reward": sample.reward,
        "group": sample.group,
        "outcome": sample.outcome,
        "tokens": sample.model_tokens,
        "at": sample.at,
        **{name: visible(text[:MAX_SAMPLE_CHARS]) for name, text in texts.items()},
        "left_out": sum(max(0, len(text) - MAX_SAMPLE_CHARS) for text in texts.values()),
    }


async def _evaluations(source: RunSource | None, thinned: list[str]) -> list[dict[str, Any]]:
    if source is None:
        return []
    try:
        rounds = await source.evaluations(limit=MAX_ROUNDS)
    except AstraFlowError as problem:
        thinned.append(f"Evaluations could not be read: {problem}")
        return []
    return [
        {
            "evaluation": report.flow,
            "round": report.round,
            "policy": policy,
            "version": int(version),
            "state": report.state.value,
            "samples": f"{report.done} of {report.total}",
            "scores": ", ".join(
                f"{score.name} {formats.reward(score.value, score.error)}"
                for score in report.scores
                if score.policy == policy
            ),
            "at": report.finished_at or report.started_at or report.requested_at,
        }
        for report in rounds
        for policy, version in report.versions.items()
    ]


async def _events(source: RunSource | None, recorded: Sequence[Event], thinned: list[str]) -> list[dict[str, Any]]:
    events: Sequence[Event] = sorted(recorded, key=lambda event: -event.ordinal)
    if source is not None:
        try:
            page = await source.events(EventQuery(limit=MAX_EVENTS))
        except AstraFlowError as problem:
            thinned.append(f"Only the latest events are shown: {problem}")
        else:
            events = page.events
            if page.has_older:
                thinned.append(f"The latest {len(events)} events are shown.")
    return [
        {"at": event.at, "kind": event.kind.label, "subject": event.subject, "text": visible(render(event))}
        for event in events
    ]


def _alerts(session: Session, run: str) -> list[dict[str, Any]]:
    query = select(Alert).where(Alert.run == run).order_by(col(Alert.id).desc()).limit(MAX_ALERTS)
    names = ("rule_name", "severity", "text", "began_at", "ended_at")
    return [{name: getattr(alert, name) for name in names} for alert in session.exec(query).all()]


def _balances(report: RecordedReport) -> list[dict[str, Any]]:
    balances = [
        *(flow_balance(flow, report.plugin_kinds) for flow in report.flows),
        *(stream_balance(stream, report.plugin_kinds) for stream in report.streams),
    ]
    return [
        {
            "title": balance.title,
            "sentence": balance.sentence,
            "is_balanced": balance.is_balanced,
            "entries": [[entry.label, entry.count, entry.share] for entry in balance.entries],
        }
        for balance in balances
    ]
