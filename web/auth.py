"""Who is looking: one-time login links, and the sessions they open. Only keyed hashes are stored."""

import hashlib
import hmac
import secrets
from collections import deque
from dataclasses import dataclass

from sqlmodel import Session

from astraflow.contract.errors import NotAuthenticated
from astraflow.runtime.clock import Clock
from web import queries
from web.db import Database
from web.settings import SESSION_S
from web.tables import BrowserSession, LoginToken, User

ADMIN = "admin"
"""Name and role of the person who started the process."""

FAILURES_A_MINUTE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """Who a request comes from."""

    name: str
    role: str


class Accounts:
    """Makes login links, exchanges each once for a session cookie, and recognises the cookie.

    cookie_name: differs between installations, because browsers share cookies over all ports of a host.
    """

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._failures: deque[float] = deque(maxlen=FAILURES_A_MINUTE)
        self.cookie_name = f"astraflow_{self._hash('cookie name')[:10]}"

    async def login_token(self) -> str:
        """A new token for a link that logs the administrator in, once."""
        token = secrets.token_urlsafe(24)
        now = self._clock.wall()

        def write(session: Session) -> None:
            queries.forget_expired(session, now=now)
            user = queries.user_named(session, ADMIN, role=ADMIN, now=now)
            session.add(
                LoginToken(
                    token_hash=self._hash(token), user_id=_id_of(user), created_at=now, expires_at=now + SESSION_S
                )
            )

        await self._database.do(write)
        return token

    async def log_in(self, token: str) -> str:
        """Exchange a login token for the value of a session cookie.

        Raises: NotAuthenticated for a token that is unknown, used or expired, or after too many of those.
        """
        self._check_rate()
        cookie = secrets.token_urlsafe(32)
        now = self._clock.wall()

        def write(session: Session) -> bool:
            taken = queries.take_login_token(session, self._hash(token), now=now)
            if taken is None:
                return False
            session.add(
                BrowserSession(
                    cookie_hash=self._hash(cookie), user_id=taken.user_id, created_at=now, expires_at=now + SESSION_S
                )
            )
            return True

        if not await self._database.do(write):
            self._failures.append(self._clock.now())
            raise NotAuthenticated("this login link was used already, or is older than 12 hours")
        return cookie

    async def viewer(self, cookie: str | None) -> Viewer | None:
        """Who holds this cookie; None when nobody (any more)."""
        if not cookie:
            return None
        now = self._clock.wall()
        cookie_hash = self._hash(cookie)
        user = await self._database.do(lambda session: queries.session_user(session, cookie_hash, now=now))
        return None if user is None else Viewer(name=user.name, role=user.role)

    async def log_out(self, cookie: str | None) -> None:
        """End the session of this cookie."""
        if cookie:
            cookie_hash, now = self._hash(cookie), self._clock.wall()
            await self._database.do(lambda session: queries.revoke_session(session, cookie_hash, now=now))

    def _check_rate(self) -> None:
        is_full = len(self._failures) == FAILURES_A_MINUTE
        if is_full and self._clock.now() - self._failures[0] < 60:
            raise NotAuthenticated("too many wrong login links in the last minute; wait a minute and try again")

    def _hash(self, text: str) -> str:
        return hmac.new(self._database.secret, text.encode(), hashlib.sha256).hexdigest()


def _id_of(user: User) -> int:
    if user.id is None:
        raise RuntimeError("a flushed user has an id")
    return user.id
