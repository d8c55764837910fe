"""Changes of the run: the same guard, approvals, kill switch, budgets and audit log as for pools."""

import json
import socket
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import Conflict, InvalidInput, NotPermitted, PlanRefused, Unavailable
from astraflow.contract.fleet.maintainer import ProposalState
from astraflow.contract.fleet.plans import Actor, GuardRule, Plan, PlanRequest, Role, Verdict
from astraflow.contract.fleet.pools import KillScope, PoolSpec
from astraflow.contract.fleet.run_changes import RUN, RunAction, RunChange
from astraflow.contract.ids import PoolId
from astraflow.contract.plugins import PluginSlot
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import render_summary
from astraflow.runtime.folders.run_folders import RUN as RUN_FILE
from astraflow.runtime.folders.run_folders import RunFacts
from maintainer.fleet.changes.run_changes import RunOnThisMachine
from maintainer.fleet.guard.rules import Limits
from maintainer.fleet.guard.run_changes import RunGuardInputs, RunSituation, parse_inputs
from tests.errors import raises_code
from tests.maintainer.fleet.parts import ALICE, OTTO, Parts, build

pytestmark = pytest.mark.anyio

AGENT = Actor(name="maintainer", role=Role.AGENT)
PAUSE = RunChange(action=RunAction.PAUSE, subject="math")
FORK = RunChange(action=RunAction.FORK, subject="solver", learning_rate=1e-4)
EVALUATE = RunChange(action=RunAction.EVALUATE, subject="test")
PLUGIN = RunChange(action=RunAction.PLUGIN, subject="math", slot=PluginSlot.SELECTOR, kind="curriculum")


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    """Fleet service beside the folder of its run."""
    (tmp_path / RUN_FILE).write_text("{}")
    parts = await build(tmp_path)
    parts.fleet.observation.update(parts.run.report())
    yield parts


async def planned(parts: Parts, change: RunChange, actor: Actor = AGENT) -> Plan:
    """Returns a plan of an agent."""
    return await parts.fleet_manager.plans.make(PlanRequest(pool=RUN, actor=actor, reason="a fault", run=change))


async def proposed(parts: Parts, change: RunChange) -> Plan:
    """Returns a plan that waits for a person."""
    plan = await planned(parts, change)
    await parts.proposals.propose(plan.id, actor=AGENT, key=f"propose-{plan.id}", reason="a fault")
    return plan


async def test_a_person_approves_a_change_which_dataflow_makes_once_and_the_audit_log_keeps(parts: Parts) -> None:
    plan = await proposed(parts, PLUGIN)
    assert (plan.verdict, [finding.code for finding in plan.findings]) == (Verdict.NEEDS_APPROVAL, [GuardRule.RUN])
    with pytest.raises(PlanRefused):
        await parts.fleet_manager.apply(plan.id, key="a", approver=None)
    assert parts.run.changes == []
    applied = await parts.fleet_manager.apply(plan.id, key="b", approver=OTTO)
    assert await parts.fleet_manager.apply(plan.id, key="b", approver=OTTO) == applied
    with raises_code(Conflict, "fleet.unknown_plan"):
        await parts.fleet_manager.apply(plan.id, key="another", approver=ALICE)
    [(what, subject, by)] = parts.run.changes
    assert ("curriculum" in what, subject, by) == (True, "math", "otto")
    decisions, _ = await parts.ledger.decisions(pool=RUN, before=None, limit=10)
    assert [entry.kind for entry in decisions] == [RecordKind.APPLY, RecordKind.REFUSE, RecordKind.PROPOSE]
    assert render_summary(decisions[0]) == "use the selector curriculum in math, approved by otto"
    stored = await parts.ledger.proposal(plan.id)
    assert stored is not None
    assert (stored.state, stored.plan.request.run) == (ProposalState.APPROVED, PLUGIN)


async def test_an_agent_evaluates_without_a_person(parts: Parts) -> None:
    plan = await planned(parts, EVALUATE)
    assert plan.verdict is Verdict.ALLOWED
    await parts.fleet_manager.apply(plan.id, key="a")
    assert parts.run.changes == [("evaluate", "test", "maintainer")]


async def test_refusals_do_not_hide_the_pace_of_an_agent(tmp_path: Path) -> None:
    parts = await build(tmp_path, limits={"changes_per_hour": 2})
    parts.fleet.observation.update(parts.run.report())
    for turn in range(2):
        plan = await planned(parts, EVALUATE)
        await parts.fleet_manager.apply(plan.id, key=f"evaluate-{turn}")
    refused = await planned(parts, PAUSE)
    for turn in range(101):
        with pytest.raises(PlanRefused):
            await parts.fleet_manager.apply(refused.id, key=f"pause-{turn}")
    again = await planned(parts, EVALUATE)
    assert (again.verdict, again.findings[-1].code) == (Verdict.REFUSED, GuardRule.RATE)
    parts.clock.advance(3601.0)
    parts.fleet.observation.update(parts.run.report())
    assert (await planned(parts, EVALUATE)).verdict is Verdict.ALLOWED


async def test_a_failed_change_is_not_recorded_and_can_be_repeated(parts: Parts) -> None:
    plan = await proposed(parts, PAUSE)
    parts.run.is_away = True
    with pytest.raises(Unavailable):
        await parts.fleet_manager.apply(plan.id, key="a", approver=OTTO)
    parts.run.is_away = False
    assert (await parts.fleet_manager.apply(plan.id, key="a", approver=OTTO)).message == (
        "pause the flow math, approved by otto"
    )


async def test_a_rejected_change_is_refused_to_agents_for_an_hour_with_any_rate(parts: Parts) -> None:
    plan = await proposed(parts, FORK)
    await parts.proposals.reject(plan.id, actor=OTTO, key="r", reason="not now")
    again = await planned(parts, replace(FORK, learning_rate=1e-5))
    assert (again.verdict, again.findings[-1].code) == (Verdict.REFUSED, GuardRule.REJECTED)
    assert (await planned(parts, PAUSE)).verdict is Verdict.NEEDS_APPROVAL
    parts.clock.advance(3601.0)
    parts.fleet.observation.update(parts.run.report())
    assert (await planned(parts, FORK)).verdict is Verdict.NEEDS_APPROVAL


async def test_a_later_proposal_supersedes_and_an_equal_one_waits(parts: Parts) -> None:
    first = await proposed(parts, PAUSE)
    equal = await planned(parts, PAUSE)
    waiting = await parts.proposals.propose(equal.id, actor=AGENT, key="equal", reason="a fault")
    assert waiting.plan.id == first.id
    await proposed(parts, FORK)
    stored = await parts.ledger.proposal(first.id)
    assert stored is not None
    assert stored.state is ProposalState.SUPERSEDED


@pytest.mark.parametrize("scope", [KillScope.AGENTS, KillScope.ALL])
async def test_the_kill_switch_refuses_changes(parts: Parts, scope: KillScope) -> None:
    await parts.fleet_manager.kill_switch(scope, actor=ALICE, key="kill", reason="a test")
    plan = await planned(parts, PAUSE)
    assert (plan.verdict, plan.findings[0].code) == (Verdict.REFUSED, GuardRule.KILL_SWITCH)
    with pytest.raises(PlanRefused):
        await parts.fleet_manager.apply(plan.id, key="a", approver=OTTO)
    assert parts.run.changes == []


async def test_an_actor_of_one_pool_changes_no_run(parts: Parts) -> None:
    with raises_code(NotPermitted, "fleet.other_pool"):
        await planned(parts, PAUSE, replace(AGENT, pool="eu"))


def situation(**changes: Any) -> RunSituation:
    """Run in which everything is allowed with approval."""
    usual: dict[str, Any] = {
        "now": 10_000.0,
        "kill": KillScope.NONE,
        "report_age_s": 1.0,
        "changed_at": (),
        "usd_per_hour": 4.0,
        "usd_today": 10.0,
        "has_folder": True,
    }
    return RunSituation(**usual | changes)


BUDGETS = Limits(usd_per_hour_max=7.0, usd_per_day_max=17.0)


@pytest.mark.parametrize(
    ("changes", "change", "limits", "refusals"),
    [
        ({}, FORK, Limits(), set()),
        ({}, FORK, BUDGETS, {GuardRule.FLEET_USD_PER_HOUR, GuardRule.FLEET_USD_PER_DAY}),
        ({"usd_per_hour": 3.0}, FORK, BUDGETS, set()),
        ({}, PAUSE, BUDGETS, set()),
        ({"report_age_s": None}, PAUSE, Limits(), {GuardRule.STALE}),
        ({"report_age_s": 91.0}, PAUSE, Limits(), {GuardRule.STALE}),
        ({"has_folder": False}, FORK, Limits(), {GuardRule.SCOPE}),
        ({"has_folder": False}, RunChange(action=RunAction.STOP), Limits(), {GuardRule.SCOPE}),
        ({"changed_at": (1.0, 9_000.0, 9_001.0, 9_002.0, 9_003.0)}, PAUSE, Limits(), {GuardRule.RATE}),
        ({"changed_at": (1.0, 2.0, 9_001.0, 9_002.0, 9_003.0)}, PAUSE, Limits(), set()),
    ],
)
def test_the_guard_refuses_by_budget_pace_place_and_age(
    changes: dict[str, Any], change: RunChange, limits: Limits, refusals: set[GuardRule]
) -> None:
    inputs = RunGuardInputs(situation=situation(**changes), actor=AGENT, change=change, limits=limits)
    findings = inputs.violations()
    assert {finding.code for finding in findings if finding.verdict is Verdict.REFUSED} == refusals
    assert GuardRule.RUN in {finding.code for finding in findings}
    again = parse_inputs(inputs.to_json())
    assert (again, again.violations()) == (inputs, findings)
    people = replace(inputs, actor=ALICE).violations()
    assert {finding.code for finding in people} == refusals - {GuardRule.STALE}


@pytest.mark.parametrize(
    "text", ['{"change":{}}', '{"change":[]}', '{"change":{"action":"stop","kind":"a b"},"situation":{}}', "{"]
)
def test_broken_inputs_of_the_guard_are_refused(text: str) -> None:
    with raises_code(InvalidInput, "fleet.invalid_guard_inputs"):
        parse_inputs(text)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"action": RunAction.PAUSE}, "run_change.invalid"),
        ({"action": RunAction.STOP, "subject": "math"}, "run_change.invalid"),
        ({"action": RunAction.FORK, "subject": "solver"}, "run_change.invalid"),
        ({"action": RunAction.PLUGIN, "subject": "math", "kind": "uniform"}, "run_change.invalid"),
        ({"action": RunAction.FORK, "subject": "solver", "learning_rate": 1.5}, "run_change.invalid_rate"),
        ({"action": RunAction.FORK, "subject": "solver", "learning_rate": float("nan")}, "run_change.invalid_rate"),
        ({"action": RunAction.PAUSE, "subject": "a flow; rm"}, "id.invalid_name"),
    ],
)
def test_invalid_changes_are_refused(fields: dict[str, Any], code: str) -> None:
    with raises_code(InvalidInput, code):
        RunChange(**fields)


def test_the_name_of_the_run_is_no_pool() -> None:
    with raises_code(InvalidInput, "pool.reserved_name"):
        PoolSpec(id=RUN, provider="cloud", mode="on", max_nodes=1)  # type: ignore[arg-type]  # refused before its mode
    with raises_code(InvalidInput, "plan.invalid_change"):
        PlanRequest(pool=PoolId("eu"), actor=AGENT, reason="a fault", run=PAUSE)
    with raises_code(InvalidInput, "plan.invalid_change"):
        PlanRequest(pool=RUN, actor=AGENT, reason="a fault", target=3)


async def test_plans_of_the_run_survive_a_restart_of_the_ledger(parts: Parts) -> None:
    plan = await proposed(parts, FORK)
    await parts.ledger.load(now=parts.clock.wall())
    [waiting] = parts.ledger.waiting_proposals.values()
    assert (waiting.plan.request, json.loads(waiting.plan.guard_json)["change"]["action"]) == (plan.request, "fork")


class Host:
    """Machine of a run that can be stopped and forked."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def stop(self) -> None:
        self.calls.append(("stop",))

    def fork(self, policy: str, learning_rate: float, *, name: str) -> None:
        self.calls.append(("fork", policy, learning_rate, name))


async def test_the_service_stops_and_forks_the_run_on_its_machine(parts: Parts) -> None:
    host = Host()
    parts.fleet_manager._run_changes._host = host
    fork = await proposed(parts, FORK)
    await parts.fleet_manager.apply(fork.id, key="f", approver=OTTO)
    stop = await proposed(parts, RunChange(action=RunAction.STOP))
    await parts.fleet_manager.apply(stop.id, key="s", approver=OTTO)
    assert host.calls == [("fork", "solver", 1e-4, fork.id[-8:].lower()), ("stop",)]


async def test_a_run_elsewhere_is_neither_stopped_nor_forked(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    parts.fleet.observation.update(parts.run.report())
    for change in (FORK, RunChange(action=RunAction.STOP)):
        plan = await planned(parts, change, ALICE)
        assert (plan.verdict, plan.findings[0].code) == (Verdict.REFUSED, GuardRule.SCOPE)


def test_a_fork_that_ends_at_once_has_failed_with_its_reason_also_when_it_is_repeated(tmp_path: Path) -> None:
    origin = RunOnThisMachine(tmp_path / "no-run")
    for _ in range(2):
        with raises_code(Unavailable, "fleet.fork_failed", "it has ended", "no-run"):
            origin.fork("solver", 1e-4, name="abc")


def test_a_fork_has_begun_when_its_dataflow_accepts_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port, started = server.getsockname()[1], []

        def start(argv: list[str], *, environment: dict[str, str], log_file: Path) -> int:
            started.append((argv, environment))
            facts = RunFacts(
                run="f", recipe="r", seed=0, started_at="", release="", commit="", python="", pid=1,
                dataflow=f"127.0.0.1:{port}",
            )  # fmt: skip
            (log_file.parents[1] / "run.json").write_text(json.dumps(asdict(facts)))
            return 1

        monkeypatch.setattr("maintainer.fleet.changes.run_changes.start_independent", start)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
        monkeypatch.setenv("ASTRAFLOW_TOKEN", "secret")
        for _ in range(2):
            RunOnThisMachine(tmp_path / "origin").fork("solver", 1e-4, name="abc")
    [(argv, environment)] = started
    assert argv[-1] == "policies.solver.backend.learning_rate=0.0001"
    assert (environment["CUDA_VISIBLE_DEVICES"], "ASTRAFLOW_TOKEN" in environment) == ("3", False)
