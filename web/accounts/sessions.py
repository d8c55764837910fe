"""Logins: single-use links and browser sessions."""

import secrets
from collections.abc import Sequence

from sqlmodel import Session

from astraflow.contract.errors import NotAuthenticated
from web.accounts import queries
from web.accounts.queries import AccountStore
from web.accounts.viewer import Viewer
from web.database.tables import BrowserSession, LoginToken, User
from web.process_settings import SESSION_S
from web.security.audit_log import AuditedCommand, Author
from web.security.problems import NotFound
from web.security.roles import Grant, Permission, Role

ADMIN = "admin"
"""Name of the user that starts the process."""

INVITATION_S = 24 * 3600.0
MAX_BROWSER_LETTERS = 160


class Sessions:
    """Creates login links, opens sessions and recognises their cookies.

    cookie_name: differs between installations, because browsers share cookies over all ports of a host.
    """

    def __init__(self, store: AccountStore) -> None:
        self._store = store
        self.cookie_name = f"astraflow_{store.digest('cookie name')[:10]}"

    async def first_link(self) -> str:
        """Creates the token of a single-use login link for the user that starts the process."""

        def write(session: Session) -> str:
            queries.delete_expired(session, now=self._store.clock.wall())
            user = queries.user_named(session, ADMIN)
            if user is None:
                user = queries.add_user(session, ADMIN, role=Role.ADMIN.value, now=self._store.clock.wall())
            return self.new_link(session, user, valid_s=SESSION_S)

        return await self._store.database.write(write)

    def new_link(self, session: Session, user: User, *, valid_s: float = INVITATION_S) -> str:
        """Creates the token of a single-use login link. Only its hash is stored."""
        token, now = secrets.token_urlsafe(24), self._store.clock.wall()
        digest = self._store.digest(token)
        session.add(
            LoginToken(token_hash=digest, user_id=queries.id_of(user), created_at=now, expires_at=now + valid_s)
        )
        return token

    async def log_in(self, token: str, *, came_from: str = "", browser: str = "") -> str:
        """Exchanges the token of a link for a session cookie.

        Raises: NotAuthenticated for a token that is unknown, used or expired.
        """

        def write(session: Session) -> str:
            login_token = queries.consume_login_token(session, self._store.digest(token), now=self._store.clock.wall())
            user = session.get(User, login_token.user_id) if login_token else None
            if user is None or user.disabled_at is not None:
                raise NotAuthenticated(
                    "cannot log in: the login link was used already or has expired; ask for a new link",
                    code="login.invalid_link",
                )
            return self.open(session, user, opened_by="link", came_from=came_from, browser=browser)

        return await self._store.database.write(write)

    def open(self, session: Session, user: User, *, opened_by: str, came_from: str, browser: str) -> str:
        """Opens a session for an authenticated user; returns the cookie's value."""
        cookie, now = secrets.token_urlsafe(32), self._store.clock.wall()
        session.add(
            BrowserSession(
                cookie_hash=self._store.digest(cookie),
                user_id=queries.id_of(user),
                created_at=now,
                expires_at=now + SESSION_S,
                came_from=came_from,
                browser=browser.replace("\0", "")[:MAX_BROWSER_LETTERS],
                opened_by=opened_by,
            )
        )
        author = Author(name=user.name, role=user.role, via="login", came_from=came_from)
        self._store.audit_log.append(session, author, AuditedCommand(action="session.open", after={"by": opened_by}))
        return cookie

    async def viewer(self, cookie: str | None, *, came_from: str = "") -> Viewer | None:
        """Viewer with this cookie; None if the session is unknown or has ended."""
        if not cookie:
            return None
        digest, now = self._store.digest(cookie), self._store.clock.wall()

        def read(session: Session) -> tuple[User, float, tuple[Grant, ...]] | None:
            user_session = queries.session_user(session, digest, now=now)
            return (
                (*user_session, queries.grants_of(session, queries.id_of(user_session[0])))
                if user_session is not None
                else None
            )

        row = await self._store.database.read(read)
        if row is None:
            return None
        user, ends_at, grants = row
        role = Role.parse(user.role)
        if role is None:
            return None
        return Viewer(
            user_id=queries.id_of(user),
            name=user.name,
            role=role,
            grants=grants,
            came_from=came_from,
            session=digest,
            ends_at=ends_at,
            form_token=self._store.digest(f"forms of {cookie}"),
        )

    async def list_for(self, viewer: Viewer) -> Sequence[tuple[BrowserSession, User]]:
        """Open sessions of the viewer, for admins of all users, newest first."""
        now, user_id = self._store.clock.wall(), None if viewer.may(Permission.ADMINISTER) else viewer.user_id
        return await self._store.database.read(lambda session: queries.open_sessions(session, now=now, user_id=user_id))

    async def revoke(self, cookie_hash: str, *, by: Viewer, reason: str = "") -> str:
        """Ends a session: the viewer's own or, for admins, any; returns a sentence. Raises: NotFound."""

        def write(session: Session) -> str:
            now = self._store.clock.wall()
            row = session.get(BrowserSession, cookie_hash)
            if row is None or not by.may_end_access_of(row.user_id) or not _is_open(row, now):
                raise NotFound(
                    "cannot end the session: it has ended already, or belongs to another user; reload the page",
                    code="session.unknown",
                )
            row.revoked_at = now
            target = session.get_one(User, row.user_id).name
            is_here = cookie_hash == by.session
            command = AuditedCommand(
                action="session.close" if is_here else "session.revoke", target=target, reason=reason
            )
            self._store.audit_log.append(session, by.author, command)
            return "session ended"

        return await self._store.change(write)


def _is_open(row: BrowserSession, now: float) -> bool:
    return row.revoked_at is None and row.expires_at > now
