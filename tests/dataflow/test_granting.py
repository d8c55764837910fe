"""Minting and revoking over gRPC: every caller role, bound to a pool or not, with every role to grant."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from astraflow.access.authority import new_request
from astraflow.access.callers import Caller, Role
from astraflow.access.credentials import CredentialSigner, new_id
from astraflow.client.control_plane import ControlPlaneClient
from astraflow.client.data_plane import NodeDataClient
from astraflow.contract.errors import NotAuthenticated, NotPermitted
from astraflow.wire.channel import dial
from tests.access.test_grants import ANYWHERE, WITH_POOL
from tests.dataflow.running import TOKEN
from tests.dataflow.test_joining import MINTED, Dataflow, dataflow, node, own

pytestmark = pytest.mark.anyio

GRANTABLE = [role for role in Role if role not in (Role.JOINER, Role.ADMIN)]
CALLERS = [
    *((role, "") for role in Role if role is not Role.JOINER),
    *((role, "gpu") for role in (Role.OPERATOR, Role.AGENT)),
]


def token_request(role: Role, pool: str) -> dict[str, Any]:
    """Returns the token to request: with a name where the role has one, with a pool where it can have one."""
    name = {Role.NODE: "", Role.TRAINER: "solver"}.get(role, "someone")
    return {"role": role.value, "name": name, "pool": pool if role in WITH_POOL else "", **MINTED}


def expected(caller: Role, bound: str, role: Role, pool: str) -> bool:
    is_theirs = not bound or (role in WITH_POOL and pool == bound)
    return role.value in ANYWHERE[caller].split() and is_theirs


@asynccontextmanager
async def called(service: Dataflow, role: Role, pool: str) -> AsyncIterator[ControlPlaneClient]:
    caller = Caller(id=new_id(), role=role, expires_at=2e10, name="caller", pool=pool)
    token = TOKEN if role is Role.ADMIN else CredentialSigner(TOKEN).sign(caller)
    async with dial(service.address, token=token) as link:
        yield ControlPlaneClient(link)


@pytest.mark.parametrize(("caller", "bound"), CALLERS)
async def test_a_caller_can_mint_and_revoke_only_the_join_tokens_of_the_table(
    tmp_path: Path, caller: Role, bound: str
) -> None:
    async with dataflow(tmp_path) as service, called(service, caller, bound) as control:
        for role in GRANTABLE:
            for pool in ("gpu", "cpu") if role in WITH_POOL else ("",):
                wanted, theirs = (
                    token_request(role, pool),
                    await service.control.mint_join_token(**token_request(role, pool)),
                )
                minted = revoked = True
                try:
                    await control.mint_join_token(**wanted)
                except NotPermitted:
                    minted = False
                try:
                    await control.revoke_join_token(theirs.id, actor="x", reason="x")
                except NotPermitted:
                    revoked = False
                assert {minted, revoked} == {expected(caller, bound, role, pool)}, (role, pool)


@pytest.mark.parametrize(("caller", "bound"), CALLERS)
async def test_a_caller_can_revoke_only_credentials_that_it_may_grant(tmp_path: Path, caller: Role, bound: str) -> None:
    async with dataflow(tmp_path) as service, called(service, caller, bound) as control:
        for role in GRANTABLE:
            for pool in ("gpu", "cpu") if role in WITH_POOL else ("",):
                token = await service.control.mint_join_token(**token_request(role, pool))
                name = token_request(role, pool)["name"] or f"n-{pool}"
                credential = await service.enrolled(token.token, new_request()[1], name=name)
                revoked = True
                try:
                    await control.revoke_credential(role.value, name, actor="x", reason="x")
                except NotPermitted:
                    revoked = False
                assert revoked == expected(caller, bound, role, pool), (role, pool)
                if revoked:
                    with pytest.raises(NotAuthenticated):
                        await service.enrolled(credential, new_request()[1])
                else:
                    await service.enrolled(credential, new_request()[1])
                    await service.control.revoke_credential(role.value, name, actor="x", reason="next")


async def test_an_agent_of_one_pool_cannot_revoke_a_node_of_another(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service, called(service, Role.AGENT, "cpu") as control:
        credential = await service.enrolled((await service.minted()).token, new_request()[1])
        async with node(service, credential) as client:
            assert isinstance(client, NodeDataClient)
            held = (await client.join(own("n"))).node
            with pytest.raises(NotPermitted):
                await control.revoke_credential("node", "n", actor="x", reason="x")
            assert (await client.lease(held, 1, wait_s=1)).tasks
