"""Decisions: entries of the audit log of the fleet service."""

from dataclasses import dataclass

from astraflow.contract.fleet.instances import LaunchId
from astraflow.contract.fleet.plans import Actor, Finding


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
    override_s: float
    """Duration of the manual override that the plan set, seconds; 0 for none."""
    is_approved: bool
    """True if a person approved the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One entry of the audit log."""

    ordinal: int
    at: float
    kind: str
    """`apply`, `refuse`, `spec`, `override`, `escalate`, `kill_switch`, `orphan`, `launch_failed`, `fault`, `propose`,
    `reject`, `note`, `maintainer_mode`, `alarm`, `alarm_over`."""
    pool: str
    """Empty for entries that concern no single pool."""
    actor: Actor
    reason: str
    message: str
    """Performed change, as a sentence."""
    key: str = ""
    """Idempotency key of the caller; empty when it gave none."""
    findings: tuple[Finding, ...] = ()
    """The guard's findings on a plan that was applied or refused."""
    change: AppliedChange | None = None
    """Change of an applied plan; None for other kinds, and for entries of ledgers before revision 0007."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """An injected fault: nodes that end at once, as if their machines had failed."""

    decision: Decision
    lost: tuple[LaunchId, ...]
