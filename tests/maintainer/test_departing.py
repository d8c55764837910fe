"""Rule and agent together, in a pool that follows the rule: what an agent orders lasts as long as it says."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.contract.advice import Mode
from astraflow.contract.errors import NotPermitted
from astraflow.contract.fleet import Actor, Decision, PlanRequest, Role, Verdict
from astraflow.contract.ids import PoolId
from astraflow.scaling.simulator import STEP_S
from maintainer.evals.cases import CASES
from maintainer.evals.stage import START, Stage, maintained, staged
from maintainer.fleet.observation import Advice
from maintainer.llm.base import Part, Request, Said, ToolCall
from maintainer.llm.talk import Talk
from tests.maintainer.fleet.parts import ALICE, HAL, OTTO, POOL, Parts, build, spec
from tests.maintainer.parts import Says

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

HOLD_S = 600.0


async def following(tmp_path: Path, wanted: int, *, nodes: int | None = None, mode: Mode = Mode.ON) -> Parts:
    """A pool that follows the rule, which wants so many nodes of it; it has `nodes` of them."""
    parts = await build(tmp_path, pool=spec(mode=Mode.ON))
    parts.targets[POOL] = Advice(target=nodes or wanted, reason="the trainer waits")
    await parts.pass_time(60.0)
    pool = parts.fleet.pool(POOL)
    opened = replace(pool.spec, mode=mode)
    await parts.desk.put_pool(opened, observed_version=pool.version, actor=ALICE, key="mode", reason="a test")
    parts.targets[POOL] = Advice(target=wanted, reason="the trainer waits")
    parts.fleet.observation.take(parts.run.report())
    return parts


def asks(target: int, *, actor: Actor = HAL, **more: object) -> PlanRequest:
    return PlanRequest(pool=POOL, actor=actor, reason="nodes are taken away elsewhere", target=target, **more)  # type: ignore[arg-type]  # as they are


@pytest.mark.parametrize("actor", [HAL, OTTO])
async def test_more_nodes_than_the_rule_wants_are_kept_until_it_can_see_them_work(tmp_path: Path, actor: Actor) -> None:
    parts = await following(tmp_path, 3)
    plan = await parts.desk.plans.make(asks(5, actor=actor))
    delay_s = parts.fleet.launch_delay_s(parts.fleet.pool(POOL).spec)
    assert plan.hold_s == delay_s + HOLD_S
    assert parts.fleet.pool(POOL).hold_until is None, "a plan does nothing"
    applied = await parts.desk.apply(plan.id, key="more")
    begun = parts.clock.wall()
    assert applied.hold_until == begun + plan.hold_s
    assert f"held for {plan.hold_s / 60:.0f} minutes" in applied.message
    pool = parts.fleet.view(parts.fleet.pool(POOL))
    assert pool.hold_until == applied.hold_until
    assert f"the rule wants 3 nodes, {actor.name} wants 5" in pool.hold_reason
    [entry] = [one for one in await journal(parts) if one.actor == actor and one.kind == "apply"]
    assert entry.message == applied.message
    await parts.pass_time(plan.hold_s - 10.0)
    assert parts.states() == {"ready": 5}
    await parts.pass_time(100.0)
    assert parts.states() == {"ready": 3}, "then the rule has its way again"


async def test_the_same_answer_comes_for_the_same_key_and_the_hold_is_set_once(tmp_path: Path) -> None:
    parts = await following(tmp_path, 3)
    plan = await parts.desk.plans.make(asks(5))
    first = await parts.desk.apply(plan.id, key="more")
    parts.clock.advance(30.0)
    assert await parts.desk.apply(plan.id, key="more") == first
    assert parts.fleet.pool(POOL).hold_until == first.hold_until
    again = await build(tmp_path, database=parts.database, cloud=parts.cloud, clock=parts.clock)
    assert again.fleet.pool(POOL).hold_until == first.hold_until, "and it outlives the service"


async def test_a_longer_hold_of_somebody_else_stays(tmp_path: Path) -> None:
    parts = await following(tmp_path, 3)
    await parts.desk.hold(POOL, minutes=60, actor=OTTO, key="hold", reason="a demonstration")
    until = parts.fleet.pool(POOL).hold_until
    applied = await parts.desk.apply((await parts.desk.plans.make(asks(5))).id, key="more")
    pool = parts.fleet.pool(POOL)
    assert (pool.hold_until, pool.hold_reason) == (until, "a demonstration")
    assert applied.hold_until == until


async def test_people_end_it_before_its_time(tmp_path: Path) -> None:
    parts = await following(tmp_path, 3)
    await parts.desk.apply((await parts.desk.plans.make(asks(5))).id, key="more")
    await parts.desk.hold(POOL, minutes=0, actor=OTTO, key="free", reason="it was a mistake")
    await parts.pass_time(90.0)
    assert parts.states() == {"ready": 3}


@pytest.mark.parametrize(("mode", "target"), [(Mode.ON, 3), (Mode.UP_ONLY, 5), (Mode.ADVISE, 5)])
async def test_what_the_rule_does_not_undo_sets_no_hold(tmp_path: Path, mode: Mode, target: int) -> None:
    parts = await following(tmp_path, 3, nodes=2, mode=mode)
    plan = await parts.desk.plans.make(asks(target, actor=OTTO))
    applied = await parts.desk.apply(plan.id, key="more")
    assert (plan.hold_s, applied.hold_until, parts.fleet.pool(POOL).hold_until) == (0.0, None, None)


async def test_a_program_is_refused_what_the_rule_would_undo_and_may_name_nodes(tmp_path: Path) -> None:
    parts = await following(tmp_path, 4)
    fewer = await parts.desk.plans.make(asks(3))
    assert fewer.verdict is Verdict.REFUSED
    [finding] = [one for one in fewer.findings if one.code == "undone"]
    assert "the rule wants 4 nodes" in finding.message
    with pytest.raises(NotPermitted, match="order them again"):
        await parts.desk.apply(fewer.id, key="fewer")
    slow = parts.ledger.alive(POOL)[0].id
    named = await parts.desk.plans.make(replace(asks(0), target=None, retire=(slow,)))
    assert named.verdict is Verdict.ALLOWED
    await parts.desk.apply(named.id, key="named")
    await parts.pass_time(90.0)
    assert parts.states() == {"ready": 4}, "it was replaced"
    assert slow not in {record.id for record in parts.ledger.alive(POOL)}
    by_hand = await parts.desk.plans.make(asks(3, actor=OTTO))
    assert by_hand.verdict is Verdict.ALLOWED


async def journal(parts: Parts) -> tuple[Decision, ...]:
    return (await parts.ledger.decisions(pool="", before=None, limit=100))[0]


def orders(pool: Callable[[Talk], str], beyond: int) -> Says:
    """Has so many nodes more than the rule wants in one pool, once, when it is woken first."""

    def answer(request: Request) -> tuple[Part, ...]:
        talk = Talk(request.messages)
        plans, applied = talk.made("fleet_plan"), talk.made("fleet_apply")
        if not plans:
            name = pool(talk)
            seen = talk.pool(name)
            assert seen is not None
            target = (seen["rule_target"] or seen["target"]) + beyond
            asked = {"pool": name, "target": target, "retire": None, "reason": "a spare while the other region drags"}
            return (ToolCall(id="plan", name="fleet_plan", arguments=asked),)
        if not applied:
            asked = {"plan_id": plans[0][1]["plan_id"], "idempotency_key": "once"}
            return (ToolCall(id="apply", name="fleet_apply", arguments=asked),)
        return (Said(text=f"Kept for {applied[0][1]['held_s']:g} s."),)

    return Says(answer)


async def test_in_a_simulated_run_an_agents_nodes_stay_for_as_long_as_they_were_said_to(tmp_path: Path) -> None:
    """The simulator's trainer and nodes, the real rule, follower, guard, ledger and loop."""
    first = orders(lambda talk: talk.report["pools"][0]["pool"], 2)
    async with staged(CASES["steady"], tmp_path) as stage, maintained(stage, first, tmp_path) as agent:
        await agent.begin()
        await advanced(stage, 1200.0)  # the rule has settled
        await agent.once()
        [(pool, until)] = [(one.spec.id, one.hold_until) for one in stage.ledger.pools.values() if one.hold_until]
        assert until is not None
        ordered = stage.fleet.size(pool)
        rule = stage.fleet.rule_target(pool)
        assert rule is not None
        assert ordered == rule + 2
        while stage.clock.wall() + stage.tick_s < until:
            await advanced(stage, stage.tick_s)
            assert drained(stage, pool) == 0
        await advanced(stage, 1800.0)
        assert drained(stage, pool) > 0, "the rule takes them away when the hold is over"
        assert stage.auditor.violations == []
        entries, _ = await stage.ledger.decisions(pool=pool, before=None, limit=1000)
        by_agent = [entry for entry in entries if entry.actor.role is Role.AGENT]
        assert [entry.kind for entry in by_agent if entry.kind == "apply"] == ["apply"]
        assert any("held for" in entry.message for entry in by_agent)


async def advanced(stage: Stage, duration_s: float) -> None:
    """The simulated run goes on, with the rule and the fleet service and no maintainer."""
    until = stage.clock.wall() + duration_s
    while stage.clock.wall() < until:
        now = stage.clock.wall() - START
        await stage.tick(now, None)
        for step in range(round(stage.tick_s / STEP_S)):
            begun = now + step * STEP_S
            stage.simulation.advance(begun, begun + STEP_S)
        stage.cloud.settle()
        stage.clock.advance(stage.tick_s)


def drained(stage: Stage, pool: PoolId) -> int:
    """Nodes of the pool that were asked to go."""
    return sum(1 for one in stage.ledger.records.values() if one.instance.pool == pool and one.instance.draining_at)
