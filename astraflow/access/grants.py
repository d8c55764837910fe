"""Table of the roles that may issue and revoke access, for every interface that does so."""

from collections.abc import Mapping

from astraflow.access.callers import Caller, Role
from astraflow.contract.errors import NotPermitted

_GRANTABLE = frozenset(role for role in Role if role not in (Role.JOINER, Role.ADMIN))

GRANTS: Mapping[Role, frozenset[Role]] = {
    Role.AGENT: frozenset((Role.NODE,)),
    Role.OPERATOR: frozenset((Role.NODE, Role.VIEWER, Role.AGENT, Role.OPERATOR)),
    Role.ADMIN: _GRANTABLE,
}
"""Roles that a caller may issue join tokens for, and revoke; callers not listed may do neither. No role is above the
caller's own. Only the run token may grant trainers, which replace a policy's weights."""


def check_grant(caller: Caller, role: Role, pool: str, *, what: str) -> None:
    """Checks that a caller may issue or revoke access for `role` in `pool` (empty for all pools).

    A caller that is bound to a pool may only do so for that pool. what: `mint ...` or `revoke ...`, for the message.
    Raises: NotPermitted.
    """
    allowed = GRANTS.get(caller.role, frozenset())
    if role not in allowed:
        grantable = ", ".join(sorted(allowed_role.value for allowed_role in allowed)) or "no role"
        raise NotPermitted(
            f"cannot {what}: role {caller.role.value!r} may grant {grantable}, not {role.value!r}; "
            "use a credential of a higher role, or the run token",
            code="grant.role_not_permitted",
        )
    if caller.role is not Role.ADMIN and caller.pool not in ("", pool):
        scope = f"pool {pool[:140]!r}" if pool else "all pools"
        raise NotPermitted(
            f"cannot {what}: it is for {scope}, and the caller's credential is for pool {caller.pool!r} only; use a "
            "credential that was issued without --pool",
            code="grant.pool_not_permitted",
        )
