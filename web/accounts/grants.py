"""Grants: roles that a user or a token has on one run or pool, in addition to the global role."""

from collections.abc import Sequence

from sqlmodel import Session

from astraflow.contract.errors import Conflict, InvalidInput
from astraflow.contract.ids import PoolId
from web.accounts import queries
from web.accounts.queries import AccountStore
from web.accounts.sessions import ADMIN
from web.accounts.viewer import Viewer
from web.database.tables import ApiToken, RoleGrant, User
from web.security.audit_log import AuditedCommand
from web.security.problems import NotFound
from web.security.roles import ROLES_BY_RANK, Resource, Role

MAX_RUN_NAME_LETTERS = 200
MAX_GRANTS = 200
"""Maximum grants of a user and their tokens: all are read with every request of that user."""

GRANTABLE_ROLES = ROLES_BY_RANK[1:]
"""Roles that can be granted; `viewer` gives nothing, because every user may view everything."""

HeldGrant = tuple[RoleGrant, User, ApiToken | None]
"""Grant, its user, and the token that holds it (None for the user's own grant)."""


class Grants:
    """Gives and revokes grants. Every change takes effect with the next request and is audited."""

    def __init__(self, store: AccountStore) -> None:
        self._store = store

    async def all(self) -> Sequence[HeldGrant]:
        """All grants, by user, run and pool."""
        now = self._store.clock.wall()
        return await self._store.database.read(lambda session: queries.granted(session, now=now))

    async def grant(
        self, user_id: int, role: Role, resource: Resource, *, by: Viewer, token_id: int | None = None, reason: str = ""
    ) -> int:
        """Grants a role on a run or pool; returns the grant's id. Replaces another role on exactly this resource.

        token_id: token of the user that receives the grant instead. Raises: InvalidInput for an invalid role or
        resource; Conflict if the user or token cannot receive it.
        """
        resource = _checked(role, resource)

        def write(session: Session) -> int:
            now = self._store.clock.wall()
            user = session.get(User, user_id, with_for_update=True)
            token = _token(session, token_id, user_id, now=now)
            if user is None:
                raise NotFound("cannot grant the role: unknown user; reload the page", code="account.unknown_user")
            if token is None and user_id == by.user_id:
                raise Conflict(
                    "cannot change your own rights: another admin has to do it; ask another admin",
                    code="account.own_rights",
                )
            if token is None and user.name == ADMIN:
                raise Conflict(
                    f"cannot grant {ADMIN!r} a role: this user starts the process and has every permission already",
                    code="account.protected_user",
                )
            row = queries.find_grant(session, user_id, token_id, resource)
            before = {"role": row.role} if row is not None else {}
            if row is None and queries.count_grants(session, user_id) >= MAX_GRANTS:
                raise Conflict(
                    f"cannot grant {user.name!r} a role: {MAX_GRANTS} grants exist; revoke some, or grant on the run",
                    code="grant.too_many",
                )
            if row is None:
                row = RoleGrant(
                    user_id=user_id,
                    token_id=token_id,
                    role=role.value,
                    run=resource.run,
                    pool=resource.pool,
                    granted_by=by.name,
                    created_at=now,
                )
            row.role, row.granted_by, row.created_at = role.value, by.name, now
            session.add(row)
            session.flush()
            command = AuditedCommand(
                action="grant.create",
                target=describe_holder(user, token),
                before=before,
                after={"role": role.value, "run": resource.run, "pool": resource.pool},
                reason=reason,
            )
            self._store.audit_log.append(session, by.author, command)
            return queries.id_of(row)

        return await self._store.change(write)

    async def revoke(self, grant_id: int, *, by: Viewer, reason: str = "") -> str:
        """Revokes a grant; returns a sentence about it. Raises: NotFound; Conflict for the own rights."""

        def write(session: Session) -> str:
            row = session.get(RoleGrant, grant_id)
            if row is None:
                raise NotFound("cannot revoke the grant: it was revoked already; reload the page", code="grant.unknown")
            user = session.get_one(User, row.user_id)
            token = session.get(ApiToken, row.token_id) if row.token_id is not None else None
            if token is None and row.user_id == by.user_id:
                raise Conflict(
                    "cannot change your own rights: another admin has to do it; ask another admin",
                    code="account.own_rights",
                )
            session.delete(row)
            resource = Resource(run=row.run, pool=row.pool)
            before = {"role": row.role, "run": row.run, "pool": row.pool}
            command = AuditedCommand(
                action="grant.revoke", target=describe_holder(user, token), before=before, reason=reason
            )
            self._store.audit_log.append(session, by.author, command)
            return f"revoked from {describe_holder(user, token)}: {row.role} {resource.description}"

        return await self._store.change(write)


def describe_holder(user: User, token: ApiToken | None) -> str:
    """Holder of a grant, for people."""
    return user.name if token is None else f"token {token.name} of {user.name}"


def _checked(role: Role, resource: Resource) -> Resource:
    """Validated resource. Raises: InvalidInput."""
    run, pool = resource.run.strip(), resource.pool.strip()
    if role not in GRANTABLE_ROLES:
        roles = ", ".join(role.value for role in GRANTABLE_ROLES)
        raise InvalidInput(
            f"cannot grant the role {role.value!r}: every user has it; grant {roles}, or revoke a grant",
            code="grant.invalid_role",
        )
    if not run or len(run) > MAX_RUN_NAME_LETTERS or not run.isprintable():
        raise InvalidInput(
            f"cannot grant a role on the run {run[:80]!r}: invalid name; use a name of the list of runs",
            code="grant.invalid_run",
        )
    return Resource(run=run, pool=str(PoolId(pool)) if pool else "")


def _token(session: Session, token_id: int | None, user_id: int, *, now: float) -> ApiToken | None:
    """Token that receives the grant; None for the user's own. Raises: Conflict."""
    if token_id is None:
        return None
    row = session.get(ApiToken, token_id)
    if row is None or row.user_id != user_id or not queries.is_valid(row, now):
        raise Conflict(
            "cannot use the token: it is revoked, expired, or belongs to another user; choose another token",
            code="grant.token_invalid",
        )
    return row
