"""Logins: links that work once, and the sessions of browsers."""

import secrets
from collections.abc import Sequence

from sqlmodel import Session

from astraflow.contract.errors import Conflict, NotAuthenticated
from web.accounts import queries
from web.accounts.vault import Vault
from web.accounts.viewer import Viewer
from web.audit.entries import Author, Deed
from web.door.places import Grant
from web.door.roles import Role
from web.settings import SESSION_S
from web.tables import BrowserSession, LoginToken, User

ADMIN = "admin"
"""Name of the user that whoever started the process is."""

INVITATION_S = 24 * 3600.0
LONGEST_BROWSER = 160


class Sessions:
    """Makes login links, opens sessions and recognises their cookies.

    cookie_name: differs between installations, because browsers share cookies over all ports of a host.
    """

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self.cookie_name = f"astraflow_{vault.digest('cookie name')[:10]}"

    async def first_link(self) -> str:
        """A token for a link that logs in whoever started the process, once."""

        def write(session: Session) -> str:
            queries.forget_expired(session, now=self._vault.clock.wall())
            user = queries.user_named(session, ADMIN)
            if user is None:
                user = queries.add_user(session, ADMIN, role=Role.ADMIN.value, now=self._vault.clock.wall())
            return self.new_link(session, user, good_s=SESSION_S)

        return await self._vault.database.do(write)

    def new_link(self, session: Session, user: User, *, good_s: float = INVITATION_S) -> str:
        """A token for a link that logs this user in, once. Only its hash is kept."""
        token, now = secrets.token_urlsafe(24), self._vault.clock.wall()
        digest = self._vault.digest(token)
        session.add(LoginToken(token_hash=digest, user_id=queries.id_of(user), created_at=now, expires_at=now + good_s))
        return token

    async def log_in(self, token: str, *, came_from: str = "", browser: str = "") -> str:
        """Exchange a link's token for the value of a session cookie.

        Raises: NotAuthenticated for a token that is unknown, used or expired.
        """

        def write(session: Session) -> str:
            taken = queries.take_login_token(session, self._vault.digest(token), now=self._vault.clock.wall())
            user = session.get(User, taken.user_id) if taken else None
            if user is None or user.disabled_at is not None:
                raise NotAuthenticated("this login link was used already, or is too old")
            return self.open(session, user, opened_by="link", came_from=came_from, browser=browser)

        return await self._vault.database.do(write)

    def open(self, session: Session, user: User, *, opened_by: str, came_from: str, browser: str) -> str:
        """A session for this user, who has proven who they are; returns the cookie's value."""
        cookie, now = secrets.token_urlsafe(32), self._vault.clock.wall()
        session.add(
            BrowserSession(
                cookie_hash=self._vault.digest(cookie),
                user_id=queries.id_of(user),
                created_at=now,
                expires_at=now + SESSION_S,
                came_from=came_from,
                browser=browser.replace("\0", "")[:LONGEST_BROWSER],
                opened_by=opened_by,
            )
        )
        author = Author(name=user.name, role=user.role, via="login", came_from=came_from)
        self._vault.trail.append(session, author, Deed(action="session.open", after={"by": opened_by}))
        return cookie

    async def viewer(self, cookie: str | None, *, came_from: str = "") -> Viewer | None:
        """Who holds this cookie; None when nobody (any more)."""
        if not cookie:
            return None
        digest, now = self._vault.digest(cookie), self._vault.clock.wall()

        def read(session: Session) -> tuple[User, float, tuple[Grant, ...]] | None:
            known = queries.session_user(session, digest, now=now)
            return (*known, queries.grants_of(session, queries.id_of(known[0]))) if known is not None else None

        found = await self._vault.database.look(read)
        if found is None:
            return None
        user, ends_at, grants = found
        role = Role.named(user.role)
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
            form_token=self._vault.digest(f"forms of {cookie}"),
        )

    async def of(self, viewer: Viewer, *, of_all: bool) -> Sequence[tuple[BrowserSession, User]]:
        """Sessions that are open, the viewer's or everybody's, newest first."""
        now, user_id = self._vault.clock.wall(), None if of_all else viewer.user_id
        return await self._vault.database.look(lambda session: queries.open_sessions(session, now=now, user_id=user_id))

    async def revoke(self, cookie_hash: str, *, by: Viewer, of_all: bool, reason: str = "") -> None:
        """End a session, the viewer's own or, with `of_all`, anybody's. Raises: Conflict when it is over already."""

        def write(session: Session) -> None:
            now = self._vault.clock.wall()
            row = session.get(BrowserSession, cookie_hash)
            if row is None or (row.user_id != by.user_id and not of_all) or not _is_open(row, now):
                raise Conflict("that session is over already, or is none that you may end")
            row.revoked_at = now
            target = session.get_one(User, row.user_id).name
            is_here = cookie_hash == by.session
            deed = Deed(action="session.close" if is_here else "session.revoke", target=target, reason=reason)
            self._vault.trail.append(session, by.author, deed)

        await self._vault.change(write)


def _is_open(row: BrowserSession, now: float) -> bool:
    return row.revoked_at is None and row.expires_at > now
