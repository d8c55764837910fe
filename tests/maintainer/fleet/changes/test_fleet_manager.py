"""Plans have no effect, applying a plan has one, and the journal records every change."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.contract.errors import Conflict, InvalidInput, NotPermitted, PlanRefused
from astraflow.contract.fleet.decisions import AppliedChange
from astraflow.contract.fleet.instances import InstanceState, LaunchId
from astraflow.contract.fleet.maintainer import MaintainerMode
from astraflow.contract.fleet.plans import Actor, GuardRule, PlanId, PlanRequest, Role, Verdict
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.ids import PoolId
from astraflow.contract.record_kinds import Severity
from maintainer.fleet.guard.inputs import GuardInputs
from maintainer.fleet.ledger.ledger import Ledger
from maintainer.fleet.state.fleet import FLEET_ACTOR
from tests.errors import raises_code
from tests.maintainer.fleet.parts import ALICE, HAL, OTTO, POOL, build, spec
from tests.maintainer.fleet.test_maintainer_api import STATUS

pytestmark = pytest.mark.anyio

EVE = Actor(name="eve", role=Role.OPERATOR)
VAL = Actor(name="val", role=Role.AGENT)


def request(
    target: int | None = 3, *, actor: Actor = ALICE, retire: tuple[str, ...] = (), kill: bool = False
) -> PlanRequest:
    victims = tuple(LaunchId(name) for name in retire)
    return PlanRequest(pool=POOL, actor=actor, reason="a test", target=target, retire=victims, is_kill=kill)


async def test_a_plan_states_its_effect_and_changes_nothing(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    plan = await parts.fleet_manager.plans.make(request(3))
    assert (plan.nodes, plan.target, plan.launches, plan.victims) == (0, 3, 3, ())
    assert plan.usd_per_hour_change == 3.0
    assert plan.eta_s == 60.0
    assert plan.verdict is Verdict.ALLOWED
    assert plan.expires_at == plan.created_at + 300
    await parts.actuator.run_due_steps()
    assert parts.cloud.starts == 0
    assert parts.states() == {}


async def test_an_applied_plan_is_stored_before_any_launch(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    applied = await parts.want(3)
    assert parts.states() == {"intended": 3}
    assert parts.cloud.starts == 0
    again = await build(tmp_path, database=parts.database, cloud=parts.cloud, clock=parts.clock)
    assert again.states() == {"intended": 3}
    await again.actuator.run_due_steps()
    assert parts.cloud.starts == 3
    assert set(applied.launched) == {machine.instance.handle.launch_id for machine in parts.cloud.alive()}


async def test_a_repeated_request_gets_the_first_answer_also_after_a_restart(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    plan = await parts.fleet_manager.plans.make(request(3))
    first = await parts.fleet_manager.apply(plan.id, key="k")
    assert await parts.fleet_manager.apply(plan.id, key="k") == first
    again = await build(tmp_path, database=parts.database, cloud=parts.cloud, clock=parts.clock)
    assert await again.fleet_manager.apply(plan.id, key="k") == first
    assert again.states() == {"intended": 3}


async def test_an_idempotency_key_belongs_to_one_change(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    first, second = await parts.fleet_manager.plans.make(request(1)), await parts.fleet_manager.plans.make(request(2))
    await parts.fleet_manager.apply(first.id, key="k")
    with raises_code(Conflict, "fleet.idempotency_key_reused", "another change"):
        await parts.fleet_manager.apply(second.id, key="k")
    with raises_code(InvalidInput, "fleet.invalid_idempotency_key"):
        await parts.fleet_manager.apply(second.id, key="")


async def test_a_plan_for_a_pool_that_changed_is_a_conflict(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    first, second = await parts.fleet_manager.plans.make(request(1)), await parts.fleet_manager.plans.make(request(2))
    await parts.fleet_manager.apply(first.id, key="one")
    with raises_code(Conflict, "fleet.pool_changed", "plan again"):
        await parts.fleet_manager.apply(second.id, key="other")


async def test_a_limit_of_many_changes_within_an_hour_is_kept(tmp_path: Path) -> None:
    parts = await build(tmp_path, limits={"changes_per_hour": 20, "nodes": 100, "cool_down_s": 0.0})
    for turn in range(20):
        plan = await parts.fleet_manager.plans.make(request(turn % 2))
        await parts.fleet_manager.apply(plan.id, key=f"change-{turn}")
    findings = (await parts.fleet_manager.plans.make(request(1))).findings
    assert [finding.code for finding in findings] == [GuardRule.RATE]


async def test_a_plan_expires(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    plan = await parts.fleet_manager.plans.make(request(1))
    parts.clock.advance(301.0)
    with pytest.raises(Conflict) as caught:
        await parts.fleet_manager.apply(plan.id, key="k")
    assert caught.value.code == "fleet.unknown_plan"
    with pytest.raises(Conflict) as caught:
        await parts.fleet_manager.apply(PlanId("unknown"), key="l")
    assert caught.value.code == "fleet.unknown_plan"


async def test_a_plan_is_judged_again_when_it_is_applied(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    plan = await parts.fleet_manager.plans.make(request(1, actor=HAL))
    await parts.fleet_manager.kill_switch(KillScope.AGENTS, actor=OTTO, key="stop", reason="it talks too much")
    with raises_code(PlanRefused, "fleet.plan_refused", "kill switch") as refused:
        await parts.fleet_manager.apply(plan.id, key="k")
    inputs = GuardInputs.parse(refused.value.guard_json)
    assert [finding.code.value for finding in inputs.violations()] == ["kill_switch"]
    assert inputs.application is not None
    assert inputs.application.applier == HAL
    assert parts.states() == {}
    newest = (await parts.ledger.decisions(pool="", before=None, limit=1))[0][0]
    assert (newest.kind.value, newest.actor) == ("refuse", HAL.name)


async def test_a_plan_that_needs_approval_waits_for_a_person(tmp_path: Path) -> None:
    parts = await build(tmp_path, pool=spec(mode=Mode.ADVISE))
    plan = await parts.fleet_manager.plans.make(request(2, actor=HAL))
    assert plan.needs_approval
    with raises_code(PlanRefused, "fleet.plan_refused", "do not retry"):
        await parts.fleet_manager.apply(plan.id, key="k")
    with raises_code(PlanRefused, "fleet.plan_refused", HAL.name):
        await parts.fleet_manager.apply(plan.id, key="k", approver=HAL)
    applied = await parts.fleet_manager.apply(plan.id, key="k", approver=OTTO)
    assert "approved by otto" in applied.message


async def test_a_plan_is_applied_by_its_planner_or_a_person_of_no_lower_role(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    fleet_manager = parts.fleet_manager
    for planner, applier in [(ALICE, OTTO), (ALICE, HAL), (OTTO, HAL), (HAL, VAL), (FLEET_ACTOR, HAL)]:
        plan = await fleet_manager.plans.make(request(1, actor=planner))
        with pytest.raises(PlanRefused, check=lambda problem: problem.code == "fleet.plan_refused"):
            await fleet_manager.apply(plan.id, key="k", applier=applier)
        (refused,), _ = await parts.ledger.decisions(pool="", before=None, limit=1)
        assert (refused.kind.value, refused.actor) == ("refuse", applier.name)
        assert [finding.code.value for finding in refused.findings] == ["planner"]
    assert parts.states() == {}
    for number, (planner, applier) in enumerate([(HAL, OTTO), (OTTO, OTTO), (OTTO, EVE), (EVE, ALICE), (HAL, HAL)], 1):
        plan = await fleet_manager.plans.make(request(number, actor=planner))
        applied = await fleet_manager.apply(plan.id, key=f"k{number}", applier=applier)
        assert applied.message.endswith(f", applied by {applier.name}") is (planner != applier)


async def test_an_actor_of_one_pool_cannot_change_another_pool(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    fleet_manager, us = parts.fleet_manager, PoolId("us")
    await fleet_manager.put_pool(replace(spec(), id=us), observed_version=0, actor=ALICE, key="us", reason="another")
    otto_here, alice_here = replace(OTTO, pool=POOL), replace(ALICE, pool=POOL)
    there = await fleet_manager.plans.make(replace(request(1, actor=OTTO), pool=us))
    for number, applier in enumerate((otto_here, alice_here)):
        with raises_code(PlanRefused, "fleet.plan_refused", applier.name):
            await fleet_manager.apply(there.id, key=f"fooled{number}", approver=applier)
    (refused,), _ = await parts.ledger.decisions(pool="us", before=None, limit=1)
    assert (refused.kind.value, refused.actor) == ("refuse", alice_here.name)
    assert [finding.code.value for finding in refused.findings] == ["scope"]
    with pytest.raises(NotPermitted) as caught:
        await fleet_manager.plans.make(replace(request(1, actor=otto_here), pool=us))
    assert caught.value.code == "fleet.other_pool"
    with pytest.raises(NotPermitted) as caught:
        await fleet_manager.set_hold(us, minutes=1, actor=otto_here, key="h", reason="r")
    assert caught.value.code == "fleet.other_pool"
    with pytest.raises(NotPermitted) as caught:
        await fleet_manager.put_pool(replace(spec(), id=us), observed_version=1, actor=alice_here, key="p", reason="r")
    assert caught.value.code == "fleet.other_pool"
    with pytest.raises(NotPermitted) as caught:
        await parts.faults.inject(us, share=0.5, actor=alice_here, key="l", reason="r")
    assert caught.value.code == "fleet.other_pool"
    for scope in (KillScope.ALL, KillScope.NONE):
        with pytest.raises(NotPermitted) as caught:
            await fleet_manager.kill_switch(scope, actor=alice_here, key=f"k{scope}", reason="r")
        assert caught.value.code == "fleet.other_pool"
    with pytest.raises(NotPermitted) as caught:
        await parts.maintainer_api.set_mode(MaintainerMode.OFF, actor=otto_here, key="m", reason="r")
    assert caught.value.code == "fleet.other_pool"
    with pytest.raises(NotPermitted) as caught:
        await parts.preflight_checks.preflight("cloud", actor=otto_here)
    assert caught.value.code == "fleet.other_pool"
    assert parts.states() == {}

    here = await fleet_manager.plans.make(request(2, actor=otto_here))
    assert len((await fleet_manager.apply(here.id, key="own", approver=otto_here)).launched) == 2
    hold = await fleet_manager.set_hold(POOL, minutes=5, actor=otto_here, key="hold", reason="r")
    assert hold.values == {"minutes": 5}


async def test_agents_apply_plans_only_in_auto_mode(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    plan = await parts.fleet_manager.plans.make(request(1, actor=HAL))
    assert plan.verdict is Verdict.ALLOWED
    for mode in (MaintainerMode.OFF, MaintainerMode.SHADOW, MaintainerMode.PROPOSE):
        await parts.maintainer_api.set_mode(mode, actor=OTTO, key=mode.value, reason="a test")
        with raises_code(PlanRefused, "fleet.plan_refused", mode.value):
            await parts.fleet_manager.apply(plan.id, key="k", applier=HAL)
        (refused,), _ = await parts.ledger.decisions(pool="", before=None, limit=1)
        assert [finding.code.value for finding in refused.findings] == ["maintainer_mode"]
    await parts.maintainer_api.set_mode(MaintainerMode.AUTO, actor=OTTO, key="auto", reason="a test")
    await parts.fleet_manager.apply(plan.id, key="k", applier=HAL)
    assert parts.states() == {"intended": 1}
    await parts.maintainer_api.set_mode(MaintainerMode.PROPOSE, actor=OTTO, key="back", reason="a test")
    more = await parts.fleet_manager.plans.make(request(2, actor=HAL))
    await parts.fleet_manager.apply(more.id, key="l", approver=OTTO)
    assert parts.states() == {"intended": 2}


async def test_the_maintainers_own_mode_counts_until_people_set_one(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    plan = await parts.fleet_manager.plans.make(request(1, actor=HAL))
    parts.maintainer_api.receive_status(replace(STATUS, mode=MaintainerMode.PROPOSE))
    with raises_code(PlanRefused, "fleet.plan_refused", "propose"):
        await parts.fleet_manager.apply(plan.id, key="k")
    (refused,), _ = await parts.ledger.decisions(pool="", before=None, limit=1)
    assert [finding.code.value for finding in refused.findings] == ["maintainer_mode"]
    parts.maintainer_api.receive_status(replace(STATUS, mode=MaintainerMode.AUTO))
    await parts.fleet_manager.apply(plan.id, key="k")


async def test_the_guards_findings_are_stored_with_the_decision(tmp_path: Path) -> None:
    parts = await build(tmp_path, pool=spec(max_nodes=4, usd_per_hour_max=10.0))
    plan = await parts.fleet_manager.plans.make(request(40))
    with pytest.raises(NotPermitted):
        await parts.fleet_manager.apply(plan.id, key="k")
    again = await Ledger(parts.database).load(now=parts.clock.wall())
    (refused,), _ = await again.decisions(pool=POOL, before=None, limit=1)
    assert refused.findings == plan.findings
    assert {finding.code.value: dict(finding.numbers) for finding in refused.findings} == {
        "max_nodes": {"target": 40.0, "limit": 4.0},
        "usd_per_hour": {"usd_per_hour": 40.0, "limit": 10.0},
    }


async def test_the_approved_findings_are_stored_with_the_decision(tmp_path: Path) -> None:
    parts = await build(tmp_path, limits={"nodes": 2, "cool_down_s": 0.0})
    plan = await parts.fleet_manager.plans.make(request(9, actor=HAL))
    await parts.fleet_manager.apply(plan.id, key="k", approver=OTTO)
    (applied,), _ = await parts.ledger.decisions(pool=POOL, before=None, limit=1)
    assert [finding.code.value for finding in applied.findings] == ["distance"]
    assert applied.findings[0].numbers == {"target": 9.0, "rule_target": 0.0, "limit": 2.0}
    assert applied.change is not None
    assert applied.change.is_approved


async def test_the_journal_has_an_applied_change_in_numbers(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await parts.want(3)
    await parts.pass_time(60.0)
    await parts.want(1)
    shrunk, grown = [
        entry
        for entry in (await parts.ledger.decisions(pool=POOL, before=None, limit=10))[0]
        if entry.kind.value == "apply"
    ]
    assert grown.change == AppliedChange(
        nodes_before=0, nodes_after=3, launched=3, retired=0, hold_s=0.0, is_approved=False
    )
    assert shrunk.change == AppliedChange(
        nodes_before=3, nodes_after=1, launched=0, retired=2, hold_s=0.0, is_approved=False
    )


async def test_instances_that_are_not_ready_are_retired_first(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await parts.want(2)
    await parts.pass_time(60.0)
    await parts.want(4)
    fresh = {record.id for record in parts.ledger.alive() if record.instance.state is InstanceState.INTENDED}
    plan = await parts.fleet_manager.plans.make(request(2))
    assert set(plan.victims) == fresh


async def test_nodes_drain_before_they_are_retired(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await parts.want(3)
    await parts.pass_time(60.0)
    plan = await parts.fleet_manager.plans.make(request(2))
    assert plan.eta_s == 30.0
    await parts.fleet_manager.apply(plan.id, key="down")
    assert parts.states() == {"draining": 1, "ready": 2}
    assert len(parts.cloud.alive()) == 3
    await parts.pass_time(30.0)
    assert parts.run.drained == {plan.victims[0]: "fleet"}
    assert parts.states() == {"ready": 2}
    assert len(parts.cloud.alive()) == 2


async def test_an_admin_can_terminate_nodes_without_a_drain(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await parts.want(2)
    await parts.pass_time(60.0)
    victim = parts.ledger.alive()[0].id
    plan = await parts.fleet_manager.plans.make(request(None, retire=(victim,), kill=True))
    await parts.fleet_manager.apply(plan.id, key="kill")
    await parts.actuator.run_due_steps()
    assert parts.run.drained == {}
    parts.clock.advance(10.0)
    await parts.actuator.run_due_steps()
    assert len(parts.cloud.alive()) == 1


async def test_a_node_of_another_pool_cannot_be_retired(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    with raises_code(InvalidInput, "fleet.instance_not_found"):
        await parts.fleet_manager.plans.make(request(None, retire=("unknown",)))


@pytest.mark.parametrize("wrong", [{"target": None}, {"target": 1, "retire": (LaunchId("a"),)}, {"target": -1}])
def test_a_request_has_a_target_or_names(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        PlanRequest(pool=POOL, actor=ALICE, reason="r", **wrong)  # type: ignore[arg-type]  # invalid on purpose


async def test_admins_change_a_pools_spec_for_the_version_they_read(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    wider = spec(max_nodes=60)
    with raises_code(NotPermitted, "fleet.missing_role", "admin"):
        await parts.fleet_manager.put_pool(wider, observed_version=1, actor=OTTO, key="k", reason="more")
    with raises_code(Conflict, "fleet.pool_changed", "version 1"):
        await parts.fleet_manager.put_pool(wider, observed_version=7, actor=ALICE, key="k", reason="more")
    pool = await parts.fleet_manager.put_pool(wider, observed_version=1, actor=ALICE, key="k", reason="more")
    assert (pool.version, pool.spec.max_nodes) == (2, 60)
    assert await parts.fleet_manager.put_pool(wider, observed_version=1, actor=ALICE, key="k", reason="more") == pool
    us = replace(wider, id=PoolId("us"), min_nodes=2)
    assert (await parts.fleet_manager.put_pool(us, observed_version=0, actor=ALICE, key="l", reason="new")).target == 2
    with raises_code(InvalidInput, "fleet.unknown_provider", "no provider"):
        await parts.fleet_manager.put_pool(
            replace(us, provider="moon"), observed_version=1, actor=ALICE, key="m", reason="x"
        )


async def test_a_hold_survives_a_restart_and_ends(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await parts.want(3)
    await parts.pass_time(60.0)
    await parts.fleet_manager.set_hold(POOL, minutes=10, actor=HAL, key="hold", reason="a long episode")
    parts = await build(tmp_path, database=parts.database, cloud=parts.cloud, clock=parts.clock, run=parts.run)
    with raises_code(NotPermitted, "fleet.plan_refused", "a hold keeps"):
        await parts.want(2)
    parts.clock.advance(601.0)
    await parts.want(2)
    with raises_code(InvalidInput, "fleet.hold_too_long"):
        await parts.fleet_manager.set_hold(POOL, minutes=61, actor=HAL, key="again", reason="longer")


async def test_only_admins_reduce_the_scope_of_the_kill_switch(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    scopes = [parts.fleet.kill]
    await parts.fleet_manager.kill_switch(KillScope.ALL, actor=HAL, key="a", reason="smoke")
    scopes.append(parts.fleet.kill)
    with raises_code(NotPermitted, "fleet.missing_role", "admin"):
        await parts.fleet_manager.kill_switch(KillScope.NONE, actor=OTTO, key="b", reason="it is fine")
    scopes.append(parts.fleet.kill)
    await parts.fleet_manager.kill_switch(KillScope.NONE, actor=ALICE, key="c", reason="it is fine")
    scopes.append(parts.fleet.kill)
    assert scopes == [KillScope.NONE, KillScope.ALL, KillScope.ALL, KillScope.NONE]


async def test_the_kill_file_stops_launches_at_once(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await parts.want(2)
    (tmp_path / "KILL").touch()
    await parts.pass_time(120.0)
    assert parts.cloud.starts == 0
    with raises_code(NotPermitted, "fleet.plan_refused", "kill switch"):
        await parts.want(3)
    (tmp_path / "KILL").unlink()
    await parts.actuator.run_due_steps()
    assert parts.cloud.starts == 2


async def test_every_change_is_in_the_audit_log_with_actor_and_reason(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await parts.want(2)
    await parts.fleet_manager.set_hold(POOL, minutes=5, actor=OTTO, key="h", reason="lunch")
    await parts.fleet_manager.escalate(Severity.WARNING, actor=HAL, key="e", reason="prices rise")
    decisions, has_older = await parts.ledger.decisions(pool="", before=None, limit=10)
    assert [(entry.kind.value, entry.actor, entry.reason) for entry in decisions] == [
        ("escalate", "hal", "prices rise"),
        ("hold", "otto", "lunch"),
        ("apply", "alice", "a test"),
    ]
    assert [entry.ordinal for entry in decisions] == [3, 2, 1]
    assert not has_older
    assert (await parts.ledger.decisions(pool="", before=3, limit=1))[1]


async def test_a_note_repeated_under_one_key_is_one_entry(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    first = await parts.fleet_manager.escalate(Severity.INFO, actor=HAL, key="e", reason="look")
    assert await parts.fleet_manager.escalate(Severity.INFO, actor=HAL, key="e", reason="look") == first
    assert len((await parts.ledger.decisions(pool="", before=None, limit=10))[0]) == 1


async def test_an_actor_needs_a_name() -> None:
    with raises_code(InvalidInput, "actor.invalid_name"):
        Actor(name="", role=Role.ADMIN)


async def test_agents_never_shorten_a_hold_and_obey_switch_and_modes(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    manager = parts.fleet_manager
    await manager.set_hold(POOL, minutes=30, actor=OTTO, key="otto", reason="a demonstration")
    until = parts.fleet.pool(POOL).hold_until_at

    async def code(minutes: float) -> str:
        with pytest.raises(NotPermitted) as caught:
            await manager.set_hold(POOL, minutes=minutes, actor=HAL, key="hal", reason="shrink")
        return caught.value.code

    assert [await code(0), await code(10)] == ["fleet.hold_shortened"] * 2
    await parts.maintainer_api.set_mode(MaintainerMode.SHADOW, actor=OTTO, key="shadow", reason="a test")
    assert await code(60) == "fleet.agents_off"
    await parts.maintainer_api.set_mode(MaintainerMode.OFF, actor=OTTO, key="off", reason="a test")
    assert await code(60) == "fleet.agents_off"
    await parts.maintainer_api.set_mode(MaintainerMode.AUTO, actor=OTTO, key="auto", reason="a test")
    await manager.kill_switch(KillScope.AGENTS, actor=OTTO, key="kill", reason="a test")
    assert await code(60) == "fleet.kill_switch"
    await manager.kill_switch(KillScope.NONE, actor=ALICE, key="live", reason="a test")
    version = parts.fleet.pool(POOL).version
    off = spec(mode=Mode.OFF)
    await manager.put_pool(off, observed_version=version, actor=ALICE, key="pool", reason="a test")
    assert await code(60) == "fleet.pool_off"
    assert parts.fleet.pool(POOL).hold_until_at == until
    on = spec(mode=Mode.ON)
    await manager.put_pool(on, observed_version=version + 1, actor=ALICE, key="on", reason="a test")
    await manager.set_hold(POOL, minutes=60, actor=HAL, key="longer", reason="a long episode")
    await manager.set_hold(POOL, minutes=0, actor=OTTO, key="end", reason="it is over")
    assert parts.fleet.pool(POOL).hold_until_at is None


async def test_a_concurrent_kill_switch_is_not_reduced_without_an_admin(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    results = await asyncio.gather(
        parts.fleet_manager.kill_switch(KillScope.ALL, actor=OTTO, key="all", reason="smoke"),
        parts.fleet_manager.kill_switch(KillScope.AGENTS, actor=HAL, key="agents", reason="a little smoke"),
        return_exceptions=True,
    )
    assert isinstance(results[1], NotPermitted)
    assert parts.fleet.kill is KillScope.ALL


async def test_a_key_belongs_to_one_pool(tmp_path: Path) -> None:
    parts, us = await build(tmp_path), PoolId("us")
    await parts.fleet_manager.put_pool(replace(spec(), id=us), observed_version=0, actor=ALICE, key="us", reason="r")
    await parts.fleet_manager.set_hold(POOL, minutes=5, actor=ALICE, key="k", reason="r")
    with pytest.raises(Conflict) as caught:
        await parts.fleet_manager.set_hold(us, minutes=5, actor=ALICE, key="k", reason="r")
    assert caught.value.code == "fleet.idempotency_key_reused"


async def test_a_note_can_be_repeated_without_its_pool(tmp_path: Path) -> None:
    """A client that approves a plan again no longer knows the pool of the proposal."""
    parts = await build(tmp_path)
    first = await parts.maintainer_api.add_note("look", pool=POOL, actor=HAL, key="k", reason="r")

    assert (
        await parts.maintainer_api.add_note("look", pool="", actor=HAL, key="k", reason="r")
    ).ordinal == first.ordinal
