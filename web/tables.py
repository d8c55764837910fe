"""What the web process remembers over restarts. The run itself lives in dataflow, never here."""

from sqlmodel import Field, SQLModel


class User(SQLModel, table=True):
    """Who may look and act."""

    __tablename__ = "users"

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)
    role: str
    """`viewer`, `operator` or `admin`."""
    created_at: float


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
    """The newest report, as `/api/report` shows it."""


class RunPoint(SQLModel, table=True):
    """One policy at one second."""

    __tablename__ = "run_points"

    run_id: int = Field(primary_key=True, foreign_key="run_records.id")
    policy: str = Field(primary_key=True)
    sequence: int = Field(primary_key=True)
    at: float
    reward: float | None
    reward_average: float | None
    reward_trained: float | None
    wait: float | None
    produced: float
    consumed: float
    buffered: int
    version: int
    steps: int
    lag: int | None
    """Versions that the node farthest behind is behind."""
