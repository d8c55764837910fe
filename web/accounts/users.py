"""Users: who there is, in which role, with which password."""

import re
from collections.abc import Sequence

from sqlmodel import Session

from astraflow.contract.errors import Conflict, InvalidInput, NotAuthenticated
from web.accounts import queries
from web.accounts.passwords import Passwords
from web.accounts.sessions import ADMIN, Sessions
from web.accounts.vault import Vault
from web.accounts.viewer import Viewer
from web.audit.entries import Author, Deed
from web.door.roles import Role
from web.tables import User

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
"""Names of local users; those from a provider have a colon, so that neither can pass for the other."""


class Users:
    """Reads and changes users. Every change takes effect with the next request, and is in the audit."""

    def __init__(self, vault: Vault, sessions: Sessions) -> None:
        self._vault = vault
        self._sessions = sessions
        self._passwords = Passwords()

    async def all(self) -> Sequence[User]:
        """Everybody, by name."""
        return await self._vault.database.look(queries.users)

    async def admins(self) -> Sequence[str]:
        """Names of those who can grant roles."""
        return [user.name for user in await self.all() if user.role == Role.ADMIN.value and user.disabled_at is None]

    async def log_in(self, name: str, password: str, *, came_from: str, browser: str) -> str:
        """Open a session for a name and its password; returns the cookie's value.

        Raises: NotAuthenticated, with the same words whatever was wrong.
        """
        user = await self._vault.database.look(lambda session: queries.user_named(session, name))
        is_right = await self._passwords.is_right(user.password_hash if user else None, password)
        if user is None or not is_right or user.disabled_at is not None:
            author = Author(name="", role="", via="login", came_from=came_from)
            shown = user.name if user else "(nobody's name)"  # people type passwords into the wrong field
            await self._vault.trail.note(author, Deed(action="session.open", target=shown, result="refused"))
            raise NotAuthenticated("the name or the password is wrong")
        return await self._vault.database.do(
            lambda session: self._sessions.open(
                session, user, opened_by="password", came_from=came_from, browser=browser
            )
        )

    async def add(self, name: str, role: Role, *, by: Viewer, reason: str = "") -> str:
        """A new local user; returns the token of a link with which they log in and choose a password.

        Raises: InvalidInput for a name that cannot be one; Conflict for one that is taken.
        """
        if not NAME.fullmatch(name):
            raise InvalidInput("a name begins with a letter or digit, then up to 63 more of those and . _ @ + -")

        def write(session: Session) -> str:
            if queries.user_named(session, name) is not None:
                raise Conflict(f"there is a user {name} already")
            user = queries.add_user(session, name, role=role.value, now=self._vault.clock.wall())
            deed = Deed(action="user.add", target=name, after={"role": role.value}, reason=reason)
            self._vault.trail.append(session, by.author, deed)
            return self._sessions.new_link(session, user)

        return await self._vault.change(write)

    async def invite(self, user_id: int, *, by: Viewer, reason: str = "") -> tuple[str, str]:
        """The name of a user and the token of a new login link for them; earlier links stop working."""

        def write(session: Session) -> tuple[str, str]:
            user = _local(session, user_id)
            queries.forget_links(session, user_id)
            deed = Deed(action="user.invite", target=user.name, reason=reason)
            self._vault.trail.append(session, by.author, deed)
            return user.name, self._sessions.new_link(session, user)

        return await self._vault.change(write)

    async def set_role(self, user_id: int, role: Role, *, by: Viewer, reason: str = "") -> str:
        """Give a user another role; returns the name. Raises: Conflict for oneself and whoever starts the process."""

        def write(session: Session) -> str:
            user = _other(session, user_id, by)
            deed = Deed(
                action="user.role",
                target=user.name,
                before={"role": user.role},
                after={"role": role.value},
                reason=reason,
            )
            user.role = role.value
            self._vault.trail.append(session, by.author, deed)
            return user.name

        return await self._vault.change(write)

    async def set_disabled(self, user_id: int, *, is_disabled: bool, by: Viewer, reason: str = "") -> str:
        """Lock a user out, ending sessions, links and tokens; or let them in again. Returns the name."""

        def write(session: Session) -> str:
            user, now = _other(session, user_id, by), self._vault.clock.wall()
            user.disabled_at = now if is_disabled else None
            if is_disabled:
                queries.end_everything_of(session, user_id, now=now)
            deed = Deed(action="user.disable" if is_disabled else "user.enable", target=user.name, reason=reason)
            self._vault.trail.append(session, by.author, deed)
            return user.name

        return await self._vault.change(write)

    async def set_password(self, viewer: Viewer, *, current: str, new: str) -> None:
        """Choose one's own password; the other sessions end.

        Raises: NotAuthenticated when `current` is wrong; InvalidInput for a `new` one that cannot be one.
        """
        user = await self._vault.database.look(lambda session: session.get_one(User, viewer.user_id))
        if user.identity is not None:
            raise Conflict("you log in through a provider: change the password there")
        if user.password_hash is not None and not await self._passwords.is_right(user.password_hash, current):
            raise NotAuthenticated("the current password is wrong")
        password_hash = await self._passwords.hashed(new)

        def write(session: Session) -> None:
            session.get_one(User, viewer.user_id).password_hash = password_hash
            queries.end_sessions_of(session, viewer.user_id, now=self._vault.clock.wall(), but=viewer.session)
            self._vault.trail.append(session, viewer.author, Deed(action="user.password", target=viewer.name))

        await self._vault.change(write)


def _local(session: Session, user_id: int) -> User:
    user = session.get(User, user_id)
    if user is None or user.identity is not None:
        raise Conflict("there is no such local user")
    if user.disabled_at is not None:
        raise Conflict(f"{user.name} is locked out: let them in first")
    return user


def _other(session: Session, user_id: int, by: Viewer) -> User:
    user = session.get(User, user_id)
    if user is None:
        raise Conflict("there is no such user")
    if user.name == ADMIN:
        raise Conflict(f"{ADMIN} is whoever starts the process, and stays what it is")
    if user_id == by.user_id:
        raise Conflict("nobody changes their own rights: ask another admin")
    return user
