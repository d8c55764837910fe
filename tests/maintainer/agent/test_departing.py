"""Rule and agent in one pool: an agent's change lasts until its hold ends."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.contract.errors import PlanRefused
from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.plans import Actor, PlanRequest, Role, Verdict
from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.ids import PoolId
from astraflow.contract.records import render_summary
from astraflow.scaling.simulation.simulator import STEP_S
from maintainer.agent.llm.conversation_view import ConversationView
from maintainer.agent.llm.interface import Part, Request, TextPart, ToolCall
from maintainer.evals.cases import CASES
from maintainer.evals.simulation.harness import START, EvaluationHarness, open_case_maintainer, open_harness
from maintainer.fleet.state.observation import TargetRecommendation
from tests.maintainer.fleet.parts import ALICE, HAL, OTTO, POOL, Parts, build, spec
from tests.maintainer.parts import Says

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

HOLD_S = 600.0


async def following(tmp_path: Path, wanted: int, *, nodes: int | None = None, mode: Mode = Mode.ON) -> Parts:
    """Builds a pool with `nodes` nodes that follows the rule's target `wanted`."""
    parts = await build(tmp_path, pool=spec(mode=Mode.ON))
    parts.targets[POOL] = TargetRecommendation(target=nodes or wanted, reason="the trainer waits")
    await parts.pass_time(60.0)
    pool = parts.fleet.pool(POOL)
    opened = replace(pool.spec, mode=mode)
    await parts.fleet_manager.put_pool(opened, observed_version=pool.version, actor=ALICE, key="mode", reason="a test")
    parts.targets[POOL] = TargetRecommendation(target=wanted, reason="the trainer waits")
    parts.fleet.observation.update(parts.run.report())
    return parts


def asks(target: int, *, actor: Actor = HAL, **more: object) -> PlanRequest:
    return PlanRequest(pool=POOL, actor=actor, reason="nodes are taken away elsewhere", target=target, **more)  # type: ignore[arg-type]  # fields of PlanRequest


@pytest.mark.long
@pytest.mark.parametrize("actor", [HAL, OTTO])
async def test_nodes_above_the_rules_target_stay_until_the_rule_can_measure_them(tmp_path: Path, actor: Actor) -> None:
    parts = await following(tmp_path, 3)
    plan = await parts.fleet_manager.plans.make(asks(5, actor=actor))
    delay_s = parts.fleet.launch_delay_s(parts.fleet.pool(POOL).spec)
    assert plan.hold_s == delay_s + HOLD_S
    assert parts.fleet.pool(POOL).hold_until_at is None, "a plan changes nothing"
    applied = await parts.fleet_manager.apply(plan.id, key="more")
    begun = parts.clock.wall()
    assert applied.hold_until_at == begun + plan.hold_s
    assert f"hold for {plan.hold_s / 60:.0f} minutes" in applied.message
    pool = parts.fleet.view(parts.fleet.pool(POOL))
    assert pool.hold_until_at == applied.hold_until_at
    assert "3 nodes" in pool.hold_reason
    assert f"{actor.name} set 5" in pool.hold_reason
    [entry] = [
        decision for decision in await journal(parts) if decision.actor == actor.name and decision.kind.value == "apply"
    ]
    assert render_summary(entry) == applied.message
    await parts.pass_time(plan.hold_s - 10.0)
    assert parts.states() == {"ready": 5}
    await parts.pass_time(100.0)
    assert parts.states() == {"ready": 3}, "afterwards the rule applies again"


async def test_a_repeated_key_gets_the_same_answer_and_sets_the_hold_once(tmp_path: Path) -> None:
    parts = await following(tmp_path, 3)
    plan = await parts.fleet_manager.plans.make(asks(5))
    first = await parts.fleet_manager.apply(plan.id, key="more")
    parts.clock.advance(30.0)
    assert await parts.fleet_manager.apply(plan.id, key="more") == first
    assert parts.fleet.pool(POOL).hold_until_at == first.hold_until_at
    again = await build(tmp_path, database=parts.database, cloud=parts.cloud, clock=parts.clock)
    assert again.fleet.pool(POOL).hold_until_at == first.hold_until_at, "the hold survives a restart"


@pytest.mark.long
async def test_a_longer_hold_stays(tmp_path: Path) -> None:
    parts = await following(tmp_path, 3)
    await parts.fleet_manager.set_hold(POOL, minutes=60, actor=OTTO, key="hold", reason="a demonstration")
    until = parts.fleet.pool(POOL).hold_until_at
    applied = await parts.fleet_manager.apply((await parts.fleet_manager.plans.make(asks(5))).id, key="more")
    pool = parts.fleet.pool(POOL)
    assert (pool.hold_until_at, pool.hold_reason) == (until, "a demonstration")
    assert applied.hold_until_at == until


@pytest.mark.long
async def test_people_can_end_the_hold_early(tmp_path: Path) -> None:
    parts = await following(tmp_path, 3)
    await parts.fleet_manager.apply((await parts.fleet_manager.plans.make(asks(5))).id, key="more")
    await parts.fleet_manager.set_hold(POOL, minutes=0, actor=OTTO, key="free", reason="it was a mistake")
    await parts.pass_time(90.0)
    assert parts.states() == {"ready": 3}


@pytest.mark.parametrize(("mode", "target"), [(Mode.ON, 3), (Mode.UP_ONLY, 5), (Mode.ADVISE, 5)])
async def test_a_change_that_the_rule_keeps_sets_no_hold(tmp_path: Path, mode: Mode, target: int) -> None:
    parts = await following(tmp_path, 3, nodes=2, mode=mode)
    plan = await parts.fleet_manager.plans.make(asks(target, actor=OTTO))
    applied = await parts.fleet_manager.apply(plan.id, key="more")
    assert (plan.hold_s, applied.hold_until_at, parts.fleet.pool(POOL).hold_until_at) == (0.0, None, None)


@pytest.mark.long
async def test_an_agent_cannot_shrink_below_the_rules_target_but_may_name_nodes(tmp_path: Path) -> None:
    parts = await following(tmp_path, 4)
    fewer = await parts.fleet_manager.plans.make(asks(3))
    assert fewer.verdict is Verdict.REFUSED
    [finding] = [candidate for candidate in fewer.findings if candidate.code.value == "undone"]
    assert finding.numbers["rule_target"] == 4
    with pytest.raises(PlanRefused, check=lambda problem: problem.code == "fleet.plan_refused"):
        await parts.fleet_manager.apply(fewer.id, key="fewer")
    slow = parts.ledger.alive(POOL)[0].id
    named = await parts.fleet_manager.plans.make(replace(asks(0), target=None, retire=(slow,)))
    assert named.verdict is Verdict.ALLOWED
    await parts.fleet_manager.apply(named.id, key="named")
    await parts.pass_time(90.0)
    assert parts.states() == {"ready": 4}, "the lost node was replaced"
    assert slow not in {record.id for record in parts.ledger.alive(POOL)}
    by_hand = await parts.fleet_manager.plans.make(asks(3, actor=OTTO))
    assert by_hand.verdict is Verdict.ALLOWED


async def journal(parts: Parts) -> tuple[Decision, ...]:
    return (await parts.ledger.decisions(pool="", before=None, limit=100))[0]


def orders(pool: Callable[[ConversationView], str], beyond: int) -> Says:
    """Returns a model that requests `beyond` nodes above the rule's target once, in its first wake."""

    def answer(request: Request) -> tuple[Part, ...]:
        talk = ConversationView(request.messages)
        plans, applied = talk.answered_calls("fleet_plan"), talk.answered_calls("fleet_apply")
        if not plans:
            name = pool(talk)
            pool_view = talk.pool(name)
            assert pool_view is not None
            target = (pool_view["rule_target"] or pool_view["target"]) + beyond
            arguments = {
                "pool": name,
                "target": target,
                "retire": None,
                "reason": "a spare while the other region drags",
            }
            return (ToolCall(id="plan", name="fleet_plan", arguments=arguments),)
        if not applied:
            arguments = {"plan_id": plans[0][1]["plan_id"], "idempotency_key": "once"}
            return (ToolCall(id="apply", name="fleet_apply", arguments=arguments),)
        return (TextPart(text=f"Kept for {applied[0][1]['applied_hold_s']:g} s."),)

    return Says(answer)


@pytest.mark.long
async def test_in_a_simulated_run_an_agents_nodes_stay_until_the_hold_ends(tmp_path: Path) -> None:
    """Combines simulated trainer and nodes with the real rule, follower, guard, ledger and loop."""
    first = orders(lambda talk: talk.report["pools"][0]["pool"], 2)
    async with (
        open_harness(CASES["steady"], tmp_path) as harness,
        open_case_maintainer(harness, first, tmp_path) as agent,
    ):
        await agent.begin()
        await advanced(harness, 1200.0)  # until the rule is stable
        await agent.run_one_wake()
        [(pool, until)] = [
            (pool.spec.id, pool.hold_until_at) for pool in harness.ledger.pools.values() if pool.hold_until_at
        ]
        assert until is not None
        ordered = harness.fleet.size(pool)
        rule = harness.fleet.rule_target(pool)
        assert rule is not None
        assert ordered == rule + 2
        while harness.clock.wall() + harness.tick_s < until:
            await advanced(harness, harness.tick_s)
            assert drained(harness, pool) == 0
        await advanced(harness, 1800.0)
        assert drained(harness, pool) > 0, "the rule retires them after the hold"
        assert harness.auditor.violations == []
        entries, _ = await harness.ledger.decisions(pool=pool, before=None, limit=1000)
        by_agent = [entry for entry in entries if entry.role is Role.AGENT]
        assert [entry.kind.value for entry in by_agent if entry.kind.value == "apply"] == ["apply"]
        assert any("hold" in render_summary(entry) for entry in by_agent)


async def advanced(harness: EvaluationHarness, duration_s: float) -> None:
    """Advances the simulated run with the rule and the fleet service, without the maintainer."""
    until = harness.clock.wall() + duration_s
    while harness.clock.wall() < until:
        now = harness.clock.wall() - START
        await harness.tick(now, None)
        for step in range(round(harness.tick_s / STEP_S)):
            begun = now + step * STEP_S
            harness.simulation.advance(begun, begun + STEP_S)
        harness.cloud.end_due_instances()
        harness.clock.advance(harness.tick_s)


def drained(harness: EvaluationHarness, pool: PoolId) -> int:
    """Returns the number of drained nodes of the pool."""
    return sum(
        1 for record in harness.ledger.records.values() if record.instance.pool == pool and record.instance.draining_at
    )
