"""Dataflow receives the fleet's constraints, prices and current cost."""

from pathlib import Path

import pytest

from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.fleet.recommendations import FleetConstraints, Mode, PoolConstraints
from maintainer.fleet.policy_sync import PolicySync
from maintainer.fleet.providers.base import RetryError
from tests.fakes.cloud import CloudProvider
from tests.maintainer.fleet.parts import ALICE, POOL, Parts, build, spec

pytestmark = pytest.mark.anyio


def teller(parts: Parts) -> PolicySync:
    return PolicySync(parts.fleet, parts.fleet_manager, parts.run)


async def synced_constraints(parts: Parts) -> FleetConstraints:
    await teller(parts).sync()
    assert parts.run.constraints is not None
    return parts.run.constraints


async def test_bounds_budgets_and_prices_come_from_the_ledger(tmp_path: Path) -> None:
    pool = spec(mode=Mode.UP_ONLY, max_nodes=9, min_nodes=1, usd_per_hour_max=20.0, usd_per_day_max=99.0, type="large")
    parts = await build(tmp_path, pool=pool, budget={"usd_per_hour_max": 50.0, "usd_per_day_max": 500.0})
    await parts.want(2)
    parts.clock.advance(1800.0)
    constraints = await synced_constraints(parts)
    assert constraints == FleetConstraints(
        pools=(
            PoolConstraints(
                pool=POOL,
                mode=Mode.UP_ONLY,
                min_nodes=1,
                max_nodes=9,
                price_per_hour=4.0,
                launch_delay_s=60.0,
                dollars_per_hour_max=20.0,
                dollars_per_day_max=99.0,
                nodes=2,
                dollars_per_hour=8.0,
                dollars_today=constraints.dollars_today,
            ),
        ),
        dollars_per_hour_max=50.0,
        dollars_per_day_max=500.0,
        dollars_today=constraints.dollars_today,
    )
    assert constraints.dollars_today == pytest.approx(4.0)


async def test_holds_and_the_kill_switch_are_sent_while_they_last(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await parts.fleet_manager.set_hold(POOL, minutes=5, actor=ALICE, key="h", reason="a test")
    await parts.fleet_manager.kill_switch(KillScope.AGENTS, actor=ALICE, key="a", reason="a test")
    constraints = await synced_constraints(parts)
    assert (constraints.pools[0].is_held, constraints.is_kill_switch_on) == (True, False)
    await parts.fleet_manager.kill_switch(KillScope.ALL, actor=ALICE, key="b", reason="a test")
    parts.clock.advance(301.0)
    constraints = await synced_constraints(parts)
    assert (constraints.pools[0].is_held, constraints.is_kill_switch_on) == (False, True)


async def test_a_node_gets_its_price(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await parts.want(1)
    (record,) = parts.ledger.alive()
    assert record.launch.node.usd_per_hour == record.instance.usd_per_hour == 1.0


async def test_an_unknown_price_is_that_of_the_latest_instance(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await parts.want(1)
    broken = Unpriced(parts.cloud)
    parts.fleet.providers["cloud"] = broken  # type: ignore[index]  # a dict in tests
    assert (await synced_constraints(parts)).pools[0].price_per_hour == 1.0


async def test_an_unreachable_dataflow_gets_the_constraints_later(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    policy_sync = teller(parts)
    parts.run.is_away = True
    await policy_sync.sync()
    assert parts.run.constraints is None
    parts.run.is_away = False
    await policy_sync.sync()
    assert parts.run.constraints is not None


class Unpriced(CloudProvider):
    """Provider whose price quotes fail."""

    async def quote(self, spec: object) -> object:  # type: ignore[override]
        raise RetryError("throttled")
