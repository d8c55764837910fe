"""Database queries of users, sessions, links and tokens. Each is one step of a transaction."""

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from sqlalchemy import ColumnElement, and_, func, or_, update
from sqlmodel import Session, col, delete, select

from astraflow.runtime.clock import Clock
from web.database.db import Database
from web.database.tables import ApiToken, BrowserSession, LoginToken, RoleGrant, User
from web.security.audit_log import AuditLog
from web.security.roles import Grant, Resource, Role


def id_of(row: User | RoleGrant | ApiToken) -> int:
    """Id of a stored row."""
    if row.id is None:
        raise RuntimeError("a flushed row has an id")
    return row.id


def users(session: Session) -> Sequence[User]:
    """All users, by name."""
    return session.exec(select(User).order_by(User.name)).all()


def user_named(session: Session, name: str) -> User | None:
    """User with this name; None if unknown."""
    return session.exec(select(User).where(User.name == name)).one_or_none() if "\0" not in name else None


def user_with_identity(session: Session, identity: str) -> User | None:
    """User with this identity at a provider; None if unknown."""
    return session.exec(select(User).where(User.identity == identity)).one_or_none()


def add_user(session: Session, name: str, *, role: str, now: float, identity: str | None = None) -> User:
    """Adds a user."""
    user = User(name=name, role=role, created_at=now, identity=identity)
    session.add(user)
    session.flush()
    return user


def consume_login_token(session: Session, token_hash: str, *, now: float) -> LoginToken | None:
    """Marks a login token as used and returns it; None if it is unknown, used or expired."""
    token = session.get(LoginToken, token_hash, with_for_update=True)
    if token is None or token.used_at is not None or token.expires_at <= now:
        return None
    token.used_at = now
    return token


def session_user(session: Session, cookie_hash: str, *, now: float) -> tuple[User, float] | None:
    """User logged in with this cookie, and the expiry of the session; None if the session has ended."""
    query = select(User, BrowserSession.expires_at).where(
        BrowserSession.user_id == User.id,
        BrowserSession.cookie_hash == cookie_hash,
        BrowserSession.expires_at > now,
        col(BrowserSession.revoked_at).is_(None),
        col(User.disabled_at).is_(None),
    )
    return session.exec(query).one_or_none()  # a single query, because every request runs it


def open_sessions(session: Session, *, now: float, user_id: int | None) -> Sequence[tuple[BrowserSession, User]]:
    """Open sessions, newest first; of one user unless None."""
    query = select(BrowserSession, User).where(
        BrowserSession.user_id == User.id, col(BrowserSession.revoked_at).is_(None), BrowserSession.expires_at > now
    )
    if user_id is not None:
        query = query.where(BrowserSession.user_id == user_id)
    return [(row, user) for row, user in session.exec(query.order_by(col(BrowserSession.created_at).desc()))]


def token_user(session: Session, token_hash: str, *, now: float) -> tuple[ApiToken, User] | None:
    """Valid token and its user; None if the token is invalid."""
    row = session.exec(select(ApiToken).where(ApiToken.token_hash == token_hash)).one_or_none()
    if row is None or not is_valid(row, now):
        return None
    user = session.get(User, row.user_id)
    return None if user is None or user.disabled_at is not None else (row, user)


def is_valid(token: ApiToken, now: float) -> bool:
    """True if the token is neither revoked nor expired."""
    return token.revoked_at is None and token.expires_at > now


def tokens(session: Session, *, now: float, user_id: int | None) -> Sequence[tuple[ApiToken, User]]:
    """Valid tokens, newest first; of one user unless None."""
    query = select(ApiToken, User).where(
        ApiToken.user_id == User.id, col(ApiToken.revoked_at).is_(None), ApiToken.expires_at > now
    )
    if user_id is not None:
        query = query.where(ApiToken.user_id == user_id)
    return [(row, user) for row, user in session.exec(query.order_by(col(ApiToken.created_at).desc()))]


def grants_of(session: Session, user_id: int, *, token_id: int | None = None) -> tuple[Grant, ...]:
    """Grants of a user; with a token's id, those of that token."""
    query = select(RoleGrant).where(RoleGrant.user_id == user_id, _belongs_to(token_id)).order_by(col(RoleGrant.id))
    rows = ((Role.parse(row.role), row) for row in session.exec(query))
    return tuple(
        Grant(role=role, resource=Resource(run=row.run, pool=row.pool)) for role, row in rows if role is not None
    )


def granted(session: Session, *, now: float) -> Sequence[tuple[RoleGrant, User, ApiToken | None]]:
    """All grants, by user, run and pool, without those of invalid tokens."""
    is_valid_token = and_(col(ApiToken.revoked_at).is_(None), col(ApiToken.expires_at) > now)
    query = (
        select(RoleGrant, User, ApiToken)
        .join(User, col(RoleGrant.user_id) == col(User.id))
        .outerjoin(ApiToken, col(RoleGrant.token_id) == col(ApiToken.id))
        .where(or_(col(RoleGrant.token_id).is_(None), is_valid_token))
        .order_by(User.name, RoleGrant.run, RoleGrant.pool, col(RoleGrant.id))
    )
    return [(grant, user, token) for grant, user, token in session.exec(query)]


def count_grants(session: Session, user_id: int) -> int:
    """Grants of a user and all their tokens. Count."""
    return session.exec(select(func.count()).select_from(RoleGrant).where(RoleGrant.user_id == user_id)).one()


def find_grant(session: Session, user_id: int, token_id: int | None, resource: Resource) -> RoleGrant | None:
    """Grant of a user or token on exactly this resource; None without one."""
    query = select(RoleGrant).where(
        RoleGrant.user_id == user_id,
        _belongs_to(token_id),
        RoleGrant.run == resource.run,
        RoleGrant.pool == resource.pool,
    )
    return session.exec(query).first()


def _belongs_to(token_id: int | None) -> ColumnElement[bool]:
    return col(RoleGrant.token_id).is_(None) if token_id is None else col(RoleGrant.token_id) == token_id


def end_sessions_of(session: Session, user_id: int, *, now: float, except_cookie_hash: str = "") -> None:
    """Ends all sessions of a user except one."""
    rows = update(BrowserSession).where(
        col(BrowserSession.user_id) == user_id,
        col(BrowserSession.revoked_at).is_(None),
        col(BrowserSession.cookie_hash) != except_cookie_hash,
    )
    session.execute(rows.values(revoked_at=now))


def delete_links(session: Session, user_id: int) -> None:
    """Deletes all login links of a user."""
    session.exec(delete(LoginToken).where(col(LoginToken.user_id) == user_id))


def end_all_access_of(session: Session, user_id: int, *, now: float) -> None:
    """Ends all sessions, links and tokens of a user."""
    end_sessions_of(session, user_id, now=now)
    delete_links(session, user_id)
    tokens_of_user = update(ApiToken).where(col(ApiToken.user_id) == user_id, col(ApiToken.revoked_at).is_(None))
    session.execute(tokens_of_user.values(revoked_at=now))


def delete_expired(session: Session, *, now: float) -> None:
    """Deletes expired sessions and login links."""
    session.exec(delete(BrowserSession).where(col(BrowserSession.expires_at) <= now))
    session.exec(delete(LoginToken).where(col(LoginToken.expires_at) <= now))


T = TypeVar("T")


class Changes:
    """Notifies open connections when sessions, tokens, roles or grants may have changed."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    @property
    def next(self) -> asyncio.Event:
        """Event that the next change sets. Take it before reading the state: then no change is missed."""
        return self._next

    def notify(self) -> None:
        """Wakes all waiters."""
        self._next.set()
        self._next = asyncio.Event()


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountStore:
    """Shared parts of the accounts. Only keyed hashes of cookies, links and tokens are stored."""

    database: Database
    clock: Clock
    audit_log: AuditLog
    changes: Changes = field(default_factory=Changes)

    async def change(self, work: Callable[[Session], T]) -> T:
        """Runs work that changes what a session, token or user may do, then notifies open connections."""
        result = await self.database.write(work)
        self.changes.notify()
        return result

    def digest(self, text: str) -> str:
        """Keyed hash that only this installation can compute."""
        return hmac.new(self.database.secret, text.encode("utf-8", "replace"), hashlib.sha256).hexdigest()
