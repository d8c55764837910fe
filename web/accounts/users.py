"""Users, with their roles and passwords."""

import asyncio
import re
from collections.abc import Sequence

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from sqlmodel import Session

from astraflow.contract.errors import Conflict, InvalidInput, NotAuthenticated
from web.accounts import queries
from web.accounts.queries import AccountStore
from web.accounts.sessions import ADMIN, Sessions
from web.accounts.viewer import Viewer
from web.database.tables import User
from web.security.audit_log import AuditedCommand, Author
from web.security.problems import NotFound
from web.security.roles import Role

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
"""Names of local users; those from a provider contain a colon, so that neither can imitate the other."""


class Users:
    """Reads and changes users. Every change takes effect with the next request and is audited."""

    def __init__(self, store: AccountStore, sessions: Sessions) -> None:
        self._store = store
        self._sessions = sessions
        self._passwords = Passwords()

    async def all(self) -> Sequence[User]:
        """All users, by name."""
        return await self._store.database.read(queries.users)

    async def user(self, user_id: int) -> User:
        """The user with this id. Raises: NotFound."""
        return await self._store.database.read(lambda session: _user(session, user_id))

    async def admins(self) -> Sequence[str]:
        """Names of enabled admins, who can grant roles."""
        return [user.name for user in await self.all() if user.role == Role.ADMIN.value and user.disabled_at is None]

    async def log_in(self, name: str, password: str, *, came_from: str, browser: str) -> str:
        """Opens a session for a name and its password; returns the cookie's value.

        Raises: NotAuthenticated, with the same message for every cause.
        """
        user = await self._store.database.read(lambda session: queries.user_named(session, name))
        is_correct = await self._passwords.is_correct(user.password_hash if user else None, password)
        if user is None or not is_correct or user.disabled_at is not None:
            author = Author(name="", role="", via="login", came_from=came_from)
            target = user.name if user else "(unknown user)"  # people type passwords into the wrong field
            await self._store.audit_log.write(
                author, AuditedCommand(action="session.open", target=target, result="refused")
            )
            raise NotAuthenticated(
                "cannot log in: the name or the password is wrong; check both", code="login.wrong_password"
            )
        return await self._store.database.write(
            lambda session: self._sessions.open(
                session, user, opened_by="password", came_from=came_from, browser=browser
            )
        )

    async def add(self, name: str, role: Role, *, by: Viewer, reason: str = "") -> tuple[str, str]:
        """Adds a local user; returns the name and the token of a link to log in and choose a password.

        Raises: InvalidInput for an invalid name; Conflict for a name that exists.
        """
        if not NAME.fullmatch(name):
            raise InvalidInput(
                f"cannot add the user {name[:80]!r}: invalid name; begin with a letter or digit, then up to 63 "
                "letters, digits or . _ @ + -",
                code="account.invalid_name",
            )

        def write(session: Session) -> tuple[str, str]:
            if queries.user_named(session, name) is not None:
                raise Conflict(
                    f"cannot add the user {name!r}: it exists already; choose another name", code="account.exists"
                )
            user = queries.add_user(session, name, role=role.value, now=self._store.clock.wall())
            command = AuditedCommand(action="user.add", target=name, after={"role": role.value}, reason=reason)
            self._store.audit_log.append(session, by.author, command)
            return name, self._sessions.new_link(session, user)

        return await self._store.change(write)

    async def invite(self, user_id: int, *, by: Viewer, reason: str = "") -> tuple[str, str]:
        """Creates a new login link for a user, invalidating earlier ones; returns the name and the token.

        Raises: Conflict for the admin that starts the process (its link would open a session with every permission),
        and for a disabled or external user.
        """

        def write(session: Session) -> tuple[str, str]:
            user = _local(session, user_id)
            queries.delete_links(session, user_id)
            command = AuditedCommand(action="user.invite", target=user.name, reason=reason)
            self._store.audit_log.append(session, by.author, command)
            return user.name, self._sessions.new_link(session, user)

        return await self._store.change(write)

    async def set_role(self, user_id: int, role: Role, *, by: Viewer, reason: str = "") -> str:
        """Sets the role of another user; returns a sentence. Raises: Conflict for oneself and for the admin that starts
        the process."""

        def write(session: Session) -> str:
            user = _other(session, user_id, by)
            command = AuditedCommand(
                action="user.role",
                target=user.name,
                before={"role": user.role},
                after={"role": role.value},
                reason=reason,
            )
            user.role = role.value
            self._store.audit_log.append(session, by.author, command)
            return f"{user.name} now has the role {role.value}"

        return await self._store.change(write)

    async def set_disabled(self, user_id: int, *, is_disabled: bool, by: Viewer, reason: str = "") -> str:
        """Disables a user, ending sessions, links and tokens; or enables them again. Returns a sentence."""

        def write(session: Session) -> str:
            user, now = _other(session, user_id, by), self._store.clock.wall()
            user.disabled_at = now if is_disabled else None
            if is_disabled:
                queries.end_all_access_of(session, user_id, now=now)
            command = AuditedCommand(
                action="user.disable" if is_disabled else "user.enable", target=user.name, reason=reason
            )
            self._store.audit_log.append(session, by.author, command)
            return f"{user.name} is {'disabled' if is_disabled else 'enabled'}"

        return await self._store.change(write)

    async def set_password(self, viewer: Viewer, *, current: str, new: str) -> None:
        """Sets the viewer's own password; ends the other sessions.

        Raises: NotAuthenticated if `current` is wrong; InvalidInput for an invalid `new`; Conflict for a provider's
        user.
        """
        user = await self._store.database.read(lambda session: session.get_one(User, viewer.user_id))
        if user.identity is not None:
            raise Conflict(
                "cannot change the password: you log in through a provider; change it there",
                code="account.provider_user",
            )
        if user.password_hash is not None and not await self._passwords.is_correct(user.password_hash, current):
            raise NotAuthenticated(
                "cannot change the password: the current password is wrong; check it", code="login.wrong_password"
            )
        password_hash = await self._passwords.hash_password(new)

        def write(session: Session) -> None:
            session.get_one(User, viewer.user_id).password_hash = password_hash
            queries.end_sessions_of(
                session, viewer.user_id, now=self._store.clock.wall(), except_cookie_hash=viewer.session
            )
            self._store.audit_log.append(
                session, viewer.author, AuditedCommand(action="user.password", target=viewer.name)
            )

        await self._store.change(write)


def _local(session: Session, user_id: int) -> User:
    user = _user(session, user_id)
    if user.identity is not None:
        raise Conflict(
            "cannot invite the user: it logs in through a provider; see its account there", code="account.provider_user"
        )
    if user.name == ADMIN:
        raise Conflict(
            f"cannot invite {ADMIN!r}: only the start of the process creates its login link; restart the web process",
            code="account.protected_user",
        )
    if user.disabled_at is not None:
        raise Conflict(f"cannot invite {user.name!r}: the user is disabled; enable it first", code="account.disabled")
    return user


def _user(session: Session, user_id: int) -> User:
    user = session.get(User, user_id)
    if user is None:
        raise NotFound(
            f"cannot find user {user_id}: it does not exist; reload the list of users", code="account.unknown_user"
        )
    return user


def _other(session: Session, user_id: int, by: Viewer) -> User:
    user = _user(session, user_id)
    if user.name == ADMIN:
        raise Conflict(
            f"cannot change {ADMIN!r}: this user starts the process and keeps its role", code="account.protected_user"
        )
    if user_id == by.user_id:
        raise Conflict(
            "cannot change your own rights: another admin has to do it; ask another admin", code="account.own_rights"
        )
    return user


MIN_LETTERS = 12
MAX_LETTERS = 512
MAX_CONCURRENT_HASHES = 2
"""Maximum number of concurrent hashes; further logins wait. A hash takes 64 MiB and tens of milliseconds of a core."""


class Passwords:
    """Hashes and verifies passwords off the event loop.

    Source: RFC 9106, section 4: the second recommended set of parameters, which is the library's default.
    """

    def __init__(self) -> None:
        self._hasher = PasswordHasher()
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_HASHES)
        self._dummy_hash = self._hasher.hash("dummy password")

    async def hash_password(self, password: str) -> str:
        """Returns the hash to store. Raises: InvalidInput for a password that is too short or too long."""
        if not MIN_LETTERS <= len(password) <= MAX_LETTERS:
            raise InvalidInput(
                f"cannot set the password: its length is invalid; use {MIN_LETTERS} to {MAX_LETTERS} characters, "
                "such as a sentence",
                code="account.invalid_password",
            )
        async with self._slots:
            return await asyncio.to_thread(self._hasher.hash, password)

    async def is_correct(self, stored: str | None, password: str) -> bool:
        """Returns whether a password is correct. It takes equally long for unknown users, to reveal no user names."""
        if len(password) > MAX_LETTERS:
            return False
        async with self._slots:
            return await asyncio.to_thread(self._matches, stored or self._dummy_hash, password) and stored is not None

    def _matches(self, stored: str, password: str) -> bool:
        try:
            return self._hasher.verify(stored, password)
        except (VerificationError, InvalidHashError):
            return False
