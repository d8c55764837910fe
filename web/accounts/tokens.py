"""Personal API tokens: what a program shows instead of a session."""

import secrets
from collections.abc import Sequence

from sqlmodel import Session

from astraflow.contract.errors import Conflict, InvalidInput
from web.accounts import queries
from web.accounts.vault import Vault
from web.accounts.viewer import Viewer
from web.audit.entries import Deed
from web.door.places import Grant
from web.door.roles import MAY, Role
from web.tables import ApiToken, User

PREFIX = "astraflow_pat_"
"""Begins every token, so that people and scanners know one when they see it."""

LONGEST_DAYS = 366
LONGEST_NAME = 60
MOST = 50
DAY_S = 86400.0


class Tokens:
    """Makes tokens, recognises them, and ends them."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    async def make(self, viewer: Viewer, *, name: str, scope: Role, days: int, reason: str = "") -> tuple[int, str]:
        """The id of a new token, and the token: it is shown this once and never stored.

        Raises: InvalidInput for a name, scope or life that cannot be; Conflict when there are too many.
        """
        name = name.strip()
        if not name or len(name) > LONGEST_NAME or not name.isprintable():
            raise InvalidInput(f"a token has a name of up to {LONGEST_NAME} characters that says what it is for")
        if not 1 <= days <= LONGEST_DAYS:
            raise InvalidInput(f"a token is good for 1 to {LONGEST_DAYS} days")
        if not MAY[scope] <= MAY[viewer.most]:
            raise InvalidInput(f"a token of {viewer.name} cannot have the scope {scope.value}: the role is less")
        token, now = PREFIX + secrets.token_urlsafe(32), self._vault.clock.wall()

        def write(session: Session) -> int:
            if len(queries.tokens(session, now=now, user_id=viewer.user_id)) >= MOST:
                raise Conflict(f"you have {MOST} tokens already: revoke one that is not used")
            row = ApiToken(
                token_hash=self._vault.digest(token),
                user_id=viewer.user_id,
                name=name,
                scope=scope.value,
                created_at=now,
                expires_at=now + days * DAY_S,
            )
            session.add(row)
            session.flush()
            deed = Deed(action="token.make", target=name, after={"scope": scope.value, "days": days}, reason=reason)
            self._vault.trail.append(session, viewer.author, deed)
            return queries.id_of(row)

        return await self._vault.change(write), token

    async def viewer(self, token: str, *, came_from: str) -> Viewer | None:
        """Who acts with this token; None when it is none (any more)."""
        if not token.startswith(PREFIX):
            return None
        digest, now = self._vault.digest(token), self._vault.clock.wall()

        def read(session: Session) -> tuple[ApiToken, User, tuple[Grant, ...], tuple[Grant, ...]] | None:
            found = queries.token_user(session, digest, now=now)
            if found is None:
                return None
            row, user = found
            user_id = queries.id_of(user)
            return row, user, queries.grants_of(session, user_id), queries.grants_of(session, user_id, token_id=row.id)

        found = await self._vault.database.look(read)
        if found is None:
            return None
        row, user, grants, scope_grants = found
        role, scope = Role.named(user.role), Role.named(row.scope)
        if role is None or scope is None:
            return None
        return Viewer(
            user_id=queries.id_of(user),
            name=user.name,
            role=role,
            scope=scope,
            grants=grants,
            scope_grants=scope_grants,
            via=f"token {row.name}",
            came_from=came_from,
            ends_at=row.expires_at,
        )

    async def of(self, viewer: Viewer, *, of_all: bool) -> Sequence[tuple[ApiToken, User]]:
        """Tokens that are good, the viewer's or everybody's, newest first."""
        now, user_id = self._vault.clock.wall(), None if of_all else viewer.user_id
        return await self._vault.database.look(lambda session: queries.tokens(session, now=now, user_id=user_id))

    async def revoke(self, token_id: int, *, by: Viewer, of_all: bool, reason: str = "") -> str:
        """End a token, the viewer's own or, with `of_all`, anybody's; returns its name. Raises: Conflict."""

        def write(session: Session) -> str:
            row = session.get(ApiToken, token_id)
            if row is None or (row.user_id != by.user_id and not of_all) or row.revoked_at is not None:
                raise Conflict("that token is revoked already, or is none that you may revoke")
            row.revoked_at = self._vault.clock.wall()
            owner = session.get_one(User, row.user_id).name
            deed = Deed(action="token.revoke", target=row.name, before={"owner": owner}, reason=reason)
            self._vault.trail.append(session, by.author, deed)
            return row.name

        return await self._vault.change(write)
