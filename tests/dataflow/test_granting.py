"""Minting and revoking over gRPC: every caller role, bound to a pool or not, with every role to grant."""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from astraflow.access.authority import new_request
from astraflow.access.callers import Caller, Role
from astraflow.access.credentials import CredentialSigner, new_id
from astraflow.client.control_plane import ControlPlaneClient
from astraflow.client.data_plane import NodeDataClient
from astraflow.contract.errors import InvalidInput, NotAuthenticated, NotPermitted
from astraflow.contract.ids import FlowId
from astraflow.contract.plugins import PluginChange, PluginSlot
from astraflow.contract.records import render
from astraflow.contract.reports.queries import EventQuery
from astraflow.dataflow.admission.filters import filters
from astraflow.runtime.plugins import load_plugin_file
from astraflow.wire.channel import dial
from tests.access.test_grants import ANYWHERE, WITH_POOL
from tests.dataflow.running import TOKEN, config, opened
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


FILTER = """
from astraflow.dataflow.admission.filters import filters
from astraflow.dataflow.admission.filters.keep_all import KeepAll, KeepAllOptions

filters.register("from_a_file", options=KeepAllOptions)(KeepAll)
"""


@pytest.fixture
def plugin_file(tmp_path: Path) -> Iterator[Path]:
    """File that registers a filter; the process forgets it after the test."""
    path = tmp_path / f"filter_of_{tmp_path.name}.py"
    path.write_text(FILTER)
    yield path
    forget(path)


def forget(path: Path) -> None:
    """Makes the process as it was before it loaded the file."""
    filters._registered.pop("from_a_file", None)
    sys.modules.pop(path.stem, None)


def filters_of(file: Path | str) -> PluginChange:
    return PluginChange(
        flow=FlowId("train-solver"), filters=({"kind": "from_a_file"},), file=str(file), actor="ada", reason="a try"
    )


async def test_only_an_operator_and_the_run_token_load_a_plugin_file(tmp_path: Path, plugin_file: Path) -> None:
    async with dataflow(tmp_path / "run") as service:
        for role in (Role.NODE, Role.TRAINER, Role.VIEWER, Role.AGENT, Role.PAGE):
            async with called(service, role, "") as control:
                with pytest.raises(NotPermitted):
                    await control.change_plugins(filters_of(plugin_file))
        assert "from_a_file" not in filters._registered
        for role in (Role.OPERATOR, Role.ADMIN):
            async with called(service, role, "") as control:
                assert "filters of flows.train-solver" in await control.change_plugins(filters_of(plugin_file))
        assert (await service.control.report()).flows[0].filters == ({"kind": "from_a_file"},)
        events = (await service.control.events(EventQuery())).events
        assert [render(event).split(",")[0] for event in events if event.kind.value == "plugin_file_loaded"] == [
            str(plugin_file), str(plugin_file),
        ]  # fmt: skip


async def test_a_loaded_plugin_file_is_loaded_again_after_a_restart(tmp_path: Path, plugin_file: Path) -> None:
    async with opened(tmp_path / "run", config()) as (run, journal):
        load_plugin_file(plugin_file)
        run.change_plugins(filters_of(plugin_file))
        await journal.wait_durable()
    forget(plugin_file)
    async with opened(tmp_path / "run", config()) as (run, _):
        slot = run.flows[FlowId("train-solver")].plugin_slots[PluginSlot.FILTERS]
        assert [spec["kind"] for spec in slot.specs] == ["from_a_file"]
    forget(plugin_file)
    plugin_file.unlink()
    with pytest.raises(InvalidInput) as lost:
        async with opened(tmp_path / "run", config()):
            pass
    assert lost.value.code == "plugins.cannot_restore"


async def test_a_file_that_others_can_write_or_that_ends_the_process_is_refused(
    tmp_path: Path, plugin_file: Path
) -> None:
    folder, other = tmp_path / "folder.py", tmp_path / "filter.txt"
    folder.mkdir()
    other.write_text(FILTER)
    exiting = plugin_file.with_name(f"exits_{plugin_file.name}")
    exiting.write_text("raise SystemExit(3)")
    async with dataflow(tmp_path / "run") as service:
        for file, code in (
            (folder, "plugin.file_refused"),
            (other, "plugin.file_refused"),
            ("filter.py", "plugin.file_refused"),
            (tmp_path / "absent.py", "plugin.file_refused"),
            (exiting, "plugin.not_importable"),
        ):
            with pytest.raises(InvalidInput) as refused:
                await service.control.change_plugins(filters_of(file))
            assert refused.value.code == code, file
        plugin_file.chmod(0o666)
        with pytest.raises(InvalidInput) as refused:
            await service.control.change_plugins(filters_of(plugin_file))
        assert refused.value.code == "plugin.file_refused"
        plugin_file.chmod(0o644)
        assert "filters" in await service.control.change_plugins(filters_of(plugin_file))


async def test_an_agent_of_one_pool_cannot_revoke_a_node_of_another(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service, called(service, Role.AGENT, "cpu") as control:
        credential = await service.enrolled((await service.minted()).token, new_request()[1])
        async with node(service, credential) as client:
            assert isinstance(client, NodeDataClient)
            held = (await client.join(own("n"))).node
            with pytest.raises(NotPermitted):
                await control.revoke_credential("node", "n", actor="x", reason="x")
            assert (await client.lease(held, 1, wait_s=1)).tasks
