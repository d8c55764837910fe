"""The stage of a case: what the rule is told there, and how providers fail."""

from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.contract.advice import Cap, Reason
from astraflow.contract.causes import Cause
from astraflow.contract.fleet import KillScope
from astraflow.contract.ids import PoolId
from maintainer.evals.cases import CASES
from maintainer.evals.cloud import WORKS_S, Machine
from maintainer.evals.stage import Stage, staged
from tests.maintainer.evals.parts import brief
from tests.maintainer.fleet.parts import ALICE

pytestmark = pytest.mark.anyio


async def test_the_rule_is_told_what_the_fleet_may_do_as_in_a_run(tmp_path: Path) -> None:
    async with staged(brief("injected-log"), tmp_path) as stage:
        await stage.tick(0.0, None)
        assert stage.cloud.terms is not None
        assert {pool.pool: pool.price_per_hour for pool in stage.cloud.terms.pools} == {"eu": 1.0, "us": 0.8}
        await stage.desk.kill_switch(KillScope.ALL, actor=ALICE, key="kill", reason="a test")
        await stage.tick(30.0, None)
        assert all(Reason.SWITCHED_OFF in advice.reasons for advice in stage.cloud.advice)


async def test_told_of_launches_that_are_refused_the_rule_orders_elsewhere_within_two_minutes(tmp_path: Path) -> None:
    async with staged(brief("injected-log", hours=0.7), tmp_path) as stage:
        course = await stage.play(None)
        failed = await stage.ledger.decisions(pool="us", before=None, limit=1000)
        first_at = min(one.at for one in failed[0] if one.kind == "launch_failed") - stage.cloud.began_at
        eu = course.pool_names.index("eu")
        before = next(one for one in course.moments if one.at_s >= first_at).pools[eu]
        moved_at = next(one.at_s for one in course.moments if one.at_s >= first_at and one.pools[eu] > before)
    assert moved_at - first_at <= 120.0


async def test_the_simulated_fleet_says_who_made_its_machines_go_as_a_real_one_does(tmp_path: Path) -> None:
    async with staged(replace(CASES["spot"], seed=1), tmp_path) as stage:
        await stage.play(None)
        gone = [one.instance for one in stage.ledger.records.values() if one.instance.cause is not None]
        drained = {launch for launch, one in _machines(stage).items() if one.is_drained}
    causes = {one.cause for one in gone}
    assert causes == {Cause.TAKEN, Cause.ORDERED}
    for one in gone:
        assert one.draining_at is not None
        assert one.cause is Cause.TAKEN or one.id in drained
    assert sum(1 for one in gone if one.cause is Cause.TAKEN) == stage.simulation.world.lost


def _machines(stage: Stage) -> dict[str, Machine]:
    return {one.launch_id: one for one in stage.cloud.machines.values()}


async def test_what_befalls_a_whole_region_the_rule_learns_type_by_type(tmp_path: Path) -> None:
    async with staged(brief("quota-gone", hours=1.0), tmp_path) as stage:
        course = await stage.play(None)
        failed = [one for one in stage.ledger.records.values() if one.instance.pool != PoolId("eu")]
        eu = course.pool_names.index("eu")
        before = course.moments[0].pools[eu]
        moved_s = next((one.at_s for one in course.moments if one.pools[eu] > before), stage.ends_s)
    tried = {one.instance.pool for one in failed if one.instance.intended_at - stage.cloud.began_at < moved_s}
    assert tried == {"us", "us-b", "us-c"}
    assert moved_s - 0.5 * 3600 > 600.0, "the demand has doubled long ago"


async def test_the_rule_is_not_told_of_machines_that_come_up_and_do_not_last(tmp_path: Path) -> None:
    async with staged(brief("crash-loop-image", hours=1.0), tmp_path) as stage:
        await stage.play(None)
        ours = [one.instance for one in stage.ledger.records.values() if one.instance.pool == PoolId("us")]
        lives = [one.gone_at - one.ready_at for one in ours if one.gone_at is not None and one.ready_at is not None]
        terms = next(pool for pool in stage.cloud.terms.pools if pool.pool == "us") if stage.cloud.terms else None
        caps = [cap for advice in stage.cloud.advice for cap in advice.capped_by]
    assert lives
    assert all(abs(life - WORKS_S) <= 90.0 for life in lives)
    assert terms is not None
    assert terms.failures == 0
    assert Cap.BREAKER not in caps
