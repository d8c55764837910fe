"""The ledger says what made an instance go: whoever was first, and the provider where it was only missed at first."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.causes import Cause
from astraflow.contract.fleet import Instance, InstanceState, LaunchId, PlanRequest
from astraflow.contract.ids import PoolId
from astraflow.contract.reports import NodeState
from maintainer.fleet.departures import cause_after
from maintainer.fleet.lifecycle import COUNTED, Sight, after
from tests.fakes.cloud import Machine
from tests.maintainer.fleet.parts import ALICE, POOL, START, Parts, build

pytestmark = pytest.mark.anyio


async def working(tmp_path: Path, nodes: int = 3) -> Parts:
    parts = await build(tmp_path)
    await parts.want(nodes)
    await parts.pass_time(60.0)
    assert parts.states() == {"ready": nodes}
    return parts


def first(parts: Parts) -> tuple[LaunchId, Machine]:
    """The oldest launch that lives, and its machine."""
    launch = min(record.id for record in parts.ledger.alive())
    (machine,) = parts.cloud.find(launch)
    return launch, machine


def seen(parts: Parts, launch: LaunchId) -> Instance:
    return parts.ledger.records[launch].instance


async def test_what_the_provider_takes_away_with_notice_drains_for_that_cause(tmp_path: Path) -> None:
    parts = await working(tmp_path)
    launch, machine = first(parts)
    parts.cloud.take_away(machine, in_s=120.0)
    await parts.reconciler.sweep()
    assert (seen(parts, launch).state, seen(parts, launch).cause) == (InstanceState.DRAINING, Cause.TAKEN)
    view = parts.fleet.view(parts.fleet.pool(POOL))
    assert (view.leaving, view.losses) == ({Cause.TAKEN: 1}, {Cause.TAKEN: 1})
    await parts.pass_time(200.0)
    assert (seen(parts, launch).state, seen(parts, launch).cause) == (InstanceState.GONE, Cause.TAKEN)
    view = parts.fleet.view(parts.fleet.pool(POOL))
    assert (view.leaving, view.losses) == ({}, {Cause.TAKEN: 1})
    again = await build(tmp_path, database=parts.database, cloud=parts.cloud, clock=parts.clock, run=parts.run)
    assert seen(again, launch).cause is Cause.TAKEN, "and it is kept"
    parts.clock.advance(3600.0)
    assert parts.fleet.view(parts.fleet.pool(POOL)).losses == {}, "losses are those of an hour"


async def test_an_order_stays_the_cause_though_the_provider_takes_it_away_after(tmp_path: Path) -> None:
    parts = await working(tmp_path)
    launch, machine = first(parts)
    request = PlanRequest(pool=POOL, actor=ALICE, reason="it is slow", retire=(launch,))
    plan = await parts.desk.plans.make(request)
    await parts.desk.apply(plan.id, key="one", approver=ALICE)
    parts.cloud.take_away(machine, in_s=120.0)
    await parts.reconciler.sweep()
    assert (seen(parts, launch).state, seen(parts, launch).cause) == (InstanceState.DRAINING, Cause.ORDERED)
    assert parts.fleet.view(parts.fleet.pool(POOL)).losses == {}


async def test_a_node_that_left_on_its_notice_was_lost_until_its_provider_is_looked_at(tmp_path: Path) -> None:
    parts = await working(tmp_path)
    launch, machine = first(parts)
    parts.cloud.take_away(machine, in_s=120.0)  # its node hears of it, and goes at once: no report has it any more
    parts.fleet.observation.take(parts.run.report())
    await parts.reconciler.observe()
    assert (seen(parts, launch).state, seen(parts, launch).cause) == (InstanceState.RETIRING, Cause.LOST)
    await parts.reconciler.sweep()
    assert (seen(parts, launch).state, seen(parts, launch).cause) == (InstanceState.RETIRING, Cause.TAKEN)


async def test_a_machine_of_which_only_the_end_is_seen_had_its_notice_all_the_same(tmp_path: Path) -> None:
    parts = await working(tmp_path)
    launch, machine = first(parts)
    parts.cloud.take_away(machine, in_s=10.0)
    parts.clock.advance(20.0)
    await parts.reconciler.sweep()
    assert (seen(parts, launch).state, seen(parts, launch).cause) == (InstanceState.GONE, Cause.TAKEN)


async def test_the_nodes_own_word_of_a_notice_counts_before_any_list_has_it(tmp_path: Path) -> None:
    parts = await working(tmp_path)
    launch, _ = first(parts)
    parts.run.leaving[launch] = Cause.TAKEN
    parts.fleet.observation.take(parts.run.report())
    await parts.reconciler.observe()
    assert (seen(parts, launch).state, seen(parts, launch).cause) == (InstanceState.DRAINING, Cause.TAKEN)


async def test_a_notice_counts_though_it_is_heard_of_after_the_end(tmp_path: Path) -> None:
    parts = await working(tmp_path)
    launch, machine = first(parts)
    before = parts.run.report()
    parts.cloud.end(machine, after_s=0.0)  # it ends itself as soon as its node has said goodbye
    await parts.reconciler.sweep()
    assert (seen(parts, launch).state, seen(parts, launch).cause) == (InstanceState.GONE, Cause.LOST)
    nodes = [
        replace(node, state=NodeState.GONE, cause=Cause.TAKEN) if node.facts.name == launch else node
        for node in before.nodes
    ]
    parts.fleet.observation.take(replace(before, nodes=tuple(nodes)))
    await parts.reconciler.observe()
    assert (seen(parts, launch).state, seen(parts, launch).cause) == (InstanceState.GONE, Cause.TAKEN)
    assert parts.fleet.view(parts.fleet.pool(POOL)).losses == {Cause.TAKEN: 1}


@pytest.mark.parametrize(
    ("told", "cause"), [(Cause.ORDERED, Cause.ORDERED), (Cause.TAKEN, Cause.TAKEN), (None, Cause.LOST)]
)
async def test_of_a_node_that_has_left_dataflow_knows_whether_anybody_asked(
    tmp_path: Path, told: Cause | None, cause: Cause
) -> None:
    parts = await working(tmp_path)
    launch, _ = first(parts)
    report = parts.run.report()
    nodes = [
        replace(node, state=NodeState.GONE, cause=told) if node.facts.name == launch else node for node in report.nodes
    ]
    parts.fleet.observation.take(replace(report, nodes=tuple(nodes)))
    await parts.reconciler.observe()
    assert (seen(parts, launch).state, seen(parts, launch).cause) == (InstanceState.RETIRING, cause)


async def test_what_ends_without_a_word_was_lost_and_what_never_worked_has_failed(tmp_path: Path) -> None:
    parts = await working(tmp_path)
    launch, machine = first(parts)
    parts.cloud.end(machine, after_s=0.0)
    await parts.reconciler.sweep()
    assert seen(parts, launch).cause is Cause.LOST
    await parts.want(4)
    await parts.actuator.work()
    (pending, *_) = [record.id for record in parts.ledger.alive() if record.instance.ready_at is None]
    (machine,) = parts.cloud.find(pending)
    parts.cloud.end(machine, after_s=0.0)
    await parts.reconciler.sweep()
    assert seen(parts, pending).cause is Cause.FAILED
    assert parts.fleet.view(parts.fleet.pool(POOL)).losses == {Cause.LOST: 1}, "what never worked is no loss"


async def test_age_and_what_does_not_fit_are_causes_of_their_own(tmp_path: Path) -> None:
    parts = await working(tmp_path, 2)
    launch, _ = first(parts)
    old, odd = sorted(record.id for record in parts.ledger.alive())
    await parts.fleet.see(odd, Sight.PENDING)
    assert seen(parts, odd).state is InstanceState.SUSPECT
    assert seen(parts, odd).cause is None
    parts.clock.advance(301.0)
    await parts.reconciler.observe()
    assert (seen(parts, odd).state, seen(parts, odd).cause) == (InstanceState.DRAINING, Cause.UNCLEAR)
    parts.clock.advance(seen(parts, old).expires_at - parts.clock.wall() + 1.0)
    await parts.reconciler.observe()
    assert launch == old
    assert (seen(parts, old).state, seen(parts, old).cause) == (InstanceState.DRAINING, Cause.EXPIRED)


def instance(state: InstanceState, *, has_worked: bool) -> Instance:
    return Instance(
        id=LaunchId("01L"),
        pool=PoolId("eu"),
        state=state,
        provider="cloud",
        actor="alice",
        reason="a test",
        intended_at=START,
        expires_at=START + 1e6,
        ready_at=START + 60.0 if has_worked else None,
    )


@given(st.booleans(), st.lists(st.tuples(st.sampled_from(Sight), st.sampled_from([None, *Cause]))))
def test_what_goes_has_a_cause_what_stays_has_none_and_only_a_loss_is_ever_said_anew(
    has_worked: bool, sights: Sequence[tuple[Sight, Cause | None]]
) -> None:
    one = instance(InstanceState.READY, has_worked=has_worked)
    for sight, told in sights:
        cause = cause_after(one, sight, told)
        assert cause is one.cause or one.cause is None or (one.cause, cause) == (Cause.LOST, Cause.TAKEN)
        one = replace(one, state=after(one.state, sight), cause=cause)
        assert (one.cause is None) == (one.state in COUNTED)


def test_what_was_on_its_way_out_before_causes_were_kept_stays_without_one() -> None:
    for sight in Sight:
        assert cause_after(instance(InstanceState.DRAINING, has_worked=True), sight) is None
