"""Evaluates a rule over recorded history: how often its alert would have fired. And series that a rule can watch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlmodel import Session, col, select

from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import render
from astraflow.contract.reports.report import Event
from web.alerting.evaluation import RuleWatch
from web.alerting.rules import DIAGNOSIS, EVENT, Condition, RuleSpec, Unit, training_subject
from web.database.tables import RunRecord, SeriesName, TrainingStepRow
from web.history import series_queries
from web.history.report_json import report_from_json
from web.history.training_steps import STEP, X_VALUES, training_rows

MAX_TESTED_RUNS = 10
MAX_TESTED_SERIES = 50
MAX_TESTED_ROWS = 4000
MAX_LISTED_RUNS = 20
"""Latest runs whose series can be chosen."""
MAX_LISTED_NAMES = 8
"""Names of one kind, such as nodes, that can be chosen one by one."""

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Firing:
    """Alert that would have fired."""

    began_at: float
    """Unix seconds."""
    ended_at: float | None
    """Unix seconds; None if it would still fire."""
    subject: str
    """First series that fires."""
    value: float | None
    """Its value; None without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTest:
    """Result of a rule on one run."""

    run_id: int
    """Id of the run, from the list of runs."""
    run: str
    """Name of the run."""
    since: float
    """Begin of the tested time. Unix seconds."""
    until: float
    """End of the tested time: that of the record. Unix seconds."""
    series: int
    """Recorded series that the rule watches. Count."""
    firings: tuple[Firing, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    """Recorded value."""

    at: float
    subject: str
    value: float
    position: float


def tested(session: Session, spec: RuleSpec, *, span_s: float = HOUR_S) -> tuple[RunTest, ...]:
    """Evaluates a rule over the last recorded `span_s` of each run that it covers, the newest runs first."""
    columns = (col(RunRecord.id), col(RunRecord.name), col(RunRecord.last_at))
    records = session.execute(select(*columns).order_by(col(RunRecord.last_at).desc())).all()
    matching = [(run_id, name, at) for run_id, name, at in records if spec.covers_run(name)][:MAX_TESTED_RUNS]
    return tuple(_tested_run(session, spec, run_id, name, last_at, span_s) for run_id, name, last_at in matching)


def recent_values(session: Session, run_id: int, subject: str, value: str, *, span_s: float = HOUR_S) -> list[float]:
    """Values of one series over the last recorded `span_s` of a run."""
    record = session.get(RunRecord, run_id)
    if record is None:
        return []
    return [point.value for point in _values(session, run_id, subject, value, record.last_at - span_s)]


def listed_series(session: Session) -> list[tuple[str, str]]:
    """Subjects and values that the latest runs recorded; of a kind with many names, those with `*` only."""
    ids = select(RunRecord.id).order_by(col(RunRecord.last_at).desc()).limit(MAX_LISTED_RUNS)
    query = select(SeriesName.subject, SeriesName.value).where(col(SeriesName.run_id).in_(ids)).distinct()
    recorded = {(subject, value) for subject, value in session.execute(query).all()}
    recorded |= {
        (training_subject(policy), value)
        for run_id, policy in session.execute(_policies(ids)).all()
        for _, numbers in training_rows(session, run_id, policy, at_most=2).rows
        for value in numbers.keys() - set(X_VALUES)
    }
    names: dict[str, set[str]] = {}
    for subject, _ in recorded:
        kind, _, name = subject.partition("/")
        names.setdefault(kind, set()).add(name)
    listed = {
        (f"{kind}/*" if name else kind, value)
        for kind, name, value in ((*subject.partition("/")[::2], value) for subject, value in recorded)
    }
    few = {kind for kind, of in names.items() if len(of) <= MAX_LISTED_NAMES}
    return sorted(listed | {(subject, value) for subject, value in recorded if subject.partition("/")[0] in few})


def _tested_run(session: Session, spec: RuleSpec, run_id: int, name: str, last_at: float, span_s: float) -> RunTest:
    since = last_at - span_s
    watch = RuleWatch(spec, since=since)
    if spec.is_of_records:
        firings = _record_firings(session, watch, run_id, since)
        return RunTest(run_id=run_id, run=name, since=since, until=last_at, series=1, firings=firings)
    subjects = _subjects(session, spec, run_id)
    values = [value for subject in subjects for value in _values(session, run_id, subject, spec.value, since)]
    firings = _value_firings(watch, sorted(values, key=lambda value: value.at), until=last_at)
    return RunTest(run_id=run_id, run=name, since=since, until=last_at, series=len(subjects), firings=firings)


def _policies(run_ids: Any) -> Any:
    """Query of the policies that runs have trained, with the runs."""
    columns = (col(TrainingStepRow.run_id), col(TrainingStepRow.policy))
    return select(*columns).where(col(TrainingStepRow.run_id).in_(run_ids)).distinct()


def _subjects(session: Session, spec: RuleSpec, run_id: int) -> list[str]:
    if spec.is_of_steps:
        policies = session.execute(_policies([run_id])).all()
        return sorted(subject for _, name in policies if spec.covers_subject(subject := training_subject(name)))
    query = select(SeriesName.subject).where(SeriesName.run_id == run_id, SeriesName.value == spec.value).distinct()
    subjects = sorted(session.execute(query).scalars())
    return [subject for subject in subjects if spec.covers_subject(subject)][:MAX_TESTED_SERIES]


def _values(session: Session, run_id: int, subject: str, value: str, since: float) -> list[_Value]:
    kind, _, name = subject.partition("/")
    if kind == "training":
        rows = training_rows(session, run_id, name, since=since, at_most=MAX_TESTED_ROWS, metric=value).rows
        return [
            _Value(at=at, subject=subject, value=number, position=numbers[STEP] or 0.0)
            for at, numbers in rows
            if (number := numbers.get(value)) is not None
        ]
    rows = series_queries.rows(session, run_id, subject, (value,), since=since, at_most=MAX_TESTED_ROWS)
    return [
        _Value(at=at, subject=subject, value=number, position=at)
        for at, numbers in rows
        if (number := numbers[value]) is not None
    ]


class _Firings:
    """Collects the alerts of one rule on one run."""

    def __init__(self, watch: RuleWatch) -> None:
        self._watch = watch
        self._ended: list[Firing] = []
        self._current: Firing | None = None

    @property
    def all(self) -> tuple[Firing, ...]:
        """All alerts, oldest first; the last may still fire."""
        return (*self._ended, *([] if self._current is None else [self._current]))

    def note(self, at: float) -> None:
        """Notes whether the alert fires at a time."""
        current = self._current
        if current is None and self._watch.firing:
            subject, firing = next(iter(self._watch.firing.items()))
            self._current = Firing(began_at=at, ended_at=None, subject=subject, value=firing.value)
        elif current is not None and not self._watch.firing:
            self._ended.append(replace(current, ended_at=at))
            self._current = None


def _value_firings(watch: RuleWatch, values: Sequence[_Value], *, until: float) -> tuple[Firing, ...]:
    """Returns the alerts of recorded values, oldest first."""
    firings = _Firings(watch)
    is_in_steps = watch.spec.unit is Unit.STEPS
    for value in values:
        if watch.spec.condition is Condition.ABSENT:
            watch.advance(value.at)
            firings.note(watch.last_at + watch.spec.hold)
        watch.add(value.subject, value.value, at=value.at, position=value.position if is_in_steps else value.at)
        watch.advance(value.at)
        firings.note(value.at)
    watch.advance(until)
    firings.note(until)
    return firings.all


def _record_firings(session: Session, watch: RuleWatch, run_id: int, since: float) -> tuple[Firing, ...]:
    """Returns the alerts of the events in the last report of a run; a problem lasts until it is resolved."""
    spec, firings = watch.spec, _Firings(watch)
    text = session.execute(select(RunRecord.report_json).where(RunRecord.id == run_id)).scalar_one()
    events = sorted(report_from_json(text).events, key=lambda event: event.at)
    active: dict[str, str] = {}
    for event in (event for event in events if event.at >= since):
        watch.add_occurrences(active, at=event.at - 0.001)
        firings.note(event.at)
        _apply(spec, event, active)
        watch.add_occurrences(active, at=event.at)
        firings.note(event.at)
        if spec.kind == EVENT:
            active.clear()
            watch.add_occurrences(active, at=event.at + 0.001)
    return firings.all


def _apply(spec: RuleSpec, event: Event, active: dict[str, str]) -> None:
    """Adds or removes what an event begins or ends."""
    if spec.kind == EVENT:
        if spec.value in ("*", event.kind.value):
            active[event.subject] = render(event)
    elif spec.kind != DIAGNOSIS and spec.value in ("*", event.cause):
        if event.kind in (RecordKind.PROBLEM, RecordKind.LEARNING_FAULT):
            active[event.subject] = render(event)
        elif event.kind in (RecordKind.PROBLEM_RESOLVED, RecordKind.LEARNING_FAULT_OVER):
            active.pop(event.subject, None)
