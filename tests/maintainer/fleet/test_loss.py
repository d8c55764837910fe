"""Nodes fail on an admin's word, where machines only stand for some, and everybody can read that they did."""

from pathlib import Path

import pytest

from astraflow.contract.errors import Conflict, InvalidInput, NotPermitted
from astraflow.contract.fleet import KillScope
from maintainer.fleet.providers.base import Provider
from tests.fakes.cloud import Cloud, CloudProvider
from tests.maintainer.fleet.parts import ALICE, HAL, OTTO, POOL, Parts, build

pytestmark = pytest.mark.anyio


class Unbreakable:
    """A cloud whose machines are real."""

    def __init__(self, cloud: Cloud) -> None:
        inner = CloudProvider(cloud)
        for name in ("launch", "retire", "list", "describe", "capabilities", "quote", "close"):
            setattr(self, name, getattr(inner, name))


def unbreakable(cloud: Cloud) -> Provider:
    return Unbreakable(cloud)  # type: ignore[return-value]  # what it has, it has by `setattr`


async def working(tmp_path: Path, nodes: int) -> Parts:
    parts = await build(tmp_path)
    await parts.want(nodes)
    await parts.pass_time(60.0)
    assert parts.states() == {"ready": nodes}
    return parts


async def test_a_share_of_the_nodes_ends_and_is_brought_back(tmp_path: Path) -> None:
    parts = await working(tmp_path, 10)
    loss = await parts.faults.lose(POOL, share=0.3, actor=ALICE, key="k", reason="a drill")
    assert len(loss.lost) == 3
    assert not [launch for launch in loss.lost if parts.cloud.find(launch)]
    assert loss.decision.kind == "fault"
    assert loss.decision.message == "simulated fault: 3 of 10 nodes end without notice"
    await parts.pass_time(240.0)
    assert parts.states() == {"ready": 10}
    assert not set(loss.lost) & {record.id for record in parts.ledger.alive()}


async def test_the_same_key_loses_the_same_nodes_and_no_others(tmp_path: Path) -> None:
    parts = await working(tmp_path, 10)
    loss = await parts.faults.lose(POOL, share=0.2, actor=ALICE, key="k", reason="a drill")
    assert await parts.faults.lose(POOL, share=0.2, actor=ALICE, key="k", reason="a drill") == loss
    assert len(parts.cloud.alive()) == 8
    with pytest.raises(Conflict, match="another change"):
        await parts.faults.lose(POOL, share=0.5, actor=ALICE, key="k", reason="a drill")


async def test_a_small_share_is_one_node(tmp_path: Path) -> None:
    parts = await working(tmp_path, 2)
    assert len((await parts.faults.lose(POOL, share=0.01, actor=ALICE, key="k", reason="a drill")).lost) == 1


@pytest.mark.parametrize("actor", [HAL, OTTO])
async def test_it_is_for_admins(tmp_path: Path, actor: object) -> None:
    parts = await working(tmp_path, 2)
    with pytest.raises(NotPermitted, match="role admin"):
        await parts.faults.lose(POOL, share=0.5, actor=actor, key="k", reason="a drill")  # type: ignore[arg-type]
    assert len(parts.cloud.alive()) == 2


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, float("nan")])
async def test_a_share_that_is_none_is_refused(tmp_path: Path, share: float) -> None:
    parts = await working(tmp_path, 2)
    with pytest.raises(InvalidInput, match="above 0 and at most 1"):
        await parts.faults.lose(POOL, share=share, actor=ALICE, key="k", reason="a drill")


async def test_the_kill_switch_stops_it_and_so_does_an_empty_pool(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    with pytest.raises(InvalidInput, match="no node of pool eu works"):
        await parts.faults.lose(POOL, share=0.5, actor=ALICE, key="k", reason="a drill")
    await parts.desk.kill_switch(KillScope.ALL, actor=ALICE, key="stop", reason="enough")
    with pytest.raises(NotPermitted, match="kill switch"):
        await parts.faults.lose(POOL, share=0.5, actor=ALICE, key="k", reason="a drill")


async def test_real_machines_do_not_fail_on_somebodys_word(tmp_path: Path) -> None:
    parts = await build(tmp_path, provider=unbreakable)
    await parts.want(1)
    await parts.pass_time(60.0)
    assert not parts.fleet.view(parts.fleet.pool(POOL)).can_lose
    with pytest.raises(InvalidInput, match="do not fail on somebody's word"):
        await parts.faults.lose(POOL, share=0.5, actor=ALICE, key="k", reason="a drill")
