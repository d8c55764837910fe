"""Pools in automatic modes follow the rule within their bounds; other pools do not."""

from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.contract.fleet.plans import PlanRequest
from astraflow.contract.fleet.recommendations import Mode, PoolRecommendation, Reason
from astraflow.contract.ids import NodeId
from astraflow.contract.records import render_cause
from maintainer.fleet.changes import plans
from maintainer.fleet.changes.follower import REPLACEMENT_REASON, START_REASON
from maintainer.fleet.state.observation import TargetRecommendation, reported_recommendations
from tests import make
from tests.maintainer.fleet.parts import ALICE, POOL, Parts, build, spec

pytestmark = pytest.mark.anyio


def advise(parts: Parts, target: int, *victims: str) -> None:
    parts.targets[POOL] = TargetRecommendation(target=target, reason="the trainer waits", victims=victims)


async def kinds(parts: Parts) -> list[str]:
    return [entry.kind.value for entry in (await parts.ledger.decisions(pool="", before=None, limit=100))[0]]


async def test_an_automatic_pool_follows_the_target_up_and_down(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    advise(parts, 5)
    await parts.pass_time(60.0)
    assert parts.states() == {"ready": 5}
    advise(parts, 3)
    await parts.pass_time(60.0)
    assert parts.states() == {"ready": 3}
    assert await kinds(parts) == ["apply", "apply"]


def test_recommendations_are_read_from_the_report_without_unmeasured_ones() -> None:
    recommendation = PoolRecommendation(
        pool=POOL,
        at=1.0,
        mode=Mode.ADVISE,
        policy="sizer",
        present=3,
        pending=0,
        target=2,
        band_low=1.0,
        band_high=2.0,
        reasons=(Reason.ABOVE_BAND,),
        before=3,
        victims=(NodeId("01AB.7"),),
    )
    known = replace(make.report(), recommendations=(recommendation,))
    assert reported_recommendations(known) == {
        POOL: TargetRecommendation(target=2, reason=render_cause(recommendation.change), victims=("01AB",))
    }
    for reason in (Reason.UNMEASURED, Reason.SWITCHED_OFF):
        assert (
            reported_recommendations(replace(known, recommendations=(replace(recommendation, reasons=(reason,)),)))
            == {}
        )
    assert reported_recommendations(make.report()) == {}


async def test_the_rules_victims_are_drained_first(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    advise(parts, 3)
    await parts.pass_time(60.0)
    named = parts.ledger.alive()[1].id
    advise(parts, 2, named)
    await parts.pass_time(60.0)
    assert set(parts.run.drained) == {named}


@pytest.mark.long
async def test_an_up_only_pool_never_shrinks_by_itself(tmp_path: Path) -> None:
    parts = await build(tmp_path, pool=spec(mode=Mode.UP_ONLY))
    advise(parts, 5)
    await parts.pass_time(60.0)
    advise(parts, 2)
    await parts.pass_time(600.0)
    assert parts.states() == {"ready": 5}


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.ADVISE])
async def test_pools_in_other_modes_show_the_recommendation_and_do_not_follow_it(tmp_path: Path, mode: Mode) -> None:
    parts = await build(tmp_path, pool=spec(mode=mode))
    advise(parts, 5)
    await parts.pass_time(60.0)
    assert parts.states() == {}
    assert parts.fleet.view(parts.fleet.pool(POOL)).rule_target == 5


async def test_targets_are_limited_to_the_bounds(tmp_path: Path) -> None:
    parts = await build(tmp_path, pool=spec(min_nodes=2, max_nodes=4))
    advise(parts, 40)
    await parts.pass_time(60.0)
    assert parts.states() == {"ready": 4}
    advise(parts, 0)
    await parts.pass_time(60.0)
    assert parts.states() == {"ready": 2}


async def test_targets_are_limited_to_the_pools_budget(tmp_path: Path) -> None:
    parts = await build(tmp_path, pool=spec(usd_per_hour_max=3.5))
    advise(parts, 10)
    await parts.pass_time(120.0)
    assert parts.states() == {"ready": 3}
    assert await kinds(parts) == ["apply"]


async def test_lost_nodes_are_replaced_without_a_recommendation(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await parts.want(4)
    await parts.pass_time(60.0)
    for record in parts.ledger.alive()[:2]:
        parts.cloud.end(parts.cloud.machines[record.instance.handle], after_s=0.0)
    await parts.pass_time(130.0)
    assert parts.states() == {"ready": 4}


async def test_replacements_and_growth_have_different_reasons(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    advise(parts, 4)
    await parts.pass_time(60.0)
    parts.cloud.end(parts.cloud.machines[parts.ledger.alive()[0].instance.handle], after_s=0.0)
    await parts.pass_time(130.0)
    assert parts.states() == {"ready": 4}
    entries, _ = await parts.ledger.decisions(pool="", before=None, limit=100)
    reasons = [entry.reason for entry in entries if entry.kind.value == "apply"]
    assert reasons == [REPLACEMENT_REASON, parts.targets[POOL].reason]


async def test_a_launch_without_a_lost_node_replaces_nothing(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await parts.want(2)
    await parts.pass_time(5.0)
    parts.cloud.end(parts.cloud.machines[parts.ledger.alive()[0].instance.handle], after_s=0.0)
    await parts.pass_time(130.0)
    assert parts.states() == {"ready": 2}
    entries, _ = await parts.ledger.decisions(pool="", before=None, limit=100)
    reasons = [entry.reason for entry in entries if entry.kind.value == "apply" and entry.actor != "ada"]
    assert reasons[0] == START_REASON


async def test_an_old_recommendation_is_not_followed(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    advise(parts, 4)
    await parts.pass_time(60.0)
    parts.run.is_away = True
    advise(parts, 1)
    await parts.pass_time(600.0)
    assert parts.states() == {"ready": 4}


@pytest.mark.long
async def test_a_refusal_by_the_guard_is_in_the_audit_log_once(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    advise(parts, 3)
    await parts.pass_time(60.0)
    await parts.fleet_manager.set_hold(POOL, minutes=15, actor=ALICE, key="h", reason="a test")
    advise(parts, 2)
    await parts.pass_time(600.0)
    assert await kinds(parts) == ["refuse", "hold", "apply"]
    assert parts.states() == {"ready": 3}
    await parts.pass_time(600.0, tick_s=30.0)
    assert parts.states() == {"ready": 2}


async def test_a_pool_below_its_minimum_grows_to_it(tmp_path: Path) -> None:
    parts = await build(tmp_path, pool=spec(min_nodes=2))
    await parts.pass_time(60.0)
    assert parts.states() == {"ready": 2}


async def test_a_refused_follow_stores_no_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MAX_PLANS", 1)
    parts = await build(tmp_path)
    await parts.want(3)
    await parts.pass_time(60.0)
    request = PlanRequest(pool=POOL, actor=ALICE, reason="a test", target=4)
    plan = await parts.fleet_manager.plans.make(request)
    await parts.fleet_manager.set_hold(POOL, minutes=10, actor=ALICE, key="k", reason="a test")
    advise(parts, 2)
    await parts.pass_time(60.0)
    assert "refuse" in await kinds(parts)
    assert parts.fleet_manager.plans.known(plan.id) is not None
