"""Plans that wait for a person."""

from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.contract.advice import Mode
from astraflow.contract.errors import Conflict, InvalidInput, NotPermitted
from astraflow.contract.fleet import Actor, Plan, PlanRequest, Verdict
from astraflow.contract.maintenance import Proposal, ProposalState
from maintainer.fleet.proposals import Proposals
from tests.maintainer.fleet.parts import ALICE, HAL, OTTO, POOL, Parts, build, spec

pytestmark = pytest.mark.anyio


async def proposed(parts: Parts, target: int = 2, *, key: str = "p") -> tuple[Proposals, Plan]:
    proposals = Proposals(parts.fleet, parts.desk)
    plan = await parts.desk.plans.make(PlanRequest(pool=POOL, actor=HAL, reason="more", target=target))
    await proposals.propose(plan.id, actor=HAL, key=key, reason="more")
    return proposals, plan


def waiting(parts: Parts) -> int:
    """As everybody is told with the fleet's status."""
    return parts.fleet.status(last_sweep_at=None, troubles=()).waiting


async def only(proposals: Proposals) -> Proposal:
    found, has_older = await proposals.page(only_waiting=False, before="", limit=10)
    assert not has_older
    return found[0]


async def test_a_person_approves_by_applying(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    proposals, plan = await proposed(parts)
    assert waiting(parts) == 1
    with pytest.raises(NotPermitted, match="put before a person"):
        await parts.desk.apply(plan.id, key="own")
    applied = await parts.desk.apply(plan.id, key="yes", approver=OTTO)
    assert waiting(parts) == 0
    assert len(applied.launched) == 2
    assert "approved by otto" in applied.message
    assert (await proposals.page(only_waiting=True, before="", limit=10))[0] == ()
    settled = await only(proposals)
    assert (settled.state, settled.decided_by) == (ProposalState.APPROVED, "otto")


async def test_a_proposal_is_good_for_longer_than_a_plan_and_then_expires(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    proposals, plan = await proposed(parts)
    parts.clock.advance(600.0)
    assert (await only(proposals)).state is ProposalState.WAITING
    assert waiting(parts) == 1
    parts.clock.advance(301.0)
    assert waiting(parts) == 0
    assert (await only(proposals)).state is ProposalState.EXPIRED
    with pytest.raises(Conflict, match="not any more"):
        await parts.desk.apply(plan.id, key="late", approver=OTTO)


async def test_what_is_rejected_is_applied_by_nobody(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    proposals, plan = await proposed(parts)
    with pytest.raises(NotPermitted, match="people reject"):
        await proposals.reject(plan.id, actor=HAL, key="no", reason="no")
    first = await proposals.reject(plan.id, actor=OTTO, key="no", reason="too dear")
    assert await proposals.reject(plan.id, actor=OTTO, key="no", reason="too dear") == first
    with pytest.raises(InvalidInput, match="waits for nobody"):
        await proposals.reject(plan.id, actor=OTTO, key="again", reason="too dear")
    with pytest.raises(Conflict):
        await parts.desk.apply(plan.id, key="still", approver=ALICE)
    assert (await only(proposals)).decision_reason == "too dear"


async def test_a_later_proposal_takes_the_place_of_the_last(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    proposals, first = await proposed(parts)
    parts.clock.advance(1.0)
    _, second = await proposed(parts, 3, key="q")
    waiting, _ = await proposals.page(only_waiting=True, before="", limit=10)
    assert [one.plan.id for one in waiting] == [second.id]
    found, _ = await proposals.page(only_waiting=False, before="", limit=10)
    assert {one.plan.id: one.state for one in found} == {
        first.id: ProposalState.OVERTAKEN,
        second.id: ProposalState.WAITING,
    }


async def test_what_waits_already_is_not_replaced_by_the_same_again(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    proposals, first = await proposed(parts)
    parts.clock.advance(60.0)
    before = parts.ledger.next_decision
    again = await parts.desk.plans.make(PlanRequest(pool=POOL, actor=HAL, reason="more, please", target=2))
    assert (await proposals.propose(again.id, actor=HAL, key="q", reason="more, please")).plan.id == first.id
    found, _ = await proposals.page(only_waiting=False, before="", limit=10)
    assert [(one.plan.id, one.state) for one in found] == [(first.id, ProposalState.WAITING)]
    assert parts.ledger.next_decision == before, "nobody is told again"
    parts.clock.advance(900.0)
    _, late = await proposed(parts, key="r")
    assert (await only(proposals)).plan.id == late.id, "when nobody decided in time it may be asked again"


async def test_a_no_counts_for_a_while_and_survives_the_service(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    proposals, plan = await proposed(parts)
    await proposals.reject(plan.id, actor=OTTO, key="no", reason="too dear")

    async def verdict(here: Parts, actor: Actor = HAL) -> tuple[Verdict, list[str]]:
        made = await here.desk.plans.make(PlanRequest(pool=POOL, actor=actor, reason="more", target=2))
        return made.verdict, [finding.code for finding in made.findings]

    assert await verdict(parts) == (Verdict.REFUSED, ["rejected"])
    assert await verdict(parts, OTTO) == (Verdict.ALLOWED, []), "people may change their minds"
    parts.clock.advance(1800.0)
    again = await build(tmp_path, database=parts.database, clock=parts.clock, cloud=parts.cloud)
    assert await verdict(again) == (Verdict.REFUSED, ["rejected"])
    parts.clock.advance(1801.0)
    assert await verdict(again) == (Verdict.ALLOWED, [])


async def test_a_pool_that_changed_overtakes_what_waits(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    proposals, plan = await proposed(parts)
    await parts.want(1)
    assert (await only(proposals)).state is ProposalState.OVERTAKEN
    with pytest.raises(Conflict, match="has changed since"):
        await parts.desk.apply(plan.id, key="yes", approver=OTTO)


async def test_after_a_restart_what_waited_is_over(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await proposed(parts)
    again = await build(tmp_path, database=parts.database, clock=parts.clock, cloud=parts.cloud)
    proposals = Proposals(again.fleet, again.desk)
    assert (await only(proposals)).state is ProposalState.EXPIRED
    assert (await proposals.page(only_waiting=True, before="", limit=10))[0] == ()


async def test_what_the_guard_refuses_is_put_before_nobody(tmp_path: Path) -> None:
    parts = await build(tmp_path, pool=spec(max_nodes=3))
    plan = await parts.desk.plans.make(PlanRequest(pool=POOL, actor=HAL, reason="more", target=30))
    with pytest.raises(NotPermitted, match="more than the 3 allowed"):
        await Proposals(parts.fleet, parts.desk).propose(plan.id, actor=HAL, key="p", reason="more")


async def test_nobody_proposes_what_somebody_else_planned(tmp_path: Path) -> None:
    parts = await build(tmp_path, pool=spec(mode=Mode.ADVISE))
    plan = await parts.desk.plans.make(PlanRequest(pool=POOL, actor=HAL, reason="more", target=2))
    with pytest.raises(NotPermitted, match="only they can"):
        await Proposals(parts.fleet, parts.desk).propose(
            plan.id, actor=replace(HAL, name="other"), key="p", reason="more"
        )
