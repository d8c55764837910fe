"""Name in the audit log: the credential's own, or the person's where the caller acts for people."""

import asyncio

import pytest

from astraflow.access.callers import Caller, Role, audit_actor, set_caller
from astraflow.contract.fleet.plans import Actor
from astraflow.contract.fleet.plans import Role as FleetRole
from maintainer.fleet.servicer import _acting_actor


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.JOINER])
def test_only_the_page_and_the_run_token_can_act_for_a_named_person(role: Role) -> None:
    claimed = Actor(name="ann", role=FleetRole.ADMIN)

    async def named() -> tuple[str, Actor]:
        set_caller(Caller(id="1", role=role, expires_at=2e9, name="east"))
        return audit_actor("ann"), _acting_actor(claimed)

    journal, planner = asyncio.run(named())
    if role in (Role.PAGE, Role.ADMIN):
        assert (journal, planner) == ("ann", claimed)
    else:
        assert journal == planner.name == f"{role.value} east"
        assert planner.role is not FleetRole.ADMIN
