"""What a model may ask for. Pools and nodes are named by the tokens that reports give them."""

from typing import Literal

from pydantic import Field

from maintainer.tools.base import Typed

MAX_REASON = 500

Format = Literal["concise", "detailed"]
NodeFilter = Literal["all", "ready", "starting", "leaving", "lost", "straggler", "spot", "failed"]
NodeSort = Literal["speed", "age", "price", "silence"]
EventKind = Literal["all", "changes", "refusals", "launch_failures", "orphans", "holds", "escalations", "nodes"]
Severity = Literal["info", "warning", "critical"]


class ReportInput(Typed):
    """`fleet_report`."""

    pool: str | None = Field(default=None, max_length=64)
    """Token of one pool; null for all."""
    format: Format = "concise"
    """concise: what a decision needs. detailed: also demand, capacity, prices and caps of each pool."""


class NodesInput(Typed):
    """`fleet_nodes`."""

    pool: str | None = Field(default=None, max_length=64)
    """Token of one pool; null for all."""
    filter: NodeFilter = "all"
    """Which nodes: failed are launches that ended without ever having worked."""
    sort: NodeSort = "speed"
    """speed: slowest first; age: oldest first; price: dearest first; silence: longest unheard first."""
    limit: int = Field(default=10, ge=1, le=50)
    """How many."""


class EventsInput(Typed):
    """`fleet_events`."""

    since_s: float = Field(default=3600.0, gt=0, le=86400.0)
    """Not older than so many seconds."""
    kind: EventKind = "all"
    """Which: changes, refusals, holds and escalations are of the journal; nodes are of the run."""
    limit: int = Field(default=20, ge=1, le=50)
    """How many, newest first."""


class ExplainInput(Typed):
    """`fleet_explain`."""

    decision: int = Field(ge=1)
    """Number of a decision, from fleet_events."""


class PlanInput(Typed):
    """`fleet_plan`: either a target or nodes to retire."""

    pool: str = Field(max_length=64)
    """Token of the pool."""
    target: int | None = Field(default=None, ge=0, le=1_000_000)
    """Nodes the pool is to have; null when `retire` is given."""
    retire: list[str] | None = Field(default=None, max_length=50)
    """Tokens of the nodes to drain and end, and no others; null when `target` is given."""
    reason: str = Field(min_length=1, max_length=MAX_REASON)
    """Why, in one or two sentences, citing figures of the report. People read it."""


class ApplyInput(Typed):
    """`fleet_apply`."""

    plan_id: str = Field(min_length=1, max_length=64)
    """From fleet_plan, within five minutes."""
    idempotency_key: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._:-]+$")
    """A word of your own for this change: the same word again returns the first answer."""


class HoldInput(Typed):
    """`fleet_hold`."""

    pool: str = Field(max_length=64)
    """Token of the pool."""
    minutes: int = Field(ge=1, le=60)
    """For how long no node of it is taken away."""
    reason: str = Field(min_length=1, max_length=MAX_REASON)
    """Why. People read it."""


class EscalateInput(Typed):
    """`fleet_escalate`."""

    severity: Severity
    """critical: somebody is to look now."""
    text: str = Field(min_length=1, max_length=MAX_REASON)
    """What a person has to know or do. People read it."""
