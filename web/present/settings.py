"""What the settings page shows: sessions, tokens, users, and the table of roles."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from web.accounts.grants import Holding, holder
from web.accounts.sessions import ADMIN
from web.accounts.viewer import Viewer
from web.door.roles import MAY, Need, Role
from web.tables import ApiToken, BrowserSession, User


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """A browser that is logged in."""

    id: str
    user: str
    browser: str
    came_from: str
    opened_by: str
    created_at: float
    expires_at: float
    is_here: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """A token that is good."""

    id: int
    user: str
    name: str
    scope: str
    created_at: float
    until: str
    """UTC, to the day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRow:
    """A user, and what may be done about them."""

    id: int
    name: str
    role: str
    login: str
    is_disabled: bool
    is_fixed: bool
    """Nobody changes who starts the process, or themselves."""
    is_local: bool
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantRow:
    """A role that somebody has on a run or a pool."""

    id: int
    holder: str
    """A user, or one of their tokens."""
    role: str
    run: str
    pool: str
    """Empty for all of the run."""
    by: str
    created_at: float
    is_fixed: bool
    """The viewer's own: nobody changes their own rights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedRow:
    """A line of the table of roles."""

    words: str
    has: tuple[bool, ...]


def session_rows(found: Sequence[tuple[BrowserSession, User]], *, viewer: Viewer) -> list[SessionRow]:
    """The viewer's own browser first."""
    rows = [
        SessionRow(
            id=row.cookie_hash,
            user=user.name,
            browser=browser_name(row.browser),
            came_from=row.came_from or "unknown",
            opened_by=row.opened_by,
            created_at=row.created_at,
            expires_at=row.expires_at,
            is_here=row.cookie_hash == viewer.session,
        )
        for row, user in found
    ]
    return sorted(rows, key=lambda row: not row.is_here)


def token_rows(found: Sequence[tuple[ApiToken, User]]) -> list[TokenRow]:
    """In the order found."""
    return [
        TokenRow(
            id=row.id or 0,
            user=user.name,
            name=row.name,
            scope=row.scope,
            created_at=row.created_at,
            until=datetime.fromtimestamp(row.expires_at, UTC).strftime("%Y-%m-%d %H:%M"),
        )
        for row, user in found
    ]


def user_rows(found: Sequence[User], *, viewer: Viewer) -> list[UserRow]:
    """In the order found."""
    return [
        UserRow(
            id=user.id or 0,
            name=user.name,
            role=user.role,
            login=_login(user),
            is_disabled=user.disabled_at is not None,
            is_fixed=user.name == ADMIN or user.id == viewer.user_id,
            is_local=user.identity is None,
            created_at=user.created_at,
        )
        for user in found
    ]


def grant_rows(found: Sequence[Holding], *, viewer: Viewer) -> list[GrantRow]:
    """In the order found."""
    return [
        GrantRow(
            id=row.id or 0,
            holder=holder(user, token),
            role=row.role,
            run=row.run,
            pool=row.pool,
            by=row.granted_by,
            created_at=row.created_at,
            is_fixed=token is None and user.id == viewer.user_id,
        )
        for row, user, token in found
    ]


def grantees(
    users: Sequence[User], tokens: Sequence[tuple[ApiToken, User]], *, viewer: Viewer
) -> list[tuple[str, str]]:
    """Who can be granted something: as the form sends them, and in words; users first."""
    people = [user for user in users if user.name != ADMIN and user.id != viewer.user_id and user.disabled_at is None]
    return [
        *((f"{user.id}", user.name) for user in people),
        *((f"{user.id}:{token.id}", holder(user, token)) for token, user in tokens),
    ]


def need_rows() -> list[NeedRow]:
    """What each role may do, in the order of `Role`."""
    shown = [need for need in Need if need is not Need.NOTHING]
    return [NeedRow(words=need.value, has=tuple(need in MAY[role] for role in Role)) for need in shown]


def scopes(viewer: Viewer) -> list[str]:
    """Scopes that a token of this viewer can have, least first."""
    order = (Role.VIEWER, Role.AGENT, Role.OPERATOR, Role.ADMIN)
    return [role.value for role in order if MAY[role] <= MAY[viewer.most]]


def browser_name(agent: str) -> str:
    """What a browser calls itself, in two words.

    >>> browser_name("Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/140.0.0.0 Safari/537.36")
    'Chrome on Linux'
    >>> browser_name("python-httpx/0.28.1"), browser_name("")
    ('python-httpx/0.28.1', 'unknown')
    """
    names = (("Edg/", "Edge"), ("Firefox/", "Firefox"), ("Chrome/", "Chrome"), ("Safari/", "Safari"))
    places = (
        ("Android", "Android"),
        ("iPhone", "iPhone"),
        ("Mac OS", "macOS"),
        ("Windows", "Windows"),
        ("Linux", "Linux"),
    )
    name = next((shown for mark, shown in names if mark in agent), "")
    place = next((shown for mark, shown in places if mark in agent), "")
    return f"{name} on {place}" if name and place else agent[:40] or "unknown"


def _login(user: User) -> str:
    if user.identity is not None:
        return "provider"
    return "password" if user.password_hash else "link"
