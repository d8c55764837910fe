"""Tables of the web process. The state of a run lives in dataflow, not here."""

from typing import Any

from sqlalchemy import BigInteger, Table, UniqueConstraint
from sqlmodel import Field, SQLModel

MAX_ID = 2**31 - 1
"""Largest id of a row, as PostgreSQL stores it."""

_BY_KEY: dict[str, Any] = {"sqlite_with_rowid": False}
"""Stores rows in the order of their key, without a row id: half the size, and ranges are read contiguously."""


class User(SQLModel, table=True):
    """User of the page."""

    __tablename__ = "users"

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)
    role: str
    """Value of `web.security.roles.Role`."""
    created_at: float
    password_hash: str | None = None
    """Argon2id; None for users with a login link or a provider."""
    identity: str | None = Field(default=None, unique=True, index=True)
    """Issuer and subject at an OpenID provider."""
    disabled_at: float | None = None


class LoginToken(SQLModel, table=True):
    """Single-use login link. Only its keyed hash is stored."""

    __tablename__ = "login_tokens"

    token_hash: str = Field(primary_key=True)
    user_id: int = Field(foreign_key="users.id")
    created_at: float
    expires_at: float
    used_at: float | None = None


class BrowserSession(SQLModel, table=True):
    """Browser session. Only the keyed hash of its cookie is stored."""

    __tablename__ = "sessions"

    cookie_hash: str = Field(primary_key=True)
    user_id: int = Field(foreign_key="users.id")
    created_at: float
    expires_at: float
    revoked_at: float | None = None
    came_from: str = ""
    """Client address at login."""
    browser: str = ""
    """User agent."""
    opened_by: str = "link"
    """`link`, `password` or `provider`."""


class ApiToken(SQLModel, table=True):
    """API token with which a program acts for a user. Only its keyed hash is stored."""

    __tablename__ = "api_tokens"

    id: int | None = Field(default=None, primary_key=True)
    token_hash: str = Field(unique=True)
    user_id: int = Field(foreign_key="users.id", index=True)
    name: str
    scope: str
    """Maximum role of the token; the effective role is never higher than the user's own at that time."""
    created_at: float
    expires_at: float
    revoked_at: float | None = None


class RoleGrant(SQLModel, table=True):
    """Role of a user or token on a run or one of its pools, in addition to the global role."""

    __tablename__ = "role_grants"

    id: int | None = Field(default=None, primary_key=True)
    user_id: int = Field(foreign_key="users.id", index=True)
    token_id: int | None = Field(default=None, foreign_key="api_tokens.id")
    """Token that holds the grant; None for the user's own."""
    role: str
    run: str
    """Name of the run."""
    pool: str = ""
    """Name of the pool; empty for the whole run."""
    granted_by: str
    created_at: float


class AuditEntry(SQLModel, table=True):
    """Audit entry: an action, or a refused one. Immutable; triggers of the database enforce it."""

    __tablename__ = "audit_entries"

    sequence: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    """Position in the log, from 1."""
    at: float = Field(index=True)
    """Unix seconds."""
    actor: str = Field(index=True)
    """Name of the user or program."""
    role: str
    """Role of the actor."""
    via: str
    """`session`, `token NAME`, `login`, or `astraflow` for the process itself."""
    came_from: str
    """Address of the client."""
    action: str = Field(index=True)
    """Action that was done or refused: `pool.apply`."""
    target: str
    """Resource of the action."""
    before: str
    """JSON; empty if there is no value."""
    after: str
    """JSON; empty if there is no value."""
    result: str
    """`done`, `refused`, `failed`, or `unknown` for a command during which the process ended."""
    reason: str
    """Reason that the actor gave; empty without one."""
    previous_hash: str
    """Hash of the previous entry."""
    entry_hash: str
    """Hash of all other fields."""


class OpenCommand(SQLModel, table=True):
    """Audited command that began; its row is replaced by its audit entry."""

    __tablename__ = "open_commands"

    id: str = Field(primary_key=True)
    author_json: str
    command_json: str


class AuditChain(SQLModel, table=True):
    """Ends of the audit log's hash chain; one row."""

    __tablename__ = "audit_chain"

    id: int = Field(default=1, primary_key=True)
    first_sequence: int
    """Oldest retained entry."""
    anchor_hash: str
    """Hash of the entry before it."""
    last_sequence: int
    last_hash: str
    seal: str
    """Keyed with the secret that is stored next to the database: write access to the database alone cannot forge it."""


class Preference(SQLModel, table=True):
    """Preference that an admin set on the page, or that a user set for the own pages."""

    __tablename__ = "preferences"

    name: str = Field(primary_key=True)
    value: str


class RunRecord(SQLModel, table=True):
    """Recorded run with its last known state."""

    __tablename__ = "run_records"

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(index=True)
    """Name of the run."""
    recipe: str
    """Name of its recipe."""
    dataflow: str
    """Address of its dataflow service."""
    started_at: float
    """Unix seconds."""
    last_at: float
    """Unix seconds of the newest report."""
    last_sequence: int
    """Sequence number of the newest report."""
    report_json: str
    """Newest report, as `/api/v1/report` returns it."""
    folder: str = ""
    """Directory of the run, if it is on this machine and known."""
    history_sequence: int = 0
    """Sequence number up to which its time series are recorded; those of a run that this page did not follow are read
    from its folder when its page is opened."""
    metadata_json: str = ""
    """Metadata of a run without a folder on this machine, as JSON; empty for none."""


class TrajectoryLabel(SQLModel, table=True):
    """Label that a person gave to a sampled trajectory, with a copy of the trajectory, which outlives its sample."""

    __tablename__ = "trajectory_labels"
    __table_args__ = (UniqueConstraint("run_id", "ordinal", "label"),)

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run_records.id")
    ordinal: int = Field(sa_type=BigInteger)
    """Ordinal of the trajectory in its run."""
    label: str
    """`good`, `bad`, `wrong reward`, or the person's own words."""
    expected_reward: float | None = None
    """Reward that the trajectory should have; None if the person gave none."""
    note: str
    author: str
    at: float
    """Unix seconds."""
    rollout_json: str
    """Copy of the trajectory: `web.trajectories.data_sets.Rollout`."""


class UserPreference(SQLModel, table=True):
    """Preference of one user, such as the columns of a table."""

    __tablename__ = "user_preferences"

    user_id: int = Field(primary_key=True, foreign_key="users.id")
    name: str = Field(primary_key=True)
    value: str


class SeriesName(SQLModel, table=True):
    """Name of a recorded time series: one number of one subject of a run."""

    __tablename__ = "series_names"
    __table_args__ = (UniqueConstraint("run_id", "subject", "value"),)

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run_records.id")
    subject: str
    """`policy/solver`, `node/a`: see `web.history.samples`."""
    value: str


class SeriesSecond(SQLModel, table=True):
    """Sample of a series at one second."""

    __tablename__ = "series_seconds"
    __table_args__ = _BY_KEY

    series_id: int = Field(primary_key=True, foreign_key="series_names.id")
    at: float = Field(primary_key=True)
    number: float


class _Coarse(SQLModel):
    """Aggregate of a series over a time interval: mean, minimum and maximum."""

    series_id: int = Field(primary_key=True, foreign_key="series_names.id")
    at: float = Field(primary_key=True)
    number: float
    low: float
    high: float


class SeriesTenSeconds(_Coarse, table=True):
    """Aggregates over ten seconds."""

    __tablename__ = "series_ten_seconds"
    __table_args__ = _BY_KEY


class SeriesFiveMinutes(_Coarse, table=True):
    """Aggregates over five minutes."""

    __tablename__ = "series_five_minutes"
    __table_args__ = _BY_KEY


class TrainingStepRow(SQLModel, table=True):
    """One training step of a policy: the contract's `TrainingStep`, exactly."""

    __tablename__ = "training_steps"
    __table_args__ = _BY_KEY

    run_id: int = Field(primary_key=True, foreign_key="run_records.id")
    policy: str = Field(primary_key=True)
    step: int = Field(primary_key=True, sa_type=BigInteger)
    at: float
    version: int = Field(sa_type=BigInteger)
    total_tokens: int = Field(sa_type=BigInteger)
    total_episodes: int = Field(sa_type=BigInteger)
    reward: float
    metrics_json: str
    """Metrics as a JSON object, whose numbers are read back as the same float64."""


class SeriesRolled(SQLModel, table=True):
    """Time up to which a run's series were aggregated at a level."""

    __tablename__ = "series_rolled"

    run_id: int = Field(primary_key=True, foreign_key="run_records.id")
    width_s: int = Field(primary_key=True)
    until: float


class AlertRule(SQLModel, table=True):
    """Rule of an alert."""

    __tablename__ = "alert_rules"

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)
    spec_json: str
    """`web.alerting.rules.RuleSpec`, as JSON."""
    is_from_file: bool = False
    """True for a rule of the file of alerts, which the page does not change."""
    created_by: str
    """Name of the user; empty for a rule of the file."""
    changed_at: float
    """Time of the latest change; only values from then on count. Unix seconds."""
    muted_until: float = 0.0
    """Time until which its notices are not sent; 0 for none. Unix seconds."""


class AlertReceiver(SQLModel, table=True):
    """Receiver of notices: a webhook or addresses of mail."""

    __tablename__ = "alert_receivers"

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)
    """Unique name."""
    kind: str
    """`webhook` or `mail`."""
    target: str
    """URL, a secret; or the addresses, separated by commas."""
    salt: str
    """Input of the key that signs its notices, together with the secret next to the database."""
    allows_private: bool
    """True if the URL may lead to this machine or a private network."""
    created_by: str
    """Name of the user."""
    created_at: float
    """Unix seconds."""
    sent_at: float = 0.0
    """Time of the latest notice that arrived; 0 for none. Unix seconds."""
    problem: str = ""
    """Cause why the latest notice did not arrive; empty if it did."""


class Alert(SQLModel, table=True):
    """Alert that fires or has fired."""

    __tablename__ = "alerts"

    id: int | None = Field(default=None, primary_key=True)
    """Id of the alert."""
    rule_id: int = Field(index=True)
    """Rule, which may have been deleted since."""
    rule_name: str
    """Name of the rule when the alert fired."""
    run: str = Field(index=True)
    """Name of the run."""
    severity: str
    """`info`, `warning` or `critical`."""
    series: str
    """Subject of the first series that fired, or of the rule."""
    series_value: str
    """Value of the series, such as `entropy`."""
    text: str
    """Description of the alert, one sentence."""
    number: float | None
    """Value of that series when the alert fired; None without one."""
    subjects: int
    """Series that fired at first. Count."""
    began_at: float = Field(index=True)
    """Unix seconds."""
    ended_at: float | None = None
    """Time when it was resolved; None while it fires. Unix seconds."""
    ended_because: str = ""
    """Why it was resolved; empty while it fires."""
    is_notified: bool = False
    """True once its notice is queued for the receivers."""


class AlertDelivery(SQLModel, table=True):
    """Notice that waits for its receiver."""

    __tablename__ = "alert_deliveries"

    id: int | None = Field(default=None, primary_key=True)
    receiver_id: int = Field(foreign_key="alert_receivers.id", index=True)
    events_json: str
    """Pairs of an id of an alert and `firing` or `resolved`, as JSON; empty for a test."""
    attempts: int = 0
    """Failed attempts. Count."""
    created_at: float
    """Unix seconds."""
    next_at: float
    """Time of the next attempt. Unix seconds."""


def own_tables() -> list[Table]:
    """Tables of this module."""
    names = {model.__tablename__ for model in globals().values() if hasattr(model, "__tablename__")}
    return [table for table in SQLModel.metadata.sorted_tables if table.name in names]
