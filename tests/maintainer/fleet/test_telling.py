"""Dataflow is told what the fleet may and would do."""

from pathlib import Path

import pytest

from astraflow.contract.advice import FleetTerms, Mode, PoolTerms
from astraflow.contract.fleet import KillScope
from maintainer.fleet.providers.base import Retry
from maintainer.fleet.telling import Teller
from tests.fakes.cloud import CloudProvider
from tests.maintainer.fleet.parts import ALICE, POOL, Parts, build, spec

pytestmark = pytest.mark.anyio


def teller(parts: Parts) -> Teller:
    return Teller(parts.fleet, parts.desk, parts.run)


async def told(parts: Parts) -> FleetTerms:
    await teller(parts).tell()
    assert parts.run.terms is not None
    return parts.run.terms


async def test_bounds_money_and_price_are_those_of_the_ledger(tmp_path: Path) -> None:
    pool = spec(mode=Mode.UP_ONLY, max_nodes=9, min_nodes=1, usd_per_hour_max=20.0, usd_per_day_max=99.0, type="large")
    parts = await build(tmp_path, pool=pool, budget={"usd_per_hour_max": 50.0, "usd_per_day_max": 500.0})
    await parts.want(2)
    parts.clock.advance(1800.0)
    said = await told(parts)
    assert said == FleetTerms(
        pools=(
            PoolTerms(
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
                dollars_today=said.dollars_today,
            ),
        ),
        dollars_per_hour_max=50.0,
        dollars_per_day_max=500.0,
        dollars_today=said.dollars_today,
    )
    assert said.dollars_today == pytest.approx(4.0)


async def test_holds_and_the_kill_switch_are_told_while_they_last(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await parts.desk.hold(POOL, minutes=5, actor=ALICE, key="h", reason="a test")
    await parts.desk.kill_switch(KillScope.AGENTS, actor=ALICE, key="a", reason="a test")
    said = await told(parts)
    assert (said.pools[0].is_held, said.is_killed) == (True, False)
    await parts.desk.kill_switch(KillScope.ALL, actor=ALICE, key="b", reason="a test")
    parts.clock.advance(301.0)
    said = await told(parts)
    assert (said.pools[0].is_held, said.is_killed) == (False, True)


async def test_a_node_knows_its_price(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await parts.want(1)
    (record,) = parts.ledger.alive()
    assert record.launch.node.usd_per_hour == record.instance.usd_per_hour == 1.0


async def test_a_price_that_cannot_be_had_is_that_of_the_latest_machine(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await parts.want(1)
    broken = Unpriced(parts.cloud)
    parts.fleet.providers["cloud"] = broken  # type: ignore[index]  # a dict, in tests
    assert (await told(parts)).pools[0].price_per_hour == 1.0


async def test_a_dataflow_that_is_away_is_told_the_next_time(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    one = teller(parts)
    parts.run.is_away = True
    await one.tell()
    assert parts.run.terms is None
    parts.run.is_away = False
    await one.tell()
    assert parts.run.terms is not None


class Unpriced(CloudProvider):
    """A cloud that tells no prices now."""

    async def quote(self, spec: object) -> object:  # type: ignore[override]
        raise Retry("throttled")
