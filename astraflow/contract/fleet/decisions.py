"""Decisions: entries of the audit log of the fleet service."""

from dataclasses import dataclass

from astraflow.contract.fleet.instances import LaunchId
from astraflow.contract.fleet.plans import Role, Violation
from astraflow.contract.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedChange:
    """Change of a pool that an applied plan requested, in numbers."""

    nodes_before: int
    """Present plus requested nodes before the change. Count."""
    nodes_after: int
    """Size that the plan requested, nodes."""
    launched: int
    """Requested launches. Count."""
    retired: int
    """Nodes that were drained or terminated. Count."""
    hold_s: float
    """Duration of the hold that the plan set, seconds; 0 for none."""
    is_approved: bool
    """True if a person approved the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Record):
    """One entry of the audit log. Its subject is a pool; empty for entries that concern no single pool."""

    ordinal: int
    at: float
    role: Role
    """Role of the actor."""
    key: str = ""
    """Idempotency key of the caller; empty when it gave none."""
    findings: tuple[Violation, ...] = ()
    """The guard's findings on a plan that was applied or refused."""
    change: AppliedChange | None = None
    """Change of an applied plan; None for other kinds, and for entries of ledgers before revision 0007."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """An injected fault: nodes that end at once, as if their machines had failed."""

    decision: Decision
    lost: tuple[LaunchId, ...]
