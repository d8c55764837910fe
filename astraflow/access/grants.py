"""Who may mint and revoke whose access: one table, for every interface that mints or revokes."""

from collections.abc import Mapping

from astraflow.access.callers import Caller, Role
from astraflow.contract.errors import NotPermitted

_GRANTABLE = frozenset(role for role in Role if role not in (Role.JOINER, Role.ADMIN))

GRANTS: Mapping[Role, frozenset[Role]] = {
    Role.AGENT: frozenset((Role.NODE,)),
    Role.OPERATOR: frozenset((Role.NODE, Role.VIEWER, Role.AGENT, Role.OPERATOR)),
    Role.ADMIN: _GRANTABLE,
}
"""The roles that a caller may mint join tokens for, and revoke; a caller that is missing may do neither. No role is
above the caller's own. Trainers, which replace a policy's weights, are for the run token only."""


def check_grant(caller: Caller, role: Role, pool: str, *, what: str) -> None:
    """Checks that a caller may mint or revoke access for `role` in `pool` (empty for all pools).

    A caller that is bound to a pool may only do so for that pool. what: `mint ...` or `revoke ...`, for the message.
    Raises: NotPermitted.
    """
    allowed = GRANTS.get(caller.role, frozenset())
    if role not in allowed:
        known = ", ".join(sorted(one.value for one in allowed)) or "no role"
        raise NotPermitted(
            f"cannot {what}: the role {role.value} is not for a caller of role {caller.role.value} to grant, which may "
            f"grant {known}; use a credential of a higher role, or the run token"
        )
    if caller.role is not Role.ADMIN and caller.pool not in ("", pool):
        where = f"pool {pool[:140]}" if pool else "all pools"
        raise NotPermitted(
            f"cannot {what}: it is for {where}, and the caller's credential is for pool {caller.pool} only; use a "
            "credential that was minted without --pool"
        )
