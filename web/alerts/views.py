"""View models of the page of alerts: alerts, rules, receivers, the form of a rule, and its test."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlencode

from astraflow.contract.learning_faults import LearningFault
from astraflow.contract.record_kinds import Severity
from astraflow.contract.reports.diagnosis import LimitingCause
from astraflow.contract.training_metrics import TRAINING_METRICS, training_metric
from web.alerting.history import RunTest
from web.alerting.rules import DIAGNOSIS, EVENT, PROBLEM, RECORD_SUBJECTS, Condition, RuleSpec, Unit
from web.alerting.series_labels import event_kinds, series_label, value_label
from web.charts.panels import CHARTS
from web.components import formats
from web.components.layout import datetime_field_text
from web.database.tables import Alert
from web.history.capacity import FLEET_VALUES
from web.history.points import VALUES

TONES = {Severity.INFO.value: "busy", Severity.WARNING.value: "warn", Severity.CRITICAL.value: "bad"}

CONDITION_LABELS = {
    Condition.ABOVE: "is above",
    Condition.BELOW: "is below",
    Condition.ROSE: "rises by more than",
    Condition.FELL: "falls by more than",
    Condition.CHANGED: "changes by more than",
    Condition.ABSENT: "has no value",
    Condition.NOT_FINITE: "is not a finite number",
    Condition.OCCURRED: "occurs",
}

GROUP_LABELS = {
    "training": "Training metrics, by step",
    "policy": "Policies, by second",
    "fleet": "Fleet, by second",
    "node": "Nodes, by ten seconds",
    EVENT: "Events",
    PROBLEM: "Problems",
    DIAGNOSIS: "Diagnoses: what limits the run",
}

CHART_MARGIN_S = 300.0
"""Time that a linked chart shows before and after an alert, seconds."""

LOW_IS_BAD = ("reward", "ready", "ratio", "nodes", "produced", "consumed", "episodes", "tokens", "busy", "mfu")
"""Beginnings of the names of values of which a low one is worth an alert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRow:
    """One alert."""

    alert: Alert
    tone: str
    run_href: str
    """Page of the run; empty for one without a record."""
    chart_href: str
    """Chart at the time of the alert; empty without one."""
    value: str
    lasted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionGroup:
    """Series of one kind."""

    label: str
    options: tuple[tuple[str, str], ...]
    """Value of the field, and label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleForm:
    """Form of a rule, filled."""

    action: str
    title: str
    fields: Mapping[str, str]
    receivers: Sequence[str]
    """Chosen receivers."""
    groups: tuple[OptionGroup, ...]
    all_receivers: tuple[str, ...]
    runs: tuple[str, ...]
    conditions: tuple[tuple[str, str], ...] = tuple((item.value, label) for item, label in CONDITION_LABELS.items())
    units: tuple[str, ...] = tuple(unit.value for unit in Unit)
    severities: tuple[str, ...] = tuple(severity.value for severity in Severity)
    rule_id: int | None = None
    """None for a new rule."""
    is_from_file: bool = False
    muted_until: float = 0.0
    hint: str = ""
    """Origin of the suggested threshold; empty without one."""
    problem: str = ""
    problem_code: str = ""

    def text(self, name: str) -> str:
        """Text of a field; empty without one."""
        return self.fields.get(name, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRow:
    """Alert that would have fired."""

    run: str
    run_href: str
    began_at: float
    lasted: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TestView:
    """Result of a test over history."""

    sentence: str
    rows: tuple[TestRow, ...] = field(default=())
    problem: str = ""


def alert_row(alert: Alert, run_ids: Mapping[str, int], *, now: float) -> AlertRow:
    """Returns an alert as a line. run_ids: ids of recorded runs by name."""
    run_id = run_ids.get(alert.run)
    run_href = f"/runs/{run_id}" if run_id is not None else ""
    return AlertRow(
        alert=alert,
        tone=TONES.get(alert.severity, "warn") if alert.ended_at is None else "off",
        run_href=run_href,
        chart_href=chart_href(alert, run_id, now=now) if run_id is not None else "",
        value=formats.figure(alert.number),
        lasted=formats.duration((now if alert.ended_at is None else alert.ended_at) - alert.began_at),
    )


def chart_href(alert: Alert, run_id: int, *, now: float) -> str:
    """Returns the address of the chart of an alert's series around its time; that of the run without such a chart."""
    kind, _, name = alert.series.partition("/")
    begin = datetime_field_text(alert.began_at - CHART_MARGIN_S)
    end = datetime_field_text(min(alert.ended_at or now, alert.began_at + 3600.0) + CHART_MARGIN_S)
    query = {"policy": name} if kind in ("training", "policy") else {}
    chart = _chart_of(kind, alert.series_value)
    path = f"/runs/{run_id}/charts/{chart}" if chart else f"/runs/{run_id}"
    return f"{path}?{urlencode({**query, 'from': begin, 'to': end})}"


def _chart_of(kind: str, value: str) -> str:
    if kind == "training":
        return value if training_metric(value) is not None else ""
    if kind != "policy":
        return ""
    charts = (panel.name for panel in CHARTS.values() if any(series.value == value for series in panel.series))
    return next(charts, "")


def charted_run(chart: str, run_ids: Mapping[str, int]) -> str:
    """Returns the run of a chart's address; empty for a chart of the followed run.

    >>> charted_run("/runs/7/charts/wait", {"reverse": 7}), charted_run("/charts/wait", {})
    ('reverse', '')
    """
    match = re.match(r"/runs/([0-9]{1,9})/", chart)
    return next((name for name, run_id in run_ids.items() if match and run_id == int(match[1])), "")


def charted_subject(value: str, policy: str) -> str:
    """Returns the subject of the series of a chart, by the name of its value.

    >>> charted_subject("entropy", "solver"), charted_subject("wait", "solver"), charted_subject("demand", "")
    ('training/solver', 'policy/solver', 'fleet')
    """
    is_described = any(metric.name == value for metric in TRAINING_METRICS)
    if value in FLEET_VALUES and not is_described:
        return "fleet"
    kind = "policy" if value in VALUES and not is_described else "training"
    return f"{kind}/{policy or '*'}"


def option_groups(
    listed: Sequence[tuple[str, str]], causes: Sequence[str], *, chosen: str = ""
) -> tuple[OptionGroup, ...]:
    """Returns the series that can be chosen, by kind. listed: recorded subjects and values. causes: of problems of the
    followed runs. chosen: value of the field, which is an option even if it is not recorded."""
    pairs = [*listed, *((EVENT, kind.value) for kind in event_kinds()), (EVENT, "*"), (PROBLEM, "*")]
    pairs += [(PROBLEM, cause) for cause in (*causes, *(fault.value for fault in LearningFault))]
    pairs += [(DIAGNOSIS, value) for value in (Severity.CRITICAL.value, Severity.WARNING.value)]
    pairs += [(DIAGNOSIS, f"{cause.stage.value}.{cause.value}") for cause in LimitingCause]
    subject, _, value = chosen.rpartition(":")
    if subject and (subject, value) not in pairs:
        pairs.append((subject, value))
    groups: dict[str, list[tuple[str, str]]] = {label: [] for label in GROUP_LABELS.values()}
    for subject, value in pairs:
        kind = subject.partition("/")[0]
        label = GROUP_LABELS.get(kind, kind.replace("_", " ").capitalize())
        groups.setdefault(label, []).append((f"{subject}:{value}", series_label(subject, value)))
    return tuple(OptionGroup(label=label, options=tuple(options)) for label, options in groups.items() if options)


def fields_of_spec(spec: RuleSpec) -> dict[str, str]:
    """Returns the fields of the form for a rule."""
    return {
        "name": spec.name,
        "runs": spec.run,
        "series": f"{spec.series}:{spec.value}",
        "condition": spec.condition.value,
        "threshold": "" if spec.threshold is None else formats.exact(spec.threshold),
        "window": formats.exact(spec.window),
        "hold": formats.exact(spec.hold),
        "unit": spec.unit.value,
        "severity": spec.severity.value,
    }


def suggested_fields(subject: str, value: str, run: str, values: Sequence[float]) -> dict[str, str]:
    """Returns the fields of the form for a new rule on a series: a limit that its recorded values do not reach."""
    kind, _, name = subject.partition("/")
    is_of_records = kind in RECORD_SUBJECTS
    fields = {
        "runs": run or "*",
        "series": f"{subject}:{value}" if subject and value else "",
        "condition": Condition.OCCURRED.value if is_of_records else Condition.ABOVE.value,
        "window": "300",
        "hold": "0" if is_of_records else "3" if kind == "training" else "60",
        "unit": Unit.STEPS.value if kind == "training" else Unit.SECONDS.value,
        "severity": Severity.WARNING.value,
        "name": f"{value_label(kind, value)} {name}".strip()[:80].capitalize() if value else "",
    }
    if values and not is_of_records:
        is_low = value.startswith(LOW_IS_BAD)
        fields["condition"] = (Condition.BELOW if is_low else Condition.ABOVE).value
        fields["threshold"] = formats.exact(suggested_threshold(values, is_low=is_low))
    return fields


def suggested_threshold(values: Sequence[float], *, is_low: bool) -> float:
    """Returns a limit a tenth of the range beyond the values, or of their size if they are equal.

    >>> suggested_threshold([0.0, 1.0], is_low=False), suggested_threshold([5.0, 5.0], is_low=True)
    (1.1, 4.5)
    """
    low, high = min(values), max(values)
    margin = 0.1 * ((high - low) or abs(high) or 1.0)
    return float(f"{low - margin if is_low else high + margin:.3g}")


def run_test_view(tests: Sequence[RunTest], spec: RuleSpec) -> TestView:
    """Returns the result of a test in words, with the alerts that would have fired, the latest first."""
    count = sum(len(test.firings) for test in tests)
    hours = formats.duration(max((test.until - test.since for test in tests), default=0.0))
    if not tests:
        return TestView(sentence="No recorded run has this name, so the rule was not evaluated.")
    if not any(test.series for test in tests):
        return TestView(sentence="No run has recorded this series yet, so the rule was not evaluated.")
    times = {0: "not have fired", 1: "have fired once"}.get(count, f"have fired {count} times")
    rows = [
        TestRow(
            run=test.run,
            run_href=f"/runs/{test.run_id}",
            began_at=firing.began_at,
            lasted="still fires" if firing.ended_at is None else formats.duration(firing.ended_at - firing.began_at),
            text=f"{firing.subject} {formats.figure(firing.value) if firing.value is not None else ''}".strip(),
        )
        for test in tests
        for firing in test.firings
    ]
    rows.sort(key=lambda row: -row.began_at)
    runs = formats.several(len(tests), "run")
    return TestView(
        sentence=f"It would {times} in the last recorded {hours} of {runs}: {spec.sentence}.", rows=tuple(rows[:20])
    )
