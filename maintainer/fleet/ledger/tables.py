"""Database tables of the ledger. Times are Unix seconds."""

from sqlalchemy import Table
from sqlmodel import Field, SQLModel


class PoolRow(SQLModel, table=True):
    """A pool: its spec and its state."""

    __tablename__ = "fleet_pools"

    id: str = Field(primary_key=True)
    spec_json: str
    version: int
    target: int
    hold_until_at: float | None = None
    hold_reason: str = ""
    failures: int = 0
    """Consecutive failed launches."""
    breaker_until: float | None = None
    changed_at_json: str = "[]"
    """Times of the latest applied plans."""


class InstanceRow(SQLModel, table=True):
    """A launch, from the intent on. Rows are never deleted."""

    __tablename__ = "fleet_instances"

    id: str = Field(primary_key=True)
    pool: str = Field(index=True)
    state: str = Field(index=True)
    provider: str
    handle: str
    launch_json: str
    """Request to the provider, equal at every attempt."""
    type: str
    region: str
    is_spot: bool
    usd_per_hour: float
    actor: str
    reason: str
    intended_at: float
    expires_at: float
    launched_at: float | None = None
    ready_at: float | None = None
    draining_at: float | None = None
    retiring_at: float | None = None
    gone_at: float | None = Field(default=None, index=True)
    cause: str | None = None
    """Cause of the termination; NULL while it lives."""
    message: str
    tries: int
    """Attempts of the current step."""
    next_try_at: float
    missed: int
    """Consecutive provider lists without the instance."""
    is_drain_requested: bool
    """Dataflow was asked to drain the node."""
    suspect_at: float | None = None
    """Time since when the instance is SUSPECT."""


class DecisionRow(SQLModel, table=True):
    """An entry of the audit log. Rows are only added."""

    __tablename__ = "fleet_decisions"

    ordinal: int = Field(primary_key=True)
    at: float
    kind: str
    pool: str = Field(index=True)
    actor: str
    role: str
    reason: str
    cause: str = ""
    severity: str = "info"
    values_json: str = "{}"
    """Figures and texts."""
    key: str
    findings_json: str = "[]"
    """The guard's findings on an applied or refused plan."""
    change_json: str | None = None
    """Change of an applied plan; null for other kinds."""


class ReplyRow(SQLModel, table=True):
    """Reply to a change, returned again for the same idempotency key."""

    __tablename__ = "fleet_replies"

    key: str = Field(primary_key=True)
    request_hash: str
    """Hash of the request under the key."""
    reply_json: str
    at: float


class OrphanRow(SQLModel, table=True):
    """An instance with the cluster's tag and without a live launch in the ledger."""

    __tablename__ = "fleet_orphans"

    provider: str = Field(primary_key=True)
    handle: str = Field(primary_key=True)
    launch_id: str
    seen_at: float
    """Time at which the orphan was first seen."""


class OwnerRow(SQLModel, table=True):
    """Process that writes the ledger. A process that reads an epoch other than its own stops writing."""

    __tablename__ = "fleet_owner"

    id: int = Field(primary_key=True)
    epoch: int
    """Incremented at every start of a service."""
    process: str
    """Host and process id, for people."""
    identity: str = ""
    """Random identity of the ledger, part of its instances' tags."""


class SwitchRow(SQLModel, table=True):
    """State of the kill switch."""

    __tablename__ = "fleet_switch"

    id: int = Field(primary_key=True)
    scope: str
    reason: str


class ProposalRow(SQLModel, table=True):
    """A plan that waits or waited for approval."""

    __tablename__ = "fleet_proposals"

    plan: str = Field(primary_key=True)
    pool: str = Field(index=True)
    state: str = Field(index=True)
    plan_json: str
    proposed_at: float
    actor: str
    role: str
    decided_at: float | None = None
    decided_by: str
    decision_reason: str


class MaintainerRow(SQLModel, table=True):
    """Mode of the maintainer, as an operator set it last."""

    __tablename__ = "fleet_maintainer"

    id: int = Field(primary_key=True)
    mode: str
    by: str
    reason: str
    at: float


class EntryRow(SQLModel, table=True):
    """Copy of an entry of a maintainer's transcript. Only the latest entries are stored."""

    __tablename__ = "fleet_transcript"

    sequence: int | None = Field(default=None, primary_key=True)
    """Order of insertion over all transcripts."""
    chain: str = Field(index=True)
    """Hash of the transcript's first entry."""
    ordinal: int
    at: float
    wake: str = Field(index=True)
    kind: str
    body_json: str
    previous: str
    hash: str


def own_tables() -> list[Table]:
    """Tables of this module."""
    names = {model.__tablename__ for model in globals().values() if hasattr(model, "__tablename__")}
    return [table for table in SQLModel.metadata.sorted_tables if table.name in names]
