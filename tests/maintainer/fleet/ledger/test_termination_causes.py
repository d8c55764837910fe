"""Termination causes in the ledger: the first known cause, or the provider's where the node was only lost."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.fleet.instances import Cause, Instance, InstanceState, LaunchId
from astraflow.contract.fleet.plans import PlanRequest
from astraflow.contract.ids import PoolId
from astraflow.contract.reports.report import NodeState
from maintainer.fleet.ledger.lifecycle import COUNTED_STATES, InstanceEvent, next_state
from maintainer.fleet.ledger.transitions import termination_cause
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
    """Returns the oldest live launch and its machine."""
    launch = min(record.id for record in parts.ledger.alive())
    (machine,) = parts.cloud.find(launch)
    return launch, machine


def instance_of(parts: Parts, launch: LaunchId) -> Instance:
    return parts.ledger.records[launch].instance


@pytest.mark.long
async def test_an_instance_with_a_preemption_notice_drains_with_that_cause(tmp_path: Path) -> None:
    parts = await working(tmp_path)
    launch, machine = first(parts)
    parts.cloud.preempt(machine, in_s=120.0)
    await parts.reconciler.sweep()
    assert (instance_of(parts, launch).state, instance_of(parts, launch).cause) == (
        InstanceState.DRAINING,
        Cause.PREEMPTED,
    )
    view = parts.fleet.view(parts.fleet.pool(POOL))
    assert (view.terminating, view.losses) == ({Cause.PREEMPTED: 1}, {Cause.PREEMPTED: 1})
    await parts.pass_time(200.0)
    assert (instance_of(parts, launch).state, instance_of(parts, launch).cause) == (InstanceState.GONE, Cause.PREEMPTED)
    view = parts.fleet.view(parts.fleet.pool(POOL))
    assert (view.terminating, view.losses) == ({}, {Cause.PREEMPTED: 1})
    again = await build(tmp_path, database=parts.database, cloud=parts.cloud, clock=parts.clock, run=parts.run)
    assert instance_of(again, launch).cause is Cause.PREEMPTED, "the cause does not change"
    parts.clock.advance(3600.0)
    assert parts.fleet.view(parts.fleet.pool(POOL)).losses == {}, "losses are counted for one hour"


async def test_a_request_stays_the_cause_despite_a_later_preemption(tmp_path: Path) -> None:
    parts = await working(tmp_path)
    launch, machine = first(parts)
    request = PlanRequest(pool=POOL, actor=ALICE, reason="it is slow", retire=(launch,))
    plan = await parts.fleet_manager.plans.make(request)
    await parts.fleet_manager.apply(plan.id, key="one", approver=ALICE)
    parts.cloud.preempt(machine, in_s=120.0)
    await parts.reconciler.sweep()
    assert (instance_of(parts, launch).state, instance_of(parts, launch).cause) == (
        InstanceState.DRAINING,
        Cause.REQUESTED,
    )
    assert parts.fleet.view(parts.fleet.pool(POOL)).losses == {}


async def test_a_node_that_left_on_a_notice_is_lost_until_its_provider_is_read(tmp_path: Path) -> None:
    parts = await working(tmp_path)
    launch, machine = first(parts)
    parts.cloud.preempt(machine, in_s=120.0)  # its node sees the notice and leaves at once; no report lists it
    parts.clock.advance(60.0)
    parts.fleet.observation.update(parts.run.report())
    await parts.reconciler.check_nodes()
    assert (instance_of(parts, launch).state, instance_of(parts, launch).cause) == (InstanceState.RETIRING, Cause.LOST)
    await parts.reconciler.sweep()
    assert (instance_of(parts, launch).state, instance_of(parts, launch).cause) == (
        InstanceState.RETIRING,
        Cause.PREEMPTED,
    )


async def test_an_instance_seen_only_after_its_end_has_its_notice_as_cause(tmp_path: Path) -> None:
    parts = await working(tmp_path)
    launch, machine = first(parts)
    parts.cloud.preempt(machine, in_s=10.0)
    parts.clock.advance(20.0)
    parts.fleet.observation.update(parts.run.report())
    await parts.reconciler.sweep()
    assert (instance_of(parts, launch).state, instance_of(parts, launch).cause) == (InstanceState.GONE, Cause.PREEMPTED)


async def test_a_notice_reported_by_the_node_counts_before_the_list_has_it(tmp_path: Path) -> None:
    parts = await working(tmp_path)
    launch, _ = first(parts)
    parts.run.leaving[launch] = Cause.PREEMPTED
    parts.fleet.observation.update(parts.run.report())
    await parts.reconciler.check_nodes()
    assert (instance_of(parts, launch).state, instance_of(parts, launch).cause) == (
        InstanceState.DRAINING,
        Cause.PREEMPTED,
    )


async def test_a_notice_counts_also_after_the_end(tmp_path: Path) -> None:
    parts = await working(tmp_path)
    launch, machine = first(parts)
    before = parts.run.report()
    parts.cloud.end(machine, after_s=0.0)  # it terminates itself after its node has left
    parts.fleet.observation.update(parts.run.report())
    await parts.reconciler.sweep()
    assert (instance_of(parts, launch).state, instance_of(parts, launch).cause) == (InstanceState.GONE, Cause.LOST)
    nodes = [
        replace(node, state=NodeState.GONE, cause=Cause.PREEMPTED) if node.facts.name == launch else node
        for node in before.nodes
    ]
    parts.fleet.observation.update(replace(before, nodes=tuple(nodes)))
    await parts.reconciler.check_nodes()
    assert (instance_of(parts, launch).state, instance_of(parts, launch).cause) == (InstanceState.GONE, Cause.PREEMPTED)
    assert parts.fleet.view(parts.fleet.pool(POOL)).losses == {Cause.PREEMPTED: 1}


@pytest.mark.parametrize(
    ("reported_cause", "cause"),
    [(Cause.REQUESTED, Cause.REQUESTED), (Cause.PREEMPTED, Cause.PREEMPTED), (None, Cause.LOST)],
)
async def test_dataflow_knows_whether_a_departed_node_was_requested_to_leave(
    tmp_path: Path, reported_cause: Cause | None, cause: Cause
) -> None:
    parts = await working(tmp_path)
    launch, _ = first(parts)
    report = parts.run.report()
    nodes = [
        replace(node, state=NodeState.GONE, cause=reported_cause) if node.facts.name == launch else node
        for node in report.nodes
    ]
    parts.fleet.observation.update(replace(report, nodes=tuple(nodes)))
    await parts.reconciler.check_nodes()
    assert (instance_of(parts, launch).state, instance_of(parts, launch).cause) == (InstanceState.RETIRING, cause)


@pytest.mark.long
async def test_an_unannounced_end_is_a_loss_and_a_node_that_never_worked_has_failed(tmp_path: Path) -> None:
    parts = await working(tmp_path)
    launch, machine = first(parts)
    parts.cloud.end(machine, after_s=0.0)
    parts.fleet.observation.update(parts.run.report())
    await parts.reconciler.sweep()
    assert instance_of(parts, launch).cause is Cause.LOST
    await parts.want(4)
    await parts.actuator.run_due_steps()
    (pending, *_) = [record.id for record in parts.ledger.alive() if record.instance.ready_at is None]
    (machine,) = parts.cloud.find(pending)
    parts.cloud.end(machine, after_s=0.0)
    await parts.reconciler.sweep()
    assert instance_of(parts, pending).cause is Cause.FAILED
    assert parts.fleet.view(parts.fleet.pool(POOL)).losses == {Cause.LOST: 1}, (
        "an instance that never became ready is not a loss"
    )


@pytest.mark.parametrize("sees_the_end", [False, True])
async def test_a_preemption_before_a_node_is_ready_is_no_failed_launch(tmp_path: Path, sees_the_end: bool) -> None:
    parts = await build(tmp_path)
    await parts.want(3)
    for record in parts.ledger.alive():
        await parts.actuator.run_due_steps()
        (machine,) = parts.cloud.find(record.id)
        parts.cloud.preempt(machine, in_s=0.0 if sees_the_end else 60.0)
    await parts.reconciler.sweep()
    pool = parts.fleet.pool(POOL)
    assert (pool.failures, pool.breaker_until) == (0, None)
    causes = {record.instance.cause for record in parts.ledger.records.values()}
    assert causes == {Cause.PREEMPTED}


async def test_an_instance_that_ends_itself_before_its_node_is_ready_has_failed(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await parts.want(3)
    await parts.actuator.run_due_steps()
    for machine in parts.cloud.alive():
        parts.cloud.end(machine, after_s=60.0)  # it is terminating, without a notice
    await parts.reconciler.sweep()
    assert {record.instance.cause for record in parts.ledger.alive()} == {Cause.FAILED}
    assert parts.fleet.pool(POOL).breaker_until is not None


async def test_maximum_age_and_inconsistency_are_separate_causes(tmp_path: Path) -> None:
    parts = await working(tmp_path, 2)
    launch, _ = first(parts)
    old, odd = sorted(record.id for record in parts.ledger.alive())
    await parts.records.record_event(odd, InstanceEvent.PENDING)
    assert instance_of(parts, odd).state is InstanceState.SUSPECT
    assert instance_of(parts, odd).cause is None
    parts.clock.advance(301.0)
    await parts.reconciler.check_nodes()
    assert instance_of(parts, odd).cause is None, "its node may work"
    parts.run.lost[odd] = 61.0
    parts.fleet.observation.update(parts.run.report())
    await parts.reconciler._drain_if_suspect(parts.ledger.records[odd])
    assert (instance_of(parts, odd).state, instance_of(parts, odd).cause) == (
        InstanceState.DRAINING,
        Cause.INCONSISTENT,
    )
    parts.clock.advance(instance_of(parts, old).expires_at - parts.clock.wall() + 1.0)
    parts.fleet.observation.update(parts.run.report())
    await parts.reconciler.check_nodes()
    assert launch == old
    assert (instance_of(parts, old).state, instance_of(parts, old).cause) == (InstanceState.DRAINING, Cause.EXPIRED)


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


@pytest.mark.long
@given(st.booleans(), st.lists(st.tuples(st.sampled_from(InstanceEvent), st.sampled_from([None, *Cause]))))
def test_leaving_instances_have_a_cause_and_only_a_loss_can_become_a_preemption(
    has_worked: bool, events: Sequence[tuple[InstanceEvent, Cause | None]]
) -> None:
    launched = instance(InstanceState.READY, has_worked=has_worked)
    for event, reported_cause in events:
        cause = termination_cause(launched, event, reported_cause)
        assert (
            cause is launched.cause
            or (event is InstanceEvent.ADOPTED and launched.state is InstanceState.GONE)
            or launched.cause is None
            or (launched.cause, cause) == (Cause.LOST, Cause.PREEMPTED)
        )
        launched = replace(launched, state=next_state(launched.state, event), cause=cause)
        assert (launched.cause is None) == (launched.state in COUNTED_STATES)


def test_instances_that_left_before_causes_were_stored_have_none() -> None:
    for sight in InstanceEvent:
        assert termination_cause(instance(InstanceState.DRAINING, has_worked=True), sight) is None
