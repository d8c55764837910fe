"""Evaluates all rules on one run, once for each report."""

from collections.abc import Iterable, Sequence

from astraflow.contract.fleet.pools import FleetStatus
from astraflow.contract.record_kinds import Severity
from astraflow.contract.records import render
from astraflow.contract.reports.diagnosis import LimitingCause, diagnose
from astraflow.contract.reports.report import Report
from astraflow.contract.reports.training_steps import TrainingStep
from astraflow.contract.training_metrics import ROLLOUT_REWARD
from web.alerting.evaluation import RuleWatch
from web.alerting.rules import EVENT, PROBLEM, RuleSpec, Unit, training_subject
from web.history.samples import Sample


class RunWatch:
    """State of all rules on one run. Its work grows with the values that changed, not with the past."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.watches: dict[int, RuleWatch] = {}
        """By id of the rule; only rules that cover the run."""
        self._by_subject: dict[str, list[RuleWatch]] = {}
        """Rules that watch a series; filled when its first value arrives."""
        self._event_at: dict[int, float] = {}
        """Time up to which events were evaluated, by id of the rule."""
        self.reported_at = 0.0
        """Time of the latest report. Unix seconds."""

    def put(self, rule_id: int, watch: RuleWatch, *, since: float) -> None:
        """Adds or replaces a rule. since: time from which on its events count."""
        self.watches[rule_id] = watch
        self._event_at[rule_id] = since
        self._by_subject.clear()

    def drop(self, rule_id: int) -> None:
        """Removes a rule."""
        self.watches.pop(rule_id, None)
        self._event_at.pop(rule_id, None)
        self._by_subject.clear()

    def observe(self, report: Report, samples: Iterable[Sample], fleet: FleetStatus | None = None) -> None:
        """Evaluates a report and the samples that were recorded from it. fleet: status of the run's fleet service."""
        self.reported_at = report.at
        if not self.watches:
            return
        self.add_samples(samples)
        self._add_records(report, fleet)
        self.advance(report.at)

    def add_samples(self, samples: Iterable[Sample]) -> None:
        """Evaluates recorded samples; those within the limits of a rule without a pending series cost a comparison."""
        for sample in samples:
            watches = self._watches_of(sample.subject)
            if not watches:
                continue
            values, subject, at = sample.values, sample.subject, sample.at
            for watch in watches:
                value = values.get(watch.spec.value)
                if value is None:
                    continue
                if watch.is_compared and watch.low <= value <= watch.high and watch.is_idle:
                    watch.last_at = at
                    continue
                watch.add(subject, value, at=at, position=at)

    def add_steps(self, steps: Iterable[TrainingStep]) -> None:
        """Evaluates training steps, in their order; those from before a rule was changed do not count for it."""
        for step in steps:
            subject = training_subject(step.policy)
            for watch in self._watches_of(subject):
                name = watch.spec.value
                value = step.reward if name == ROLLOUT_REWARD else step.metrics.get(name)
                if value is not None and step.at >= watch.since:
                    position = step.step if watch.spec.unit is Unit.STEPS else step.at
                    watch.add(subject, value, at=step.at, position=position)

    def advance(self, at: float) -> None:
        """Evaluates what depends on time alone."""
        for watch in self.watches.values():
            watch.advance(at)

    def _watches_of(self, subject: str) -> Sequence[RuleWatch]:
        watches = self._by_subject.get(subject)
        if watches is None:
            watches = [watch for watch in self.watches.values() if watch.spec.covers_subject(subject)]
            self._by_subject[subject] = watches
        return watches

    def _add_records(self, report: Report, fleet: FleetStatus | None) -> None:
        newest_at = max((event.at for event in report.events), default=0.0)
        for rule_id, watch in self.watches.items():
            if watch.spec.is_of_records:
                texts = record_texts(watch.spec, report, fleet, after=self._event_at.get(rule_id, 0.0))
                watch.add_occurrences(texts, at=report.at)
                self._event_at[rule_id] = max(self._event_at.get(rule_id, 0.0), newest_at)


def record_texts(spec: RuleSpec, report: Report, fleet: FleetStatus | None, *, after: float) -> dict[str, str]:
    """Returns the texts of a report's records that match a rule, by their subject. after: time of the latest event
    that was evaluated."""
    if spec.kind == EVENT:
        records = [
            (event.subject, render(event))
            for event in report.events
            if event.at > after and spec.value in ("*", event.kind.value)
        ]
    elif spec.kind == PROBLEM:
        records = [
            (record.subject, render(record))
            for record in (*report.problems, *report.learning_faults)
            if record.cause == spec.value or (spec.value == "*" and record.severity is not Severity.INFO)
        ]
    else:
        records = [
            (diagnosis.policy, f"{diagnosis.headline}: {diagnosis.because}")
            for diagnosis in (diagnose(report, stream.policy, fleet) for stream in report.streams)
            if spec.value in diagnosis_values(diagnosis.cause)
        ]
    return {subject or report.run: text for subject, text in records}


def diagnosis_values(cause: LimitingCause) -> tuple[str, ...]:
    """Returns the values of a rule that match a diagnosis: its severity, its stage, its cause, and the last two joined.

    >>> diagnosis_values(LimitingCause.NO_NODE)
    ('critical', 'nodes', 'no_node', 'nodes.no_node')
    """
    stage, code = cause.stage.value, str(cause.value)
    return cause.severity.value, stage, code, f"{stage}.{code}"
