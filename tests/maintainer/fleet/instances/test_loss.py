"""Fault injection: admins make simulated machines fail, and the journal records it."""

from pathlib import Path

import pytest

from astraflow.contract.errors import Conflict, InvalidInput, NotPermitted
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.records import render_summary
from maintainer.fleet.providers.base import Provider
from tests.errors import raises_code
from tests.fakes.cloud import Cloud, CloudProvider
from tests.maintainer.fleet.parts import ALICE, HAL, OTTO, POOL, Parts, build

pytestmark = pytest.mark.anyio


class Unbreakable:
    """Provider without fault injection, as with real machines."""

    def __init__(self, cloud: Cloud) -> None:
        inner = CloudProvider(cloud)
        for name in ("launch", "retire", "list", "describe", "capabilities", "quote", "close"):
            setattr(self, name, getattr(inner, name))


def unbreakable(cloud: Cloud) -> Provider:
    return Unbreakable(cloud)  # type: ignore[return-value]  # `setattr` sets its methods


async def working(tmp_path: Path, nodes: int) -> Parts:
    parts = await build(tmp_path)
    await parts.want(nodes)
    await parts.pass_time(60.0)
    assert parts.states() == {"ready": nodes}
    return parts


@pytest.mark.long
async def test_a_fault_terminates_a_share_of_the_nodes_which_are_replaced(tmp_path: Path) -> None:
    parts = await working(tmp_path, 10)
    loss = await parts.faults.inject(POOL, share=0.3, actor=ALICE, key="k", reason="a drill")
    assert len(loss.lost) == 3
    assert not [launch for launch in loss.lost if parts.cloud.find(launch)]
    assert loss.decision.kind.value == "fault"
    assert "3 of 10" in render_summary(loss.decision)
    await parts.pass_time(240.0)
    assert parts.states() == {"ready": 10}
    assert not set(loss.lost) & {record.id for record in parts.ledger.alive()}


async def test_a_repeated_fault_with_one_key_terminates_no_further_nodes(tmp_path: Path) -> None:
    parts = await working(tmp_path, 10)
    loss = await parts.faults.inject(POOL, share=0.2, actor=ALICE, key="k", reason="a drill")
    assert await parts.faults.inject(POOL, share=0.2, actor=ALICE, key="k", reason="a drill") == loss
    assert len(parts.cloud.alive()) == 8
    with raises_code(Conflict, "fleet.idempotency_key_reused", "another change"):
        await parts.faults.inject(POOL, share=0.5, actor=ALICE, key="k", reason="a drill")


async def test_a_small_share_terminates_one_node(tmp_path: Path) -> None:
    parts = await working(tmp_path, 2)
    assert len((await parts.faults.inject(POOL, share=0.01, actor=ALICE, key="k", reason="a drill")).lost) == 1


@pytest.mark.parametrize("actor", [HAL, OTTO])
async def test_only_admins_inject_faults(tmp_path: Path, actor: object) -> None:
    parts = await working(tmp_path, 2)
    with raises_code(NotPermitted, "fleet.missing_role", "role admin"):
        await parts.faults.inject(POOL, share=0.5, actor=actor, key="k", reason="a drill")  # type: ignore[arg-type]
    assert len(parts.cloud.alive()) == 2


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, float("nan")])
async def test_an_invalid_share_is_refused(tmp_path: Path, share: float) -> None:
    parts = await working(tmp_path, 2)
    with pytest.raises(InvalidInput) as caught:
        await parts.faults.inject(POOL, share=share, actor=ALICE, key="k", reason="a drill")
    assert caught.value.code == "fleet.invalid_share"


async def test_faults_are_refused_under_the_kill_switch_and_in_an_empty_pool(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    with pytest.raises(InvalidInput) as caught:
        await parts.faults.inject(POOL, share=0.5, actor=ALICE, key="k", reason="a drill")
    assert caught.value.code == "fleet.no_ready_node"
    await parts.fleet_manager.kill_switch(KillScope.ALL, actor=ALICE, key="stop", reason="enough")
    with raises_code(NotPermitted, "fleet.kill_switch", "kill switch"):
        await parts.faults.inject(POOL, share=0.5, actor=ALICE, key="k", reason="a drill")


async def test_providers_of_real_instances_do_not_inject_faults(tmp_path: Path) -> None:
    parts = await build(tmp_path, provider=unbreakable)
    await parts.want(1)
    await parts.pass_time(60.0)
    assert not parts.fleet.view(parts.fleet.pool(POOL)).can_inject_fault
    with pytest.raises(InvalidInput) as caught:
        await parts.faults.inject(POOL, share=0.5, actor=ALICE, key="k", reason="a drill")
    assert caught.value.code == "fleet.fault_injection_unsupported"
