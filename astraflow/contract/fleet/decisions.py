"""Decisions: entries of the audit log of the fleet service."""

from dataclasses import dataclass
from enum import Enum

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


class DecisionKind(Enum):
    """Kinds of entries of the audit log."""

    APPLY = "apply"
    """A plan was applied."""
    REFUSE = "refuse"
    """The guard refused to apply a plan."""
    PROPOSE = "propose"
    """An agent proposed a plan to people."""
    REJECT = "reject"
    """A person rejected a proposal."""
    SPEC = "spec"
    """A pool was created, or its configuration changed."""
    OVERRIDE = "override"
    """A manual override began or ended."""
    KILL_SWITCH = "kill_switch"
    """The scope of the kill switch changed."""
    MAINTAINER_MODE = "maintainer_mode"
    """A person set the mode of the maintainer."""
    LAUNCH_FAILED = "launch_failed"
    """A launch ended before its node was ready."""
    ORPHAN = "orphan"
    """An instance without a live launch was adopted or terminated."""
    FAULT = "fault"
    """A person injected a fault."""
    ALARM = "alarm"
    """A condition of which people should know began."""
    ALARM_OVER = "alarm_over"
    """Such a condition ended."""
    ESCALATE = "escalate"
    """An agent notified people."""
    NOTE = "note"
    """A person or an agent left a note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One entry of the audit log."""

    ordinal: int
    at: float
    kind: DecisionKind
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
