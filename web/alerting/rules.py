"""Rule of an alert: which values of which runs it watches, its condition, and who is notified."""

from collections import Counter
from collections.abc import Mapping
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from astraflow.contract.errors import InvalidInput
from astraflow.contract.record_kinds import Severity
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.toml import read_toml
from web.alerting.series_labels import series_label
from web.components import formats

MAX_RULES = 200
MAX_RULE_RECEIVERS = 10
MAX_TIME_S = 7 * 86400.0
MAX_STEPS = 100_000.0

EVENT, PROBLEM, DIAGNOSIS = "event", "problem", "diagnosis"
RECORD_SUBJECTS = (EVENT, PROBLEM, DIAGNOSIS)
"""Subjects whose values are kinds that occur, not numbers."""


def training_subject(policy: str) -> str:
    """Subject of the training metrics of a policy."""
    return f"training/{policy}"


class Condition(Enum):
    """Condition of a rule."""

    ABOVE = "above"
    BELOW = "below"
    CHANGED = "changed"
    """Rose or fell."""
    ROSE = "rose"
    FELL = "fell"
    ABSENT = "absent"
    """No value for the time that the condition must hold."""
    NOT_FINITE = "not_finite"
    """NaN or infinite."""
    OCCURRED = "occurred"
    """An event happened, or a problem or diagnosis is in the report."""


COMPARED = (Condition.ABOVE, Condition.BELOW)
CHANGES = (Condition.CHANGED, Condition.ROSE, Condition.FELL)


class Unit(Enum):
    """Unit of the times of a rule."""

    SECONDS = "seconds"
    STEPS = "steps"


class RuleFields(Config):
    """Fields of a rule, each valid by itself."""

    name: str = Field(min_length=1, max_length=80)
    """Unique name."""
    run: str = Field(default="*", min_length=1, max_length=200)
    """Name of a run, or a pattern with `*` and `?`."""
    series: str = Field(pattern=r"^[a-z_]{1,40}(/[^\x00-\x1f]{1,200})?$")
    """Subject of the series, such as `training/solver`, `policy/*`, `node/gpu-*` or `fleet`; or `event`, `problem` or
    `diagnosis`."""
    value: str = Field(pattern=r"^([A-Za-z0-9_.-]{1,120}|\*)$")
    """Value of the series, such as `entropy`; or the kind of the record, `*` for any."""
    condition: Condition = Field(strict=False)
    """Condition of the value."""
    threshold: float | None = None
    """Limit of the value, or of its change; absent for conditions without one."""
    window: float = Field(default=300.0, gt=0)
    """Time over which a change is measured. Seconds or steps."""
    hold: float = Field(default=0.0, ge=0)
    """Time for which the condition must hold before the alert fires, and must not hold before it is resolved. Seconds
    or steps."""
    unit: Unit = Field(default=Unit.SECONDS, strict=False)
    """Unit of `window` and `hold`; steps only for training metrics."""
    severity: Severity = Field(default=Severity.WARNING, strict=False)
    """Urgency for a person."""
    receivers: tuple[str, ...] = Field(default=(), max_length=MAX_RULE_RECEIVERS, strict=False)
    """Names of the receivers that are notified, besides the page."""


class RuleSpec(RuleFields):
    """Rule of an alert, whose fields belong together."""

    @field_validator("name", "run")
    @classmethod
    def _is_printable(cls, value: str) -> str:
        if not value.isprintable() or not value.strip():
            raise ValueError("cannot use the text: it is empty or has control characters; use printable characters")
        return value.strip()

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.is_of_records != (self.condition is Condition.OCCURRED):
            raise ValueError("cannot use the condition: events, problems and diagnoses occur, numbers do not")
        if self.needs_threshold and self.threshold is None:
            raise ValueError(f"cannot use the condition {self.condition.value!r}: it needs a threshold")
        if self.condition in CHANGES and (self.threshold or 0.0) < 0.0:
            raise ValueError("cannot use the threshold: a change is measured without its sign; use 0 or more")
        if self.unit is Unit.STEPS and (not self.is_of_steps or self.condition is Condition.ABSENT):
            raise ValueError("cannot use steps: only training metrics with a value have them; use seconds")
        longest = MAX_STEPS if self.unit is Unit.STEPS else MAX_TIME_S
        if max(self.hold, self.window) > longest:
            raise ValueError(f"cannot use the time: it is beyond {longest:.0f} {self.unit.value}; use less")
        if self.condition is Condition.ABSENT and self.hold < 1.0:
            raise ValueError("cannot use the condition 'absent': it needs a time of at least one second")
        return self

    @property
    def kind(self) -> str:
        """First part of the subject, such as `training`."""
        return self.series.partition("/")[0]

    @property
    def is_of_records(self) -> bool:
        """True if the values are kinds that occur."""
        return self.kind in RECORD_SUBJECTS

    @property
    def is_of_steps(self) -> bool:
        """True for training metrics, which have a value for each step."""
        return self.kind == "training"

    @property
    def needs_threshold(self) -> bool:
        """True for conditions that compare with a number."""
        return self.condition in (*COMPARED, *CHANGES)

    def covers_run(self, name: str) -> bool:
        """Returns whether the rule watches the run of this name."""
        return self.run == "*" or fnmatchcase(name, self.run)

    def covers_subject(self, subject: str) -> bool:
        """Returns whether the rule watches the series of this subject."""
        return self.series == subject or fnmatchcase(subject, self.series)

    @property
    def sentence(self) -> str:
        """Condition in words, such as "entropy of solver below 0.2 for 60 s"."""
        series = series_label(self.series, self.value)
        return f"{series} {_condition_text(self)}{_hold_text(self)}"


def _condition_text(spec: RuleSpec) -> str:
    number = "" if spec.threshold is None else f"{spec.threshold:g}"
    window = _time_text(spec.window, spec.unit)
    texts = {
        Condition.ABOVE: f"above {number}",
        Condition.BELOW: f"below {number}",
        Condition.CHANGED: f"changes by more than {number} within {window}",
        Condition.ROSE: f"rises by more than {number} within {window}",
        Condition.FELL: f"falls by more than {number} within {window}",
        Condition.ABSENT: "has no value",
        Condition.NOT_FINITE: "is not a finite number",
        Condition.OCCURRED: "occurs",
    }
    return texts[spec.condition]


def _hold_text(spec: RuleSpec) -> str:
    return f" for {_time_text(spec.hold, spec.unit)}" if spec.hold else ""


def _time_text(time: float, unit: Unit) -> str:
    return formats.several(time, "step") if unit is Unit.STEPS else formats.duration(time)


def spec_from_form(form: Mapping[str, str], receivers: tuple[str, ...]) -> RuleSpec:
    """Builds a rule from the fields of the form; empty fields have their defaults. Raises: InvalidInput.

    The name or pattern of the runs is in `runs`: `run` names the run that a request is about.
    """
    names = ("name", "condition", "threshold", "window", "hold", "unit", "severity")
    fields: dict[str, object] = {name: text for name in names if (text := form.get(name, "").strip())}
    subject, _, value = form.get("series", "").strip().rpartition(":")
    fields["run"] = form.get("runs", "").strip() or "*"
    return RuleSpec.parse({**fields, "series": subject, "value": value, "receivers": receivers}, where="")


class _RuleFile(Config):
    """File of rules."""

    rule: tuple[RuleSpec, ...] = Field(default=(), max_length=MAX_RULES)
    """Rules."""


def rules_of_file(path: Path) -> tuple[RuleSpec, ...]:
    """Reads the rules of a TOML file. Raises: InvalidInput for an invalid file, and for a name that occurs twice."""
    rules = _RuleFile.parse(read_toml(path), where=str(path)).rule
    twice = next((name for name, count in Counter(rule.name for rule in rules).items() if count > 1), None)
    if twice is not None:
        raise InvalidInput(
            f"cannot use {str(path)!r}: two rules have the name {twice!r}; give each rule a name of its own",
            code="alert.rule_named_twice",
        )
    return rules
