"""What the web process remembers over restarts. The run itself lives in dataflow, never here."""

from typing import Any

from sqlalchemy import UniqueConstraint
from sqlmodel import Field, SQLModel

_BY_KEY: dict[str, Any] = {"sqlite_with_rowid": False}
"""Rows lie in the order of their key, without another number: half the bytes, and ranges are read in one piece."""


class User(SQLModel, table=True):
    """Who may look and act."""

    __tablename__ = "users"

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)
    role: str
    """A `web.door.roles.Role`."""
    created_at: float
    password_hash: str | None = None
    """Argon2id; None for who logs in by a link or through a provider."""
    identity: str | None = Field(default=None, unique=True, index=True)
    """Issuer and subject at an OpenID provider."""
    disabled_at: float | None = None


class LoginToken(SQLModel, table=True):
    """A link that logs in once. Only its keyed hash is kept."""

    __tablename__ = "login_tokens"

    token_hash: str = Field(primary_key=True)
    user_id: int = Field(foreign_key="users.id")
    created_at: float
    expires_at: float
    used_at: float | None = None


class BrowserSession(SQLModel, table=True):
    """A logged-in browser. Only the keyed hash of its cookie is kept."""

    __tablename__ = "sessions"

    cookie_hash: str = Field(primary_key=True)
    user_id: int = Field(foreign_key="users.id")
    created_at: float
    expires_at: float
    revoked_at: float | None = None
    came_from: str = ""
    """Address it was opened from."""
    browser: str = ""
    """What it called itself."""
    opened_by: str = "link"
    """`link`, `password` or `provider`."""


class ApiToken(SQLModel, table=True):
    """A token with which a program acts for a user. Only its keyed hash is kept."""

    __tablename__ = "api_tokens"

    id: int | None = Field(default=None, primary_key=True)
    token_hash: str = Field(unique=True)
    user_id: int = Field(foreign_key="users.id", index=True)
    name: str
    scope: str
    """The role that it acts in; never more than the user's own at that moment."""
    created_at: float
    expires_at: float
    revoked_at: float | None = None


class RoleGrant(SQLModel, table=True):
    """A role of a user, or of one of their tokens, on a run or a pool of it, besides the one everywhere."""

    __tablename__ = "role_grants"

    id: int | None = Field(default=None, primary_key=True)
    user_id: int = Field(foreign_key="users.id", index=True)
    token_id: int | None = Field(default=None, foreign_key="api_tokens.id")
    """Whose it is when it is a token's; None for the user's own."""
    role: str
    run: str
    """Its name."""
    pool: str = ""
    """Empty for all of the run."""
    granted_by: str
    created_at: float


class AuditEntry(SQLModel, table=True):
    """One thing that somebody did, or was refused. Never changed; the database itself sees to that."""

    __tablename__ = "audit_entries"

    sequence: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    at: float = Field(index=True)
    actor: str = Field(index=True)
    role: str
    via: str
    came_from: str
    action: str = Field(index=True)
    target: str
    before: str
    """JSON; empty for nothing."""
    after: str
    result: str
    """`done`, `refused` or `failed`."""
    reason: str
    previous_hash: str
    entry_hash: str


class AuditChain(SQLModel, table=True):
    """The two ends of the chain of entries; one row."""

    __tablename__ = "audit_chain"

    id: int = Field(default=1, primary_key=True)
    first_sequence: int
    """The oldest entry that is kept."""
    anchor_hash: str
    """The hash before it."""
    last_sequence: int
    last_hash: str
    seal: str
    """Keyed with the secret beside the database: who can only write to the database cannot make it."""


class Preference(SQLModel, table=True):
    """A choice that administrators made on the page."""

    __tablename__ = "preferences"

    name: str = Field(primary_key=True)
    value: str


class SavedView(SQLModel, table=True):
    """A page as somebody set it up: its address, under a name of their own."""

    __tablename__ = "saved_views"
    __table_args__ = (UniqueConstraint("user_id", "name"),)

    id: int | None = Field(default=None, primary_key=True)
    user_id: int = Field(foreign_key="users.id", index=True)
    name: str
    address: str
    """Path and query."""
    created_at: float


class RunRecord(SQLModel, table=True):
    """A run that was seen, and what was last known of it."""

    __tablename__ = "run_records"

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(index=True)
    recipe: str
    dataflow: str
    started_at: float
    last_at: float
    """Unix seconds of the newest report."""
    last_sequence: int
    report_json: str
    """The newest report, as `/api/v1/report` shows it."""
    folder: str = ""
    """The run's directory, when it is on this machine and known."""


class LaunchedRun(SQLModel, table=True):
    """A run that was started from the page."""

    __tablename__ = "launched_runs"

    name: str = Field(primary_key=True)
    recipe: str
    folder: str
    actor: str
    launched_at: float
    pid: int
    """Of the process that ran it last."""
    has_fleet: bool
    ends_by_itself: bool
    limit_s: float | None
    needs_admin: bool = False
    """Whether it has settings that only an admin may override."""


class SeriesName(SQLModel, table=True):
    """One number of one subject of a run, as it is kept over time."""

    __tablename__ = "series_names"
    __table_args__ = (UniqueConstraint("run_id", "subject", "value"),)

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run_records.id")
    subject: str
    """`policy/solver`, `node/a`: see `web.history.samples`."""
    value: str


class SeriesSecond(SQLModel, table=True):
    """A number at one second."""

    __tablename__ = "series_seconds"
    __table_args__ = _BY_KEY

    series_id: int = Field(primary_key=True, foreign_key="series_names.id")
    at: float = Field(primary_key=True)
    number: float


class _Coarse(SQLModel):
    """A number over a stretch of time: its mean, and between what it was."""

    series_id: int = Field(primary_key=True, foreign_key="series_names.id")
    at: float = Field(primary_key=True)
    number: float
    low: float
    high: float


class SeriesTenSeconds(_Coarse, table=True):
    """Over ten seconds."""

    __tablename__ = "series_ten_seconds"
    __table_args__ = _BY_KEY


class SeriesFiveMinutes(_Coarse, table=True):
    """Over five minutes."""

    __tablename__ = "series_five_minutes"
    __table_args__ = _BY_KEY


class SeriesRolled(SQLModel, table=True):
    """Up to which time a run's numbers were rolled up to a level."""

    __tablename__ = "series_rolled"

    run_id: int = Field(primary_key=True, foreign_key="run_records.id")
    width_s: int = Field(primary_key=True)
    until: float
