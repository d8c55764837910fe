"""Personal API tokens: credentials of programs."""

import secrets
from collections.abc import Sequence

from sqlmodel import Session

from astraflow.contract.errors import Conflict, InvalidInput
from web.accounts import queries
from web.accounts.queries import AccountStore
from web.accounts.viewer import Viewer
from web.database.tables import ApiToken, User
from web.security.audit_log import AuditedCommand
from web.security.problems import NotFound
from web.security.roles import ROLE_PERMISSIONS, Grant, Permission, Role

PREFIX = "astraflow_pat_"
"""Prefix of every token, by which people and scanners recognise one."""

MAX_DAYS = 366
MAX_NAME_LETTERS = 60
MAX_TOKENS = 50
DAY_S = 86400.0


class Tokens:
    """Creates, verifies and revokes tokens."""

    def __init__(self, store: AccountStore) -> None:
        self._store = store

    async def create(self, viewer: Viewer, *, name: str, scope: Role, days: int, reason: str = "") -> tuple[int, str]:
        """Creates a token; returns its id and its value, which is shown once and never stored.

        Raises: InvalidInput for an invalid name, scope or validity; Conflict if there are too many.
        """
        name = name.strip()
        if not name or len(name) > MAX_NAME_LETTERS or not name.isprintable():
            raise InvalidInput(
                f"cannot create the token: invalid name {name[:80]!r}; use 1 to {MAX_NAME_LETTERS} characters",
                code="token.invalid_name",
            )
        if not 1 <= days <= MAX_DAYS:
            raise InvalidInput(
                f"cannot create the token: {days} days are out of range; use 1 to {MAX_DAYS}",
                code="token.invalid_validity",
            )
        if not ROLE_PERMISSIONS[scope] <= ROLE_PERMISSIONS[viewer.highest_role]:
            raise InvalidInput(
                f"cannot create the token: {viewer.name} lacks the permissions of {scope.value!r}; use a lower scope",
                code="token.invalid_scope",
            )
        token, now = PREFIX + secrets.token_urlsafe(32), self._store.clock.wall()

        def write(session: Session) -> int:
            if len(queries.tokens(session, now=now, user_id=viewer.user_id)) >= MAX_TOKENS:
                raise Conflict(
                    f"cannot create the token: you have {MAX_TOKENS} already; revoke one that is not used",
                    code="token.too_many",
                )
            row = ApiToken(
                token_hash=self._store.digest(token),
                user_id=viewer.user_id,
                name=name,
                scope=scope.value,
                created_at=now,
                expires_at=now + days * DAY_S,
            )
            session.add(row)
            session.flush()
            command = AuditedCommand(
                action="token.create", target=name, after={"scope": scope.value, "days": days}, reason=reason
            )
            self._store.audit_log.append(session, viewer.author, command)
            return queries.id_of(row)

        return await self._store.change(write), token

    async def viewer(self, token: str, *, came_from: str) -> Viewer | None:
        """Viewer with this token; None if the token is invalid."""
        if not token.startswith(PREFIX):
            return None
        digest, now = self._store.digest(token), self._store.clock.wall()

        def read(session: Session) -> tuple[ApiToken, User, tuple[Grant, ...], tuple[Grant, ...]] | None:
            token_and_user = queries.token_user(session, digest, now=now)
            if token_and_user is None:
                return None
            row, user = token_and_user
            user_id = queries.id_of(user)
            return row, user, queries.grants_of(session, user_id), queries.grants_of(session, user_id, token_id=row.id)

        row = await self._store.database.read(read)
        if row is None:
            return None
        token_row, user, grants, scope_grants = row
        role, scope = Role.parse(user.role), Role.parse(token_row.scope)
        if role is None or scope is None:
            return None
        return Viewer(
            user_id=queries.id_of(user),
            name=user.name,
            role=role,
            scope=scope,
            grants=grants,
            scope_grants=scope_grants,
            via=f"token {token_row.name}",
            came_from=came_from,
            ends_at=token_row.expires_at,
        )

    async def list_for(self, viewer: Viewer) -> Sequence[tuple[ApiToken, User]]:
        """Valid tokens of the viewer, for admins of all users, newest first."""
        now, user_id = self._store.clock.wall(), None if viewer.may(Permission.ADMINISTER) else viewer.user_id
        return await self._store.database.read(lambda session: queries.tokens(session, now=now, user_id=user_id))

    async def revoke(self, token_id: int, *, by: Viewer, reason: str = "") -> str:
        """Revokes a token: the viewer's own or, for admins, any; returns a sentence. Raises: NotFound."""

        def write(session: Session) -> str:
            row = session.get(ApiToken, token_id)
            if row is None or not by.may_end_access_of(row.user_id) or row.revoked_at is not None:
                raise NotFound(
                    "cannot revoke the token: it is revoked already, or belongs to another user; reload the page",
                    code="token.unknown",
                )
            row.revoked_at = self._store.clock.wall()
            owner = session.get_one(User, row.user_id).name
            command = AuditedCommand(action="token.revoke", target=row.name, before={"owner": owner}, reason=reason)
            self._store.audit_log.append(session, by.author, command)
            return f"token {row.name} revoked"

        return await self._store.change(write)
