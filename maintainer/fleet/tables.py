"""The ledger's tables. Times are Unix seconds."""

from sqlmodel import Field, SQLModel


class PoolRow(SQLModel, table=True):
    """One pool: its spec, and where it stands."""

    __tablename__ = "fleet_pools"

    id: str = Field(primary_key=True)
    spec_json: str
    version: int
    target: int
    hold_until: float | None = None
    hold_reason: str = ""
    failures: int = 0
    """Launches that failed since one worked."""
    breaker_until: float | None = None
    changed_at_json: str = "[]"
    """When the latest plans were applied."""


class InstanceRow(SQLModel, table=True):
    """One launch, from the intent on. Rows stay."""

    __tablename__ = "fleet_instances"

    id: str = Field(primary_key=True)
    pool: str = Field(index=True)
    state: str = Field(index=True)
    provider: str
    handle: str
    launch_json: str
    """What is asked of the provider, the same at every try."""
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
    """What made it go; none while it stays, and of what went before this was kept."""
    message: str
    tries: int
    """Of what is to be done now."""
    next_try_at: float
    missed: int
    """Lists in a row that it was not in."""
    is_told: bool
    """Dataflow was asked to drain its node."""
    suspect_at: float | None = None
    """Since when what is seen of it has not fit."""


class DecisionRow(SQLModel, table=True):
    """One entry of the journal. Rows are only added."""

    __tablename__ = "fleet_decisions"

    ordinal: int = Field(primary_key=True)
    at: float
    kind: str
    pool: str = Field(index=True)
    actor: str
    role: str
    reason: str
    message: str
    key: str
    findings_json: str = "[]"
    """What the guard said of a plan that was applied or refused."""


class ReplyRow(SQLModel, table=True):
    """What a change was answered with: the same key is answered with it again."""

    __tablename__ = "fleet_replies"

    key: str = Field(primary_key=True)
    asked: str
    """Hash of what was asked for under the key."""
    reply_json: str
    at: float


class OrphanRow(SQLModel, table=True):
    """An instance with the cluster's tag that no living launch stands for."""

    __tablename__ = "fleet_orphans"

    provider: str = Field(primary_key=True)
    handle: str = Field(primary_key=True)
    launch_id: str
    seen_at: float
    """First."""


class OwnerRow(SQLModel, table=True):
    """Who writes the ledger. A process that finds another epoch than its own writes nothing any more."""

    __tablename__ = "fleet_owner"

    id: int = Field(primary_key=True)
    epoch: int
    """Grows with every start of a service."""
    place: str
    """Host and process, for people."""


class SwitchRow(SQLModel, table=True):
    """The kill switch."""

    __tablename__ = "fleet_switch"

    id: int = Field(primary_key=True)
    scope: str
    reason: str


class ProposalRow(SQLModel, table=True):
    """A plan that waits, or waited, for a person."""

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
    """What people told the maintainer."""

    __tablename__ = "fleet_maintainer"

    id: int = Field(primary_key=True)
    mode: str
    by: str
    reason: str
    at: float


class EntryRow(SQLModel, table=True):
    """One entry of a maintainer's transcript: a copy. The latest stay."""

    __tablename__ = "fleet_transcript"

    place: int | None = Field(default=None, primary_key=True)
    """Grows over all transcripts."""
    chain: str = Field(index=True)
    """Hash of the first entry of its transcript."""
    ordinal: int
    at: float
    wake: str = Field(index=True)
    kind: str
    body_json: str
    previous: str
    hash: str
