"""Roles that may mint and revoke credentials of each role: the whole matrix, written out by hand."""

import pytest

from astraflow.access.callers import Caller, Role, check_grant
from astraflow.contract.errors import NotPermitted

ANYWHERE: dict[Role, str] = {
    Role.JOINER: "",
    Role.NODE: "",
    Role.TRAINER: "",
    Role.VIEWER: "",
    Role.PAGE: "",
    Role.AGENT: "node",
    Role.OPERATOR: "node viewer agent operator",
    Role.ADMIN: "node trainer viewer agent operator page",
}
"""The roles that a caller of all pools may grant."""

WITH_POOL = (Role.NODE, Role.OPERATOR, Role.AGENT)
"""Roles whose holders can be bound to a pool."""


def may(caller: Caller, role: Role, pool: str) -> bool:
    try:
        check_grant(caller, role, pool, what="mint")
    except NotPermitted:
        return False
    return True


def caller_of(role: Role, pool: str) -> Caller:
    return Caller(id="1", role=role, expires_at=2e9, name="own", pool=pool)


@pytest.mark.parametrize("role", Role)
def test_a_caller_can_grant_only_the_roles_of_its_table_row(role: Role) -> None:
    for pool in ("", "gpu"):
        granted = {candidate.value for candidate in Role if may(caller_of(role, ""), candidate, pool)}
        assert granted == set(ANYWHERE[role].split())


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.ADMIN])
def test_a_caller_of_one_pool_can_grant_in_that_pool_only(role: Role) -> None:
    bound = caller_of(role, "gpu")
    assert {role.value for role in Role if may(bound, role, "gpu")} == set(ANYWHERE[role].split())
    for elsewhere in ("", "cpu"):
        assert not [role for role in Role if may(bound, role, elsewhere)]


def test_no_role_can_grant_a_role_with_more_grants() -> None:
    for role, granted in ANYWHERE.items():
        for granted_role in granted.split():
            assert set(ANYWHERE[Role(granted_role)].split()) <= set(granted.split()), (role, granted_role)
