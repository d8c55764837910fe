"""Plans that wait for approval."""

from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.contract.errors import Conflict, InvalidInput, NotPermitted, PlanRefused
from astraflow.contract.fleet.maintainer import Proposal, ProposalState
from astraflow.contract.fleet.plans import Actor, Plan, PlanRequest, Verdict
from astraflow.contract.fleet.recommendations import Mode
from maintainer.fleet.changes import plans
from maintainer.fleet.changes.proposals import Proposals
from tests.maintainer.fleet.parts import ALICE, HAL, OTTO, POOL, Parts, build, spec

pytestmark = pytest.mark.anyio


async def proposed(parts: Parts, target: int = 2, *, key: str = "p") -> tuple[Proposals, Plan]:
    proposals = Proposals(parts.fleet, parts.fleet_manager)
    plan = await parts.fleet_manager.plans.make(PlanRequest(pool=POOL, actor=HAL, reason="more", target=target))
    await proposals.propose(plan.id, actor=HAL, key=key, reason="more")
    return proposals, plan


def waiting(parts: Parts) -> int:
    """Returns the number of waiting proposals from the fleet status."""
    return parts.fleet.status(last_sweep_at=None, problems=()).waiting


async def only(proposals: Proposals) -> Proposal:
    listed_proposals, has_older = await proposals.page(only_waiting=False, before="", limit=10)
    assert not has_older
    return listed_proposals[0]


async def test_a_person_approves_a_proposal_by_applying_it(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    proposals, plan = await proposed(parts)
    assert waiting(parts) == 1
    with pytest.raises(PlanRefused, check=lambda problem: problem.code == "fleet.plan_refused"):
        await parts.fleet_manager.apply(plan.id, key="own")
    (refused,), _ = await parts.ledger.decisions(pool="", before=None, limit=1)
    assert "proposed" in [finding.code.value for finding in refused.findings]
    applied = await parts.fleet_manager.apply(plan.id, key="yes", approver=OTTO)
    assert waiting(parts) == 0
    assert len(applied.launched) == 2
    assert OTTO.name in applied.message
    assert (await proposals.page(only_waiting=True, before="", limit=10))[0] == ()
    settled = await only(proposals)
    assert (settled.state, settled.decided_by) == (ProposalState.APPROVED, "otto")


async def test_a_proposal_is_valid_longer_than_a_plan_and_then_expires(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    proposals, plan = await proposed(parts)
    parts.clock.advance(600.0)
    assert (await only(proposals)).state is ProposalState.WAITING
    assert waiting(parts) == 1
    parts.clock.advance(301.0)
    assert waiting(parts) == 0
    assert (await only(proposals)).state is ProposalState.EXPIRED
    with pytest.raises(Conflict) as caught:
        await parts.fleet_manager.apply(plan.id, key="late", approver=OTTO)
    assert caught.value.code == "fleet.unknown_plan"


async def test_a_rejected_proposal_cannot_be_applied(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    proposals, plan = await proposed(parts)
    with pytest.raises(NotPermitted) as caught:
        await proposals.reject(plan.id, actor=HAL, key="no", reason="no")
    assert caught.value.code == "fleet.people_only"
    first = await proposals.reject(plan.id, actor=OTTO, key="no", reason="too dear")
    assert await proposals.reject(plan.id, actor=OTTO, key="no", reason="too dear") == first
    with pytest.raises(InvalidInput) as refused:
        await proposals.reject(plan.id, actor=OTTO, key="again", reason="too dear")
    assert refused.value.code == "fleet.proposal_not_waiting"
    with pytest.raises(Conflict):
        await parts.fleet_manager.apply(plan.id, key="still", approver=ALICE)
    assert (await only(proposals)).decision_reason == "too dear"


async def test_a_later_proposal_supersedes_the_last(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    proposals, first = await proposed(parts)
    parts.clock.advance(1.0)
    _, second = await proposed(parts, 3, key="q")
    waiting, _ = await proposals.page(only_waiting=True, before="", limit=10)
    assert [notice.plan.id for notice in waiting] == [second.id]
    listed_proposals, _ = await proposals.page(only_waiting=False, before="", limit=10)
    assert {proposal.plan.id: proposal.state for proposal in listed_proposals} == {
        first.id: ProposalState.SUPERSEDED,
        second.id: ProposalState.WAITING,
    }


async def test_an_equal_proposal_does_not_replace_a_waiting_one(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    proposals, first = await proposed(parts)
    parts.clock.advance(60.0)
    before = parts.ledger.next_decision
    again = await parts.fleet_manager.plans.make(PlanRequest(pool=POOL, actor=HAL, reason="more, please", target=2))
    assert (await proposals.propose(again.id, actor=HAL, key="q", reason="more, please")).plan.id == first.id
    listed_proposals, _ = await proposals.page(only_waiting=False, before="", limit=10)
    assert [(proposal.plan.id, proposal.state) for proposal in listed_proposals] == [(first.id, ProposalState.WAITING)]
    assert parts.ledger.next_decision == before, "no second notification is sent"
    parts.clock.advance(900.0)
    _, late = await proposed(parts, key="r")
    assert (await only(proposals)).plan.id == late.id, "an expired proposal can be repeated"


async def test_a_rejection_lasts_for_a_while_and_survives_a_restart(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    proposals, plan = await proposed(parts)
    await proposals.reject(plan.id, actor=OTTO, key="no", reason="too dear")

    async def verdict(here: Parts, actor: Actor = HAL) -> tuple[Verdict, list[str]]:
        new_plan = await here.fleet_manager.plans.make(PlanRequest(pool=POOL, actor=actor, reason="more", target=2))
        return new_plan.verdict, [finding.code.value for finding in new_plan.findings]

    assert await verdict(parts) == (Verdict.REFUSED, ["rejected"])
    assert await verdict(parts, OTTO) == (Verdict.ALLOWED, []), "a rejected proposal can be approved later"
    parts.clock.advance(1800.0)
    again = await build(tmp_path, database=parts.database, clock=parts.clock, cloud=parts.cloud)
    assert await verdict(again) == (Verdict.REFUSED, ["rejected"])
    parts.clock.advance(1801.0)
    assert await verdict(again) == (Verdict.ALLOWED, [])


async def test_a_change_of_the_pool_supersedes_a_waiting_proposal(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    proposals, plan = await proposed(parts)
    await parts.want(1)
    assert (await only(proposals)).state is ProposalState.SUPERSEDED
    with pytest.raises(Conflict, check=lambda problem: problem.code == "fleet.pool_changed"):
        await parts.fleet_manager.apply(plan.id, key="yes", approver=OTTO)


async def test_a_restart_expires_waiting_proposals(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await proposed(parts)
    again = await build(tmp_path, database=parts.database, clock=parts.clock, cloud=parts.cloud)
    proposals = Proposals(again.fleet, again.fleet_manager)
    assert (await only(proposals)).state is ProposalState.EXPIRED
    assert (await proposals.page(only_waiting=True, before="", limit=10))[0] == ()


async def test_a_plan_that_the_guard_refuses_cannot_be_proposed(tmp_path: Path) -> None:
    parts = await build(tmp_path, pool=spec(max_nodes=3))
    plan = await parts.fleet_manager.plans.make(PlanRequest(pool=POOL, actor=HAL, reason="more", target=30))
    assert "max_nodes" in [finding.code.value for finding in plan.findings]
    with pytest.raises(NotPermitted, check=lambda problem: problem.code == "fleet.plan_not_allowed"):
        await Proposals(parts.fleet, parts.fleet_manager).propose(plan.id, actor=HAL, key="p", reason="more")


async def test_an_actor_cannot_propose_the_plan_of_another(tmp_path: Path) -> None:
    parts = await build(tmp_path, pool=spec(mode=Mode.ADVISE))
    plan = await parts.fleet_manager.plans.make(PlanRequest(pool=POOL, actor=HAL, reason="more", target=2))
    with pytest.raises(NotPermitted) as caught:
        await Proposals(parts.fleet, parts.fleet_manager).propose(
            plan.id, actor=replace(HAL, name="other"), key="p", reason="more"
        )
    assert caught.value.code == "fleet.other_planner"


async def test_a_repeated_proposal_returns_it_also_after_the_decision(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    proposals, plan = await proposed(parts)
    await parts.fleet_manager.apply(plan.id, key="yes", approver=OTTO)
    before = parts.ledger.next_decision
    again = await proposals.propose(plan.id, actor=HAL, key="p", reason="more")
    assert (again.plan.id, again.state) == (plan.id, ProposalState.APPROVED)
    assert parts.ledger.next_decision == before
    with pytest.raises(Conflict) as caught:
        await proposals.propose(plan.id, actor=HAL, key="yes", reason="more")
    assert caught.value.code == "fleet.idempotency_key_reused"


async def test_a_rejected_shrink_is_refused_to_agents_who_name_its_nodes(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await parts.want(4)
    await parts.pass_time(60.0)
    proposals, plan = await proposed(parts, 2)
    await proposals.reject(plan.id, actor=OTTO, key="no", reason="they are needed")
    named = PlanRequest(pool=POOL, actor=HAL, reason="fewer", retire=plan.victims)
    assert "rejected" in [finding.code.value for finding in (await parts.fleet_manager.plans.make(named)).findings]


async def test_a_waiting_plan_outlasts_many_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MAX_PLANS", 3)
    parts = await build(tmp_path)
    proposals, plan = await proposed(parts)
    others = [
        await parts.fleet_manager.plans.make(PlanRequest(pool=POOL, actor=HAL, reason="more", target=target))
        for target in range(3, 8)
    ]
    assert (await only(proposals)).state is ProposalState.WAITING
    known = [parts.fleet_manager.plans.known(other.id) is not None for other in others]
    assert known == [False, False, False, True, True]
    assert len((await parts.fleet_manager.apply(plan.id, key="yes", approver=OTTO)).launched) == 2
