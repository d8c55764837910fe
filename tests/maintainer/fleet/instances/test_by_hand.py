"""Manually joined nodes count for the rule and the fleet service: neither launches instances in their place."""

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.contract.fleet.plans import PlanRequest
from astraflow.contract.fleet.recommendations import Mode
from maintainer.fleet.ledger.ledger import Changes
from maintainer.fleet.state.observation import TargetRecommendation
from tests.maintainer.fleet.parts import ALICE, POOL, build, spec

pytestmark = pytest.mark.anyio

ENOUGH_S = 200.0
"""Time for many rule evaluations and the boot of all requested instances. Seconds."""


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(
    by_hand=st.integers(0, 4),
    machines=st.integers(0, 4),
    advised=st.integers(0, 10),
    is_what_there_is=st.booleans(),
    mode=st.sampled_from([Mode.ON, Mode.UP_ONLY]),
    bounds=st.tuples(st.integers(0, 3), st.integers(4, 8)),
)
def test_any_mix_of_nodes_settles_at_the_target(
    by_hand: int, machines: int, advised: int, is_what_there_is: bool, mode: Mode, bounds: tuple[int, int]
) -> None:
    """is_what_there_is: the rule recommends the current number of nodes, as a sizer without a change does."""

    async def scenario(folder: Path) -> None:
        least, most = bounds
        parts = await build(folder, pool=spec(mode=Mode.OFF, min_nodes=0, max_nodes=10))
        if machines:
            await parts.want(machines)
        await parts.pass_time(ENOUGH_S)
        parts.run.by_hand = [f"hand-{number}" for number in range(by_hand)]
        parts.fleet.observation.update(parts.run.report())
        known = parts.fleet.pool(POOL)
        changed = replace(known, spec=replace(known.spec, mode=mode, min_nodes=least, max_nodes=most))
        await parts.ledger.change(lambda _: (Changes(pools=(changed,)), None))
        wanted = by_hand + machines if is_what_there_is else advised
        for _ in range(3):
            target = len(parts.run.report().nodes) if is_what_there_is else advised
            parts.targets[POOL] = TargetRecommendation(target=target, reason="the rule")
            await parts.pass_time(ENOUGH_S)
        within = min(max(wanted, least), most)
        resting = max(within, by_hand, by_hand + machines if mode is Mode.UP_ONLY else 0)
        if machines and resting == by_hand:  # the guard refuses to retire the last working machine automatically
            resting += machines
        assert by_hand + sum(parts.states().values()) == resting
        applied = len(parts.ledger.records)
        await parts.pass_time(ENOUGH_S)
        assert len(parts.ledger.records) == applied

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(scenario(Path(folder)))


async def test_a_plan_counts_manually_joined_nodes_and_launches_the_rest(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    parts.run.by_hand = ["hand"]
    parts.fleet.observation.update(parts.run.report())
    plan = await parts.fleet_manager.plans.make(PlanRequest(pool=POOL, actor=ALICE, reason="a test", target=3))
    assert (plan.nodes, plan.target, plan.launches) == (1, 3, 2)


async def test_nothing_is_launched_before_the_first_report(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    parts.run.by_hand = ["hand"]
    parts.fleet.observation.update(parts.run.report())
    await parts.want(2)
    await parts.pass_time(ENOUGH_S)
    assert parts.states() == {"ready": 1}
    again = await build(tmp_path, cloud=parts.cloud, database=parts.database, clock=parts.clock, run=parts.run, seed=1)
    again.run.is_away = True
    await again.pass_time(ENOUGH_S)
    assert again.states() == {"ready": 1}


async def test_a_complete_run_gets_no_new_instances(tmp_path: Path) -> None:
    parts = await build(tmp_path, pool=spec(min_nodes=2))
    parts.targets[POOL] = TargetRecommendation(target=2, reason="the rule")
    await parts.pass_time(ENOUGH_S)
    parts.run.is_complete = True
    for machine in parts.cloud.alive():
        parts.cloud.end(machine, after_s=0.0)
    await parts.pass_time(ENOUGH_S)
    assert parts.states() == {}


async def test_a_manually_joined_node_that_leaves_is_not_replaced(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await parts.want(2)
    await parts.pass_time(ENOUGH_S)
    parts.run.by_hand = ["hand"]
    await parts.pass_time(ENOUGH_S)
    parts.run.by_hand = []
    await parts.pass_time(ENOUGH_S)
    assert parts.states() == {"ready": 2}
