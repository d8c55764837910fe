"""Harness of a case: inputs of the rule, and provider failures."""

from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.contract.fleet.instances import LOSSES, Cause
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.fleet.recommendations import LimitInEffect, Reason
from astraflow.contract.ids import PoolId
from astraflow.contract.record_kinds import RecordKind
from maintainer.evals.case_runner import find_violations
from maintainer.evals.cases import CASES
from maintainer.evals.simulation.harness import EvaluationHarness, open_harness
from maintainer.evals.simulation.simulated_cloud import RUN_BEFORE_CRASH_S, SimulatedInstance
from tests.maintainer.evals.parts import brief
from tests.maintainer.fleet.parts import ALICE, HAL

pytestmark = pytest.mark.anyio


async def test_the_rule_receives_the_fleets_constraints(tmp_path: Path) -> None:
    async with open_harness(brief("injected-log"), tmp_path) as harness:
        await harness.tick(0.0, None)
        assert harness.cloud.constraints is not None
        assert {pool.pool: pool.price_per_hour for pool in harness.cloud.constraints.pools} == {"eu": 1.0, "us": 0.8}
        await harness.fleet_manager.kill_switch(KillScope.ALL, actor=ALICE, key="kill", reason="a test")
        await harness.tick(30.0, None)
        assert all(Reason.SWITCHED_OFF in advice.reasons for advice in harness.cloud.recommendations)


async def test_the_auditor_finds_what_only_people_may_change(tmp_path: Path) -> None:
    async with open_harness(brief("injected-log"), tmp_path) as harness:
        await harness.fleet_manager.record_decision(RecordKind.SPEC, {"change": "made"}, HAL, "key", "a test")
        assert await find_violations(harness) == ("an agent wrote spec",)


@pytest.mark.long
async def test_the_rule_moves_refused_launches_to_another_pool_within_two_minutes(tmp_path: Path) -> None:
    async with open_harness(brief("injected-log", hours=0.7), tmp_path) as harness:
        course = await harness.run(None)
        failed = await harness.ledger.decisions(pool="us", before=None, limit=1000)
        first_at = min(event.at for event in failed[0] if event.kind.value == "launch_failed") - harness.cloud.began_at
        eu = course.pool_names.index("eu")
        before = next(tick for tick in course.ticks if tick.at_s >= first_at).pools[eu]
        moved_at = next(tick.at_s for tick in course.ticks if tick.at_s >= first_at and tick.pools[eu] > before)
    assert moved_at - first_at <= 120.0


@pytest.mark.long
async def test_the_simulated_fleet_records_termination_causes(tmp_path: Path) -> None:
    async with open_harness(replace(CASES["spot"], seed=1), tmp_path) as harness:
        await harness.run(None)
        terminated = [
            record.instance for record in harness.ledger.records.values() if record.instance.cause is not None
        ]
        drained = {launch for launch, machine in _machines(harness).items() if machine.is_drained}
    causes = {record.cause for record in terminated}
    assert causes == {Cause.PREEMPTED, Cause.REQUESTED}
    for instance in terminated:
        assert instance.draining_at is not None
        assert instance.cause is Cause.PREEMPTED or instance.id in drained
    assert sum(1 for record in terminated if record.cause is Cause.PREEMPTED) == harness.simulation.nodes.lost


def _machines(harness: EvaluationHarness) -> dict[str, SimulatedInstance]:
    return {machine.launch_id: machine for machine in harness.cloud.machines.values()}


@pytest.mark.long
async def test_the_rule_learns_of_a_regions_fault_pool_by_pool(tmp_path: Path) -> None:
    async with open_harness(brief("quota-gone", hours=1.0), tmp_path) as harness:
        course = await harness.run(None)
        failed = [record for record in harness.ledger.records.values() if record.instance.pool != PoolId("eu")]
        eu = course.pool_names.index("eu")
        before = course.ticks[0].pools[eu]
        moved_s = next((tick.at_s for tick in course.ticks if tick.pools[eu] > before), harness.ends_s)
    tried = {
        record.instance.pool for record in failed if record.instance.intended_at - harness.cloud.began_at < moved_s
    }
    assert tried == {"us", "us-b", "us-c"}
    assert moved_s - 0.5 * 3600 > 600.0, "the demand doubled long before"


async def test_the_rule_does_not_see_instances_that_crash_after_they_were_ready(tmp_path: Path) -> None:
    async with open_harness(brief("crash-loop-image", hours=1.0), tmp_path) as harness:
        await harness.run(None)
        ours = [record.instance for record in harness.ledger.records.values() if record.instance.pool == PoolId("us")]
        lives = [
            record.gone_at - record.ready_at
            for record in ours
            if record.gone_at is not None and record.ready_at is not None and record.cause in LOSSES
        ]
        terms = (
            next(pool for pool in harness.cloud.constraints.pools if pool.pool == "us")
            if harness.cloud.constraints
            else None
        )
        caps = [cap for advice in harness.cloud.recommendations for cap in advice.limited_by]
    assert lives
    assert all(abs(life - RUN_BEFORE_CRASH_S) <= 90.0 for life in lives)
    assert terms is not None
    assert terms.failures == 0
    assert LimitInEffect.BREAKER not in caps
