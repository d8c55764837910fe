"""Settings page: sessions, tokens, users, grants, and the table of roles."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from web.accounts.grants import HeldGrant, describe_holder
from web.accounts.sessions import ADMIN
from web.accounts.viewer import Viewer
from web.database.tables import ApiToken, BrowserSession, User
from web.security.roles import ROLE_PERMISSIONS, Permission, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """Browser session."""

    id: str
    user: str
    browser: str
    came_from: str
    opened_by: str
    created_at: float
    expires_at: float
    is_current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """Valid API token."""

    id: int
    user: str
    name: str
    scope: str
    created_at: float
    until: str
    """Expiry in UTC, to the minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRow:
    """User account."""

    id: int
    name: str
    role: str
    login: str
    is_disabled: bool
    is_fixed: bool
    """Whether it cannot be changed here: the admin who starts the process, and the viewer's own account."""
    is_local: bool
    has_link: bool
    """Whether a login link can be created: for enabled local users, except the admin who starts the process."""
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantRow:
    """Role granted on a run or a pool."""

    id: int
    holder: str
    """User, or one of the user's tokens."""
    role: str
    run: str
    pool: str
    """Empty for all pools of the run."""
    by: str
    created_at: float
    is_fixed: bool
    """Whether it is the viewer's own; users cannot change their own rights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedRow:
    """Row of the table of roles: an action, and for each role whether it has the permission."""

    words: str
    has: tuple[bool, ...]


def session_rows(sessions: Sequence[tuple[BrowserSession, User]], *, viewer: Viewer) -> list[SessionRow]:
    """Returns the rows of sessions, the viewer's own first."""
    rows = [
        SessionRow(
            id=row.cookie_hash,
            user=user.name,
            browser=browser_name(row.browser),
            came_from=row.came_from or "unknown",
            opened_by=row.opened_by,
            created_at=row.created_at,
            expires_at=row.expires_at,
            is_current=row.cookie_hash == viewer.session,
        )
        for row, user in sessions
    ]
    return sorted(rows, key=lambda row: not row.is_current)


def token_rows(tokens: Sequence[tuple[ApiToken, User]]) -> list[TokenRow]:
    """Returns the rows of tokens, in the given order."""
    return [
        TokenRow(
            id=row.id or 0,
            user=user.name,
            name=row.name,
            scope=row.scope,
            created_at=row.created_at,
            until=datetime.fromtimestamp(row.expires_at, UTC).strftime("%Y-%m-%d %H:%M"),
        )
        for row, user in tokens
    ]


def user_rows(users: Sequence[User], *, viewer: Viewer) -> list[UserRow]:
    """Returns the rows of users, in the given order."""
    return [
        UserRow(
            id=user.id or 0,
            name=user.name,
            role=user.role,
            login=_login(user),
            is_disabled=user.disabled_at is not None,
            is_fixed=user.name == ADMIN or user.id == viewer.user_id,
            is_local=user.identity is None,
            has_link=user.identity is None and user.disabled_at is None and user.name != ADMIN,
            created_at=user.created_at,
        )
        for user in users
    ]


def grant_rows(grants: Sequence[HeldGrant], *, viewer: Viewer) -> list[GrantRow]:
    """Returns the rows of grants, in the given order."""
    return [
        GrantRow(
            id=row.id or 0,
            holder=describe_holder(user, token),
            role=row.role,
            run=row.run,
            pool=row.pool,
            by=row.granted_by,
            created_at=row.created_at,
            is_fixed=token is None and user.id == viewer.user_id,
        )
        for row, user, token in grants
    ]


def grantees(
    users: Sequence[User], tokens: Sequence[tuple[ApiToken, User]], *, viewer: Viewer
) -> list[tuple[str, str]]:
    """Returns the possible holders of a grant, users first: form value and label."""
    people = [user for user in users if user.name != ADMIN and user.id != viewer.user_id and user.disabled_at is None]
    return [
        *((f"{user.id}", user.name) for user in people),
        *((f"{user.id}:{token.id}", describe_holder(user, token)) for token, user in tokens),
    ]


def need_rows() -> list[NeedRow]:
    """Returns the permissions of each role, in the order of `Role`."""
    shown = [need for need in Permission if need is not Permission.NOTHING]
    return [NeedRow(words=need.value, has=tuple(need in ROLE_PERMISSIONS[role] for role in Role)) for need in shown]


def scopes(viewer: Viewer) -> list[str]:
    """Returns the scopes that a token of this viewer can have, least privileged first."""
    order = (Role.VIEWER, Role.AGENT, Role.OPERATOR, Role.ADMIN)
    return [role.value for role in order if ROLE_PERMISSIONS[role] <= ROLE_PERMISSIONS[viewer.highest_role]]


def browser_name(agent: str) -> str:
    """Returns the browser and the platform of a user agent, in two words.

    >>> browser_name("Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/140.0.0.0 Safari/537.36")
    'Chrome on Linux'
    >>> browser_name("python-httpx/0.28.1"), browser_name("")
    ('python-httpx/0.28.1', 'unknown')
    """
    names = (("Edg/", "Edge"), ("Firefox/", "Firefox"), ("Chrome/", "Chrome"), ("Safari/", "Safari"))
    platforms = (
        ("Android", "Android"),
        ("iPhone", "iPhone"),
        ("Mac OS", "macOS"),
        ("Windows", "Windows"),
        ("Linux", "Linux"),
    )
    name = next((label for marker, label in names if marker in agent), "")
    platform = next((label for marker, label in platforms if marker in agent), "")
    return f"{name} on {platform}" if name and platform else agent[:40] or "unknown"


def _login(user: User) -> str:
    if user.identity is not None:
        return "provider"
    return "password" if user.password_hash else "link"
