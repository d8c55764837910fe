"""Grants: roles that a user or a token has on one run or pool, besides the one everywhere."""

from collections.abc import Sequence

from sqlmodel import Session

from astraflow.contract.errors import Conflict, InvalidInput
from astraflow.contract.ids import PoolId
from web.accounts import queries
from web.accounts.sessions import ADMIN
from web.accounts.vault import Vault
from web.accounts.viewer import Viewer
from web.audit.entries import Deed
from web.door.places import Place
from web.door.roles import RANKS, Role
from web.tables import ApiToken, RoleGrant, User

LONGEST_RUN = 200
MOST = 200
"""Of one user with their tokens: each is read with every request of theirs."""

GRANTED = RANKS[1:]
"""What can be granted: everybody looks at everything, so that `viewer` would give nothing."""

Holding = tuple[RoleGrant, User, ApiToken | None]
"""A grant, whose it is, and which of their tokens has it when it is a token's."""


class Grants:
    """Gives and takes them. Every change takes effect with the next request, and is in the audit."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    async def all(self) -> Sequence[Holding]:
        """Those of everybody, by user, run and pool."""
        now = self._vault.clock.wall()
        return await self._vault.database.look(lambda session: queries.granted(session, now=now))

    async def give(
        self, user_id: int, role: Role, place: Place, *, by: Viewer, token_id: int | None = None, reason: str = ""
    ) -> int:
        """Grant a role there; returns the grant's id. Another role that they have at exactly this place is replaced.

        token_id: of one of the user's tokens, which then has it instead. Raises: InvalidInput for a role or place that
        cannot be granted; Conflict for who cannot be granted anything.
        """
        place = _checked(role, place)

        def write(session: Session) -> int:
            now = self._vault.clock.wall()
            user = session.get(User, user_id, with_for_update=True)
            token = _token(session, token_id, user_id, now=now)
            if user is None:
                raise Conflict("there is no such user")
            if token is None and user_id == by.user_id:
                raise Conflict("nobody changes their own rights: ask another admin")
            if token is None and user.name == ADMIN:
                raise Conflict(f"{ADMIN} is whoever starts the process, and may everything already")
            row = queries.grant_at(session, user_id, token_id, place)
            before = {"role": row.role} if row is not None else {}
            if row is None and queries.number_of_grants(session, user_id) >= MOST:
                raise Conflict(f"{user.name} has {MOST} grants already: take some back, or give the role on the run")
            if row is None:
                row = RoleGrant(
                    user_id=user_id,
                    token_id=token_id,
                    role=role.value,
                    run=place.run,
                    pool=place.pool,
                    granted_by=by.name,
                    created_at=now,
                )
            row.role, row.granted_by, row.created_at = role.value, by.name, now
            session.add(row)
            session.flush()
            deed = Deed(
                action="grant.give",
                target=holder(user, token),
                before=before,
                after={"role": role.value, "run": place.run, "pool": place.pool},
                reason=reason,
            )
            self._vault.trail.append(session, by.author, deed)
            return queries.id_of(row)

        return await self._vault.change(write)

    async def take(self, grant_id: int, *, by: Viewer, reason: str = "") -> str:
        """Take a grant back; returns what it was, as a sentence has it. Raises: Conflict for one that is not there."""

        def write(session: Session) -> str:
            row = session.get(RoleGrant, grant_id)
            if row is None:
                raise Conflict("that grant was taken back already")
            user = session.get_one(User, row.user_id)
            token = session.get(ApiToken, row.token_id) if row.token_id is not None else None
            if token is None and row.user_id == by.user_id:
                raise Conflict("nobody changes their own rights: ask another admin")
            session.delete(row)
            place = Place(run=row.run, pool=row.pool)
            before = {"role": row.role, "run": row.run, "pool": row.pool}
            deed = Deed(action="grant.take", target=holder(user, token), before=before, reason=reason)
            self._vault.trail.append(session, by.author, deed)
            return f"taken back from {holder(user, token)}: {row.role} {place.words}"

        return await self._vault.change(write)


def holder(user: User, token: ApiToken | None) -> str:
    """Whose a grant is, in words."""
    return user.name if token is None else f"token {token.name} of {user.name}"


def _checked(role: Role, place: Place) -> Place:
    """Raises: InvalidInput for what cannot be granted."""
    run, pool = place.run.strip(), place.pool.strip()
    if role not in GRANTED:
        known = ", ".join(known.value for known in GRANTED)
        raise InvalidInput(f"everybody looks at everything: grant one of {known}, or take a grant back")
    if not run or len(run) > LONGEST_RUN or not run.isprintable():
        raise InvalidInput("a grant is on a run: give its name, as the list of runs has it")
    return Place(run=run, pool=str(PoolId(pool)) if pool else "")


def _token(session: Session, token_id: int | None, user_id: int, *, now: float) -> ApiToken | None:
    """The token that is meant; None for the user's own grant. Raises: Conflict."""
    if token_id is None:
        return None
    row = session.get(ApiToken, token_id)
    if row is None or row.user_id != user_id or not queries.is_good(row, now):
        raise Conflict("that token is revoked, has expired, or is another user's")
    return row
