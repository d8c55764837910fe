"""Reads and writes of users, sessions, links and tokens, named. Each is one step of a transaction."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, and_, func, or_, update
from sqlmodel import Session, col, delete, select

from web.door.places import Grant, Place
from web.door.roles import Role
from web.tables import ApiToken, BrowserSession, LoginToken, RoleGrant, User


def id_of(row: User | RoleGrant | ApiToken) -> int:
    """The id of a row that is in the database."""
    if row.id is None:
        raise RuntimeError("a flushed row has an id")
    return row.id


def users(session: Session) -> Sequence[User]:
    """Everybody, by name."""
    return session.exec(select(User).order_by(User.name)).all()


def user_named(session: Session, name: str) -> User | None:
    """The user of that name."""
    return session.exec(select(User).where(User.name == name)).one_or_none() if "\0" not in name else None


def user_known_as(session: Session, identity: str) -> User | None:
    """The user with that identity at a provider."""
    return session.exec(select(User).where(User.identity == identity)).one_or_none()


def add_user(session: Session, name: str, *, role: str, now: float, identity: str | None = None) -> User:
    """A new user."""
    user = User(name=name, role=role, created_at=now, identity=identity)
    session.add(user)
    session.flush()
    return user


def take_login_token(session: Session, token_hash: str, *, now: float) -> LoginToken | None:
    """Mark a login token as used and return it; None when it is unknown, used or expired."""
    token = session.get(LoginToken, token_hash, with_for_update=True)
    if token is None or token.used_at is not None or token.expires_at <= now:
        return None
    token.used_at = now
    return token


def session_user(session: Session, cookie_hash: str, *, now: float) -> tuple[User, float] | None:
    """The user who is logged in with this cookie and when the session expires; None for a session that is over."""
    query = select(User, BrowserSession.expires_at).where(
        BrowserSession.user_id == User.id,
        BrowserSession.cookie_hash == cookie_hash,
        BrowserSession.expires_at > now,
        col(BrowserSession.revoked_at).is_(None),
        col(User.disabled_at).is_(None),
    )
    return session.exec(query).one_or_none()  # one question, for every request asks it


def open_sessions(session: Session, *, now: float, user_id: int | None) -> Sequence[tuple[BrowserSession, User]]:
    """Sessions that are not over, newest first; of one user unless None."""
    query = select(BrowserSession, User).where(
        BrowserSession.user_id == User.id, col(BrowserSession.revoked_at).is_(None), BrowserSession.expires_at > now
    )
    if user_id is not None:
        query = query.where(BrowserSession.user_id == user_id)
    return [(row, user) for row, user in session.exec(query.order_by(col(BrowserSession.created_at).desc()))]


def token_user(session: Session, token_hash: str, *, now: float) -> tuple[ApiToken, User] | None:
    """A token that is good, and whose it is."""
    row = session.exec(select(ApiToken).where(ApiToken.token_hash == token_hash)).one_or_none()
    if row is None or not is_good(row, now):
        return None
    user = session.get(User, row.user_id)
    return None if user is None or user.disabled_at is not None else (row, user)


def is_good(token: ApiToken, now: float) -> bool:
    """Whether it was neither revoked nor has expired."""
    return token.revoked_at is None and token.expires_at > now


def tokens(session: Session, *, now: float, user_id: int | None) -> Sequence[tuple[ApiToken, User]]:
    """Tokens that are good, newest first; of one user unless None."""
    query = select(ApiToken, User).where(
        ApiToken.user_id == User.id, col(ApiToken.revoked_at).is_(None), ApiToken.expires_at > now
    )
    if user_id is not None:
        query = query.where(ApiToken.user_id == user_id)
    return [(row, user) for row, user in session.exec(query.order_by(col(ApiToken.created_at).desc()))]


def grants_of(session: Session, user_id: int, *, token_id: int | None = None) -> tuple[Grant, ...]:
    """What a user has at some places; or, with a token's id, what that token has."""
    query = select(RoleGrant).where(RoleGrant.user_id == user_id, _is_of(token_id)).order_by(col(RoleGrant.id))
    found = ((Role.named(row.role), row) for row in session.exec(query))
    return tuple(Grant(role=role, place=Place(run=row.run, pool=row.pool)) for role, row in found if role is not None)


def granted(session: Session, *, now: float) -> Sequence[tuple[RoleGrant, User, ApiToken | None]]:
    """All grants, by user, run and pool; those of tokens that are not good any more are left out."""
    is_good_token = and_(col(ApiToken.revoked_at).is_(None), col(ApiToken.expires_at) > now)
    query = (
        select(RoleGrant, User, ApiToken)
        .join(User, col(RoleGrant.user_id) == col(User.id))
        .outerjoin(ApiToken, col(RoleGrant.token_id) == col(ApiToken.id))
        .where(or_(col(RoleGrant.token_id).is_(None), is_good_token))
        .order_by(User.name, RoleGrant.run, RoleGrant.pool, col(RoleGrant.id))
    )
    return [(grant, user, token) for grant, user, token in session.exec(query)]


def number_of_grants(session: Session, user_id: int) -> int:
    """Of a user and all their tokens."""
    return session.exec(select(func.count()).select_from(RoleGrant).where(RoleGrant.user_id == user_id)).one()


def grant_at(session: Session, user_id: int, token_id: int | None, place: Place) -> RoleGrant | None:
    """What somebody has at exactly this place."""
    query = select(RoleGrant).where(
        RoleGrant.user_id == user_id, _is_of(token_id), RoleGrant.run == place.run, RoleGrant.pool == place.pool
    )
    return session.exec(query).first()


def _is_of(token_id: int | None) -> ColumnElement[bool]:
    return col(RoleGrant.token_id).is_(None) if token_id is None else col(RoleGrant.token_id) == token_id


def end_sessions_of(session: Session, user_id: int, *, now: float, but: str = "") -> None:
    """Log a user out everywhere, save for one session."""
    rows = update(BrowserSession).where(
        col(BrowserSession.user_id) == user_id,
        col(BrowserSession.revoked_at).is_(None),
        col(BrowserSession.cookie_hash) != but,
    )
    session.execute(rows.values(revoked_at=now))


def forget_links(session: Session, user_id: int) -> None:
    """Make a user's login links useless."""
    session.exec(delete(LoginToken).where(col(LoginToken.user_id) == user_id))


def end_everything_of(session: Session, user_id: int, *, now: float) -> None:
    """End a user's sessions, links and tokens."""
    end_sessions_of(session, user_id, now=now)
    forget_links(session, user_id)
    mine = update(ApiToken).where(col(ApiToken.user_id) == user_id, col(ApiToken.revoked_at).is_(None))
    session.execute(mine.values(revoked_at=now))


def forget_expired(session: Session, *, now: float) -> None:
    """Remove logins that are over."""
    session.exec(delete(BrowserSession).where(col(BrowserSession.expires_at) <= now))
    session.exec(delete(LoginToken).where(col(LoginToken.expires_at) <= now))
