"""Run doctor: faults of learning in the report, with their evidence, threshold and remedy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astraflow.contract.ids import PolicyId
from astraflow.contract.learning_faults import LearningFault
from astraflow.contract.record_kinds import Severity
from astraflow.contract.records import Record, fill
from astraflow.contract.reports.report import Report

TONES = {Severity.INFO: "", Severity.WARNING: "warn", Severity.CRITICAL: "bad"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultView:
    """One fault of one policy."""

    policy: PolicyId
    """The policy that learns."""
    code: LearningFault
    """The fault."""
    severity: Severity
    """Its severity."""
    tone: str
    headline: str
    """Short name of the fault, as a sentence."""
    evidence: str
    """The values that were measured, in a sentence."""
    threshold: str
    """Value at which it becomes a fault, with the reason for that value."""
    remedy: str
    """The setting or command that mends it."""
    numbers: Mapping[str, float]
    """The measured values, by name."""
    step: int
    """Step at which it was found first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorView:
    """View model of the page."""

    steps: int
    """Training steps of all policies."""
    faults: Sequence[FaultView]
    absent: Sequence[LearningFault]
    """Faults that are looked for and were not found."""


def doctor_view(report: Report) -> DoctorView:
    """Builds the view."""
    present = {record.cause for record in report.learning_faults}
    return DoctorView(
        steps=sum(stream.training.steps for stream in report.streams),
        faults=[view for stream in report.streams for view in fault_views(report.learning_faults, stream.policy)],
        absent=[fault for fault in LearningFault if fault.value not in present],
    )


def fault_views(faults: Sequence[Record], policy: PolicyId) -> list[FaultView]:
    """Returns those faults of a report that a policy has, the most urgent first, without those of a newer
    dataflow that are unknown here."""
    known = {fault.value: fault for fault in LearningFault}
    return [
        FaultView(
            policy=policy,
            code=known[record.cause],
            severity=record.severity,
            tone=TONES[record.severity],
            headline=known[record.cause].headline,
            evidence=_text(known[record.cause].evidence, record),
            threshold=_text(known[record.cause].threshold, record),
            remedy=_text(known[record.cause].remedy, record),
            numbers={name: value for name, value in record.values.items() if isinstance(value, int | float)},
            step=int(record.values.get("step", 0)),
        )
        for record in faults
        if record.subject == policy and record.cause in known
    ]


def _text(template: str, record: Record) -> str:
    """Returns a text without the marks of code, which are for terminals and documents."""
    return fill(template.replace("`", ""), record.values)
