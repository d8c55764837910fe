"""Names and leases belong to the credential that holds them: nodes of several credentials and pools, over real gRPC."""

from pathlib import Path

import pytest

from astraflow.access.authority import new_request
from astraflow.access.callers import Caller, Role
from astraflow.access.credentials import CredentialSigner, new_id
from astraflow.contract.errors import Conflict, NotPermitted
from astraflow.contract.ids import NodeId
from astraflow.contract.nodes import NodeStatus
from astraflow.runtime.retries import retry
from tests import make
from tests.dataflow.running import TOKEN
from tests.dataflow.test_joining import dataflow, node, own

pytestmark = pytest.mark.anyio


def credential(name: str, pool: str, *, origin: str = "") -> str:
    """Returns a node credential signed by the run."""
    caller = Caller(id=new_id(), role=Role.NODE, expires_at=2e10, name=name, pool=pool, issued_from=origin)
    return CredentialSigner(TOKEN).sign(caller)


async def test_a_name_in_the_registry_is_refused_to_another_credential(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service, node(service, TOKEN) as local:
        held = (await local.join(own("n", "local"))).node
        with pytest.raises(Conflict):
            await service.enrolled((await service.minted()).token, new_request()[1])
        async with node(service, credential("n", "gpu")) as thief:
            with pytest.raises(Conflict):
                await thief.join(own("n", "gpu"))
        assert (await local.lease(held, 1, wait_s=1)).tasks
        assert any("n" in event for event in await service.events("node_refused"))


async def test_calls_for_the_node_of_another_credential_are_refused_despite_an_equal_name(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service, node(service, TOKEN) as local:
        held = (await local.join(own("n", "local"))).node
        (task, *_) = (await local.lease(held, 1, wait_s=1)).tasks
        async with node(service, credential("n", "gpu")) as thief:
            for call in (
                thief.lease(held, 1, wait_s=0),
                thief.push(held, [make.episode(task.id, node=held)]),
                thief.hand_back(held, []),
                thief.heartbeat(NodeStatus(node=held, counters={}, versions={}, running=())),
                thief.leave(held, reason="mischief"),
            ):
                with pytest.raises(NotPermitted):
                    await call
        assert await local.push(held, [make.episode(task.id, node=held)]) == ("accepted",)
        assert len(await service.events("node_refused")) >= 1


async def test_a_result_counts_only_for_the_credential_that_held_the_lease(
    tmp_path: Path,
) -> None:
    async with dataflow(tmp_path) as service, node(service, TOKEN) as local:
        held = (await local.join(own("n", "local"))).node
        (task, *_) = (await local.lease(held, 1, wait_s=1)).tasks
        await local.leave(held, reason="done")
        async with node(service, credential("n", "gpu")) as other:
            own_id = (await other.join(own("n", "gpu"))).node
            assert await other.push(own_id, [make.episode(task.id, node=own_id)]) == ("late",)


@pytest.mark.long
async def test_a_node_with_a_renewed_credential_keeps_its_name_and_results(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service:
        first = await service.enrolled((await service.minted()).token, new_request()[1])
        async with node(service, first) as client:
            held = (await client.join(own("n"))).node
            (task, *_) = (await client.lease(held, 1, wait_s=1)).tasks
        renewed = await service.enrolled(first, new_request()[1])
        async with node(service, renewed) as client:
            again = (await client.join(own("n"))).node
            assert again == "n.2"
            assert await client.push(again, [make.episode(task.id, node=again)]) == ("accepted",)


@pytest.mark.long
async def test_a_new_credential_gets_a_name_after_the_old_one_left_or_was_revoked(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service:
        for number, turn in enumerate(("leave", "revoke", "last"), start=1):
            text = await service.enrolled((await service.minted()).token, new_request()[1])
            async with node(service, text) as client:
                held = (await client.join(own("n"))).node
                assert held == f"n.{number}", turn
                if turn == "leave":
                    await client.leave(held, reason="done")
                else:
                    await service.control.revoke_credential("node", "n", actor="ann", reason="over")


async def test_a_new_credential_gets_a_name_after_the_old_node_was_lost(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service:
        async with node(service, TOKEN) as local:
            await local.join(own("n", "local"))
        service.clock.ahead(6.0)
        async with node(service, credential("n", "gpu")) as client:
            joined = await retry(
                lambda: client.join(own("n", "gpu")), what="joining", give_up_after_s=20.0, retry_on=(Conflict,)
            )
            assert joined.node == NodeId("n.2")


async def test_the_run_token_can_restart_nodes_under_their_names(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as service, node(service, TOKEN) as local:
        first = (await local.join(own("n", "local"))).node
        (task, *_) = (await local.lease(first, 1, wait_s=1)).tasks
        second = (await local.join(own("n", "local"))).node
        assert await local.push(second, [make.episode(task.id, node=second)]) == ("accepted",)


@pytest.mark.parametrize("reward", [1e6, -1e6, 1000.1, 1.7e308])
async def test_a_reward_outside_the_range_of_the_flow_is_a_failure(tmp_path: Path, reward: float) -> None:
    async with dataflow(tmp_path) as service, node(service, TOKEN) as local:
        held = (await local.join(own("n", "local"))).node
        (task, other, *_) = (await local.lease(held, 2, wait_s=1)).tasks
        pushed = [make.episode(task.id, node=held, reward=reward), make.episode(other.id, node=held, reward=1000.0)]
        assert await local.push(held, pushed) == ("retried", "accepted")
        again = make.episode(task.id, node=held, attempt=1, reward=reward)
        assert await local.push(held, [again]) == ("failed_reward",)
        assert any("reward" in event for event in await service.events("push_refused"))
        report = await service.control.report()
        assert max(flow.episodes.get("failed_reward", 0) for flow in report.flows) == 1
    async with dataflow(tmp_path) as service:
        report = await service.control.report()
        assert max(flow.episodes.get("failed_reward", 0) for flow in report.flows) == 1
