"""The reconciler repairs differences between ledger, providers and dataflow; it ignores missing reports."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.contract.fleet.instances import Cause, Instance, InstanceState, LaunchId
from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.reports.report import NodeState, Report
from maintainer.fleet.ledger.lifecycle import InstanceEvent
from maintainer.fleet.providers.base import (
    AuthError,
    CapacityError,
    Handle,
    LaunchSpec,
    NodePlan,
    ProviderError,
    RetireResult,
    RetryError,
    Tags,
    UnknownError,
)
from tests.fakes.cloud import Cloud, CloudProvider, failing_once
from tests.maintainer.fleet.parts import ALICE, POOL, START, Parts, Run, build, spec

pytestmark = pytest.mark.anyio


def stray(cloud: Cloud, launch_id: str = "01STRAY", cluster: str = "tests", region: str = "") -> Handle:
    tags = Tags(cluster=cluster, pool="eu", run="run-1", expires_at=START + 1e6)
    return cloud.start(LaunchSpec(tags=tags, node=NodePlan(dataflow="127.0.0.1:1"), region=region), launch_id)


async def running(tmp_path: Path, nodes: int = 3) -> Parts:
    """Builds a pool with ready nodes."""
    parts = await build(tmp_path)
    await parts.want(nodes)
    await parts.pass_time(60.0)
    assert parts.states() == {"ready": nodes}
    return parts


async def launches(parts: Parts) -> list[Instance]:
    """Returns all instances, including terminated ones."""
    records, _ = await parts.ledger.instances(pool=POOL, with_gone=True, before="", limit=10)
    return [record.instance for record in records]


async def test_a_launched_instance_becomes_ready_and_its_delay_is_measured(tmp_path: Path) -> None:
    parts = await running(tmp_path)
    view = parts.fleet.view(parts.fleet.pool(POOL))
    assert 20.0 <= view.launch_delay_s <= 40.0
    assert view.usd_per_hour == 3.0
    assert 0 < view.usd_today <= 3.0 * 60 / 3600


async def test_each_node_gets_its_own_token_which_is_revoked_at_its_end(tmp_path: Path) -> None:
    parts = await running(tmp_path, 2)
    names = {record.id for record in parts.ledger.alive()}
    assert set(parts.run.minted) == names
    assert set(parts.run.minted.values()) == {("node", "eu", 900.0)}
    await parts.want(1)
    await parts.pass_time(60.0)
    (left,) = parts.ledger.alive()
    assert set(parts.run.revoked) == names - {left.id}


async def test_a_stuck_instance_is_a_failed_launch_and_is_terminated(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await parts.want(1)
    await parts.pass_time(6.0)
    (machine,) = parts.cloud.alive()
    machine.is_stuck = True
    (launch,) = [record.id for record in parts.ledger.alive()]
    await parts.pass_time(66.0)
    assert machine.gone_at is not None
    assert launch not in [record.id for record in parts.ledger.alive()]
    kinds = [entry.kind.value for entry in (await parts.ledger.decisions(pool="", before=None, limit=100))[0]]
    assert "launch_failed" in kinds
    (ended,) = [record for record in await launches(parts) if record.id == launch]
    assert ended.cause is Cause.FAILED


@pytest.mark.long
async def test_a_launch_retired_before_it_was_ready_did_not_fail(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await parts.want(2)
    await parts.pass_time(6.0)
    await parts.want(1)
    for record in parts.ledger.alive():
        await parts.records.record_event(record.id, InstanceEvent.STOP, message="the service stops")
    await parts.pass_time(60.0)
    ended = [launch for launch in await launches(parts) if launch.gone_at is not None]
    assert [(launch.ready_at, launch.cause) for launch in ended] == [(None, Cause.REQUESTED)] * 2
    kinds = [entry.kind.value for entry in (await parts.ledger.decisions(pool="", before=None, limit=100))[0]]
    assert "launch_failed" not in kinds


@pytest.mark.long
async def test_an_orphan_is_terminated_after_its_quarantine(tmp_path: Path) -> None:
    parts = await running(tmp_path)
    stray(parts.cloud)
    await parts.pass_time(240.0)
    assert len(parts.cloud.alive()) == 4
    assert len(parts.ledger.orphans) == 1
    await parts.pass_time(180.0)
    assert len(parts.cloud.alive()) == 3
    await parts.pass_time(61.0)
    assert parts.ledger.orphans == {}
    kinds = [entry.kind.value for entry in (await parts.ledger.decisions(pool="", before=None, limit=100))[0]]
    assert kinds.count("orphan") == 1


async def test_an_orphans_quarantine_survives_a_restart(tmp_path: Path) -> None:
    parts = await running(tmp_path)
    stray(parts.cloud)
    await parts.pass_time(180.0)
    again = await build(tmp_path, database=parts.database, cloud=parts.cloud, clock=parts.clock, run=parts.run)
    await again.pass_time(200.0)
    assert len(parts.cloud.alive()) == 3


@pytest.mark.long
async def test_other_clusters_are_left_alone(tmp_path: Path) -> None:
    parts = await running(tmp_path)
    stray(parts.cloud, cluster="strangers")
    await parts.pass_time(1000.0)
    assert len(parts.cloud.alive()) == 4
    assert parts.ledger.orphans == {}


@pytest.mark.long
async def test_an_instance_missing_in_two_lists_is_gone_and_replaced(tmp_path: Path) -> None:
    parts = await running(tmp_path)
    lost = parts.ledger.alive()[0]
    del parts.cloud.machines[lost.instance.handle]  # deleted in the console; the cloud has no record
    parts.run.is_away = True
    await parts.pass_time(300.0)
    assert parts.states() == {"ready": 3}  # dataflow does not answer, so the node may work
    assert f"instance_not_listed of {lost.id}" in parts.reconciler.problems()
    parts.run.is_away = False
    await parts.pass_time(150.0)
    assert parts.states() == {"ready": 3}
    assert lost.id not in {record.id for record in parts.ledger.alive()}


async def test_a_list_with_the_instance_resets_the_count(tmp_path: Path) -> None:
    parts = await running(tmp_path, 1)
    handle = parts.ledger.alive()[0].instance.handle
    for _ in range(4):
        machine = parts.cloud.machines.pop(handle)
        await parts.reconciler.sweep()
        parts.cloud.machines[handle] = machine
        await parts.reconciler.sweep()
    assert parts.states() == {"ready": 1}


async def test_of_two_instances_of_one_launch_the_registered_one_stays(tmp_path: Path) -> None:
    parts = await running(tmp_path, 1)
    record = parts.ledger.alive()[0]
    parts.cloud.start(record.launch, record.id)
    await parts.pass_time(70.0)
    (left,) = parts.cloud.alive()
    assert left.instance.handle.id == record.instance.handle
    assert parts.states() == {"ready": 1}


async def test_an_unreadable_provider_changes_nothing_and_is_a_problem(tmp_path: Path) -> None:
    parts, expired = await running(tmp_path), AuthError("the token has expired")

    def broken(point: str) -> None:
        if point == "list before":
            raise expired

    blind = await build(
        tmp_path,
        database=parts.database,
        cloud=parts.cloud,
        clock=parts.clock,
        run=parts.run,
        provider=lambda cloud: CloudProvider(cloud, fault=broken),
    )
    parts.cloud.machines.clear()
    parts.run.is_away = True
    for _ in range(5):
        await blind.reconciler.sweep()
    assert blind.states() == {"ready": 3}
    assert blind.reconciler.problems()["provider cloud"].values["error"] == str(expired)
    assert blind.reconciler.last_sweep_at is None


@pytest.mark.long
async def test_an_unreachable_dataflow_removes_no_node(tmp_path: Path) -> None:
    parts = await running(tmp_path)
    parts.run.is_away = True
    await parts.pass_time(3600.0)
    assert parts.states() == {"ready": 3}
    assert len(parts.cloud.alive()) == 3


async def test_a_node_that_dataflow_lost_is_retired_and_replaced(tmp_path: Path) -> None:
    parts = await running(tmp_path)
    lost = parts.ledger.alive()[0].id
    parts.run.lost[lost] = 30.0
    await parts.pass_time(30.0)
    assert parts.states() == {"ready": 3}
    parts.run.lost[lost] = 61.0
    await parts.pass_time(120.0)
    assert parts.states() == {"ready": 3}
    assert lost not in {record.id for record in parts.ledger.alive()}
    assert not parts.cloud.find(lost)


@pytest.mark.long
async def test_a_node_that_never_becomes_ready_is_given_up_and_the_breaker_opens(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    run = parts.run

    class Never(set[str]):
        def __contains__(self, _: object) -> bool:
            return True

    run.never_ready = Never()
    await parts.want(1)
    await parts.pass_time(1200.0)
    view = parts.fleet.view(parts.fleet.pool(POOL))
    assert view.breaker_until is not None
    assert parts.cloud.starts <= 5  # without the circuit breaker, one every two minutes
    run.never_ready = set()
    await parts.pass_time(1200.0)
    assert parts.states() == {"ready": 1}
    assert parts.fleet.view(parts.fleet.pool(POOL)).breaker_until is None


@pytest.mark.parametrize("error", [RetryError, UnknownError])
@pytest.mark.parametrize("point", ["launch before", "launch after"])
async def test_a_launch_whose_answer_was_lost_is_one_instance(
    tmp_path: Path, error: type[ProviderError], point: str
) -> None:
    parts = await build(tmp_path, provider=lambda cloud: CloudProvider(cloud, fault=failing_once(error, point)))
    await parts.want(1)
    await parts.pass_time(90.0)
    assert parts.states() == {"ready": 1}
    assert parts.cloud.starts == 1


async def test_a_refused_launch_is_gone_and_repeated_under_another_id(tmp_path: Path) -> None:
    fault = failing_once(CapacityError, "launch before")
    parts = await build(tmp_path, provider=lambda cloud: CloudProvider(cloud, fault=fault))
    applied = await parts.want(1)
    await parts.pass_time(90.0)
    (record,) = parts.ledger.alive()
    assert record.id != applied.launched[0]
    refused = parts.ledger.records[applied.launched[0]].instance
    assert refused.state is InstanceState.GONE
    assert "Capacity" in refused.message


async def test_a_defect_of_a_provider_affects_one_instance_only(tmp_path: Path) -> None:
    left = [KeyError("a defect")]

    def fault(point: str) -> None:
        if point == "launch before" and left:
            raise left.pop()

    parts = await build(tmp_path, provider=lambda cloud: CloudProvider(cloud, fault=fault))
    await parts.want(3)
    await parts.actuator.run_due_steps()
    assert parts.cloud.starts == 2
    await parts.pass_time(60.0)
    assert parts.states() == {"ready": 3}


async def test_an_instance_that_does_not_terminate_is_retried_and_is_a_problem(tmp_path: Path) -> None:
    parts = await running(tmp_path, 2)
    parts.cloud.end_s = 1000.0
    await parts.want(1)
    await parts.pass_time(400.0)
    assert parts.states() == {"ready": 1, "retiring": 1}
    (retiring,) = [record.id for record in parts.ledger.alive() if record.instance.retiring_at is not None]
    assert set(parts.reconciler.problems()) == {f"instance_not_terminated of {retiring}"}
    await parts.pass_time(700.0)
    assert parts.states() == {"ready": 1}
    assert parts.reconciler.problems() == {}


@pytest.mark.long
async def test_an_instance_past_its_maximum_age_is_drained_and_replaced(tmp_path: Path) -> None:
    parts = await build(tmp_path, times={"max_age_s": 3600.0})
    await parts.want(1)
    first = parts.ledger.alive()[0].id
    await parts.pass_time(3600.0, tick_s=30.0)
    await parts.pass_time(120.0)
    assert parts.run.drained == {first: "fleet"}
    assert parts.states() == {"ready": 1}


async def test_an_instance_that_boots_again_is_suspect_and_still_costs(tmp_path: Path) -> None:
    parts = await running(tmp_path, 1)
    record = parts.ledger.alive()[0]
    parts.run.is_away = True
    parts.cloud.boot_s = 1e9  # the cloud reports that it boots again
    await parts.reconciler.sweep()
    assert parts.states() == {"suspect": 1}
    assert parts.fleet.view(parts.fleet.pool(POOL)).usd_per_hour == 1.0
    parts.cloud.boot_s = 0.0
    parts.run.is_away = False
    await parts.pass_time(70.0)
    assert parts.states() == {"ready": 1}
    assert parts.ledger.alive()[0].id == record.id


async def test_an_instance_that_stays_suspect_is_drained_and_replaced(tmp_path: Path) -> None:
    parts = await running(tmp_path, 2)
    odd, other = (record.id for record in parts.ledger.alive())
    parts.run.lost[odd] = 20.0
    await parts.records.record_event(odd, InstanceEvent.PENDING)  # its provider reports that it boots again
    since = parts.clock.wall()
    assert parts.states() == {"ready": 1, "suspect": 1}
    assert parts.ledger.records[odd].suspect_at == since
    again = await build(tmp_path, database=parts.database, cloud=parts.cloud, clock=parts.clock, run=parts.run)
    parts.clock.advance(301.0)
    await again.reconciler.check_nodes()
    again.fleet.observation.update(again.run.report())
    await again.reconciler.check_nodes()
    assert again.states() == {"ready": 1, "suspect": 1}  # its node may still work
    parts.run.lost[odd] = 61.0
    again.fleet.observation.update(again.run.report())
    await again.reconciler._drain_if_suspect(again.ledger.records[odd])
    assert again.states() == {"ready": 1, "draining": 1}
    assert again.ledger.records[odd].suspect_at is None
    assert again.ledger.records[odd].instance.cause is Cause.INCONSISTENT
    assert again.ledger.records[odd].instance.message.endswith(" 301 s")
    await again.pass_time(120.0)
    assert again.states() == {"ready": 2}
    assert odd not in {record.id for record in again.ledger.alive()}
    assert other in {record.id for record in again.ledger.alive()}


async def test_a_lagging_list_makes_no_instance_missing(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    parts.cloud.lag_s = 150.0
    await parts.want(2)
    await parts.pass_time(300.0)
    assert parts.states() == {"ready": 2}
    assert parts.cloud.starts == 2


async def test_a_restart_continues_from_the_ledger(tmp_path: Path) -> None:
    parts = await running(tmp_path)
    again = await build(tmp_path, database=parts.database, cloud=parts.cloud, clock=parts.clock, run=parts.run)
    assert again.ledger.records == parts.ledger.records
    assert again.ledger.pools == parts.ledger.pools
    assert again.ledger.next_decision == parts.ledger.next_decision
    await again.pass_time(300.0)
    assert parts.cloud.starts == 3


async def test_a_pool_in_mode_off_is_not_changed(tmp_path: Path) -> None:
    parts = await build(tmp_path, pool=spec(mode=Mode.OFF))
    await parts.want(2)
    await parts.pass_time(60.0)
    parts.cloud.machines.pop(parts.ledger.alive()[0].instance.handle)
    await parts.pass_time(300.0)
    assert parts.states() == {"ready": 1}
    assert isinstance(parts.run, Run)
    assert LaunchId("x") not in parts.ledger.records


async def watch(parts: Parts, report: Report, duration_s: float) -> None:
    """Checks the nodes once a second against this report."""
    for _ in range(int(duration_s)):
        parts.fleet.observation.update(report)
        await parts.reconciler.check_nodes()
        parts.clock.advance(1.0)


async def test_reports_of_a_restarted_dataflow_without_nodes_retire_no_node(tmp_path: Path) -> None:
    parts = await running(tmp_path)
    full = replace(parts.run.report(), sequence=500)
    empty = replace(full, nodes=())
    await watch(parts, full, 5.0)
    await watch(parts, empty, 50.0)
    assert parts.states() == {"ready": 3}
    parts.fleet.observation.interrupt()  # the stream of reports ends and starts again
    await watch(parts, empty, 50.0)
    assert parts.states() == {"ready": 3}
    await watch(parts, replace(empty, sequence=1), 50.0)
    assert parts.states() == {"ready": 3}
    await watch(parts, replace(full, sequence=51), 1.0)
    await watch(parts, replace(empty, sequence=52), 59.0)
    assert parts.states() == {"ready": 3}
    await watch(parts, replace(empty, sequence=111), 2.0)
    assert parts.states() == {"retiring": 3}


async def test_a_node_that_dataflow_reports_as_gone_is_retired_at_once(tmp_path: Path) -> None:
    parts = await running(tmp_path)
    report = parts.run.report()
    await watch(parts, replace(report, nodes=tuple(replace(node, state=NodeState.GONE) for node in report.nodes)), 1.0)
    assert parts.states() == {"retiring": 3}


async def test_a_drain_continues_when_dataflow_restarts(tmp_path: Path) -> None:
    parts = await running(tmp_path, 2)
    await parts.want(1)
    parts.fleet.observation.interrupt()
    parts.fleet.observation.update(replace(parts.run.report(), nodes=()))
    await parts.actuator.run_due_steps()
    assert parts.states() == {"draining": 1, "ready": 1}


class HangingProvider(CloudProvider):
    """Provider whose terminations never return."""

    async def retire(self, launch_id: str, *, keep: Handle | None = None) -> RetireResult:
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_hanging_termination_is_a_problem_and_ends_the_sweep(tmp_path: Path) -> None:
    times = {"call_timeout_s": 0.05, "quarantine_s": 0.0}
    parts = await build(tmp_path, provider=HangingProvider, times=times)
    stray(parts.cloud)
    parts.fleet.observation.update(parts.run.report())
    parts.clock.advance(61.0)
    parts.fleet.observation.update(parts.run.report())
    async with asyncio.timeout(30.0):
        await parts.reconciler.sweep()
    assert "provider cloud" in parts.reconciler.problems()


async def test_instances_of_an_unread_region_are_neither_gone_nor_replaced(tmp_path: Path) -> None:
    parts = await build(tmp_path, pool=spec(region="us"))
    await parts.want(3)
    await parts.pass_time(60.0)
    before = {record.id: record.instance.state for record in parts.ledger.alive()}
    parts.cloud.silent_regions.add("us")
    parts.run.lost |= dict.fromkeys(before, 10.0)  # not the heartbeats keep them
    await parts.pass_time(300.0)
    assert {record.id: record.instance.state for record in parts.ledger.alive()} == before
    assert parts.cloud.starts == 3
    assert list(parts.reconciler.problems()) == ["provider cloud"]
    assert not (await parts.preflight_checks.preflight("cloud", actor=ALICE)).is_ok
    parts.cloud.silent_regions.clear()
    await parts.pass_time(70.0)
    assert parts.reconciler.problems() == {}
    assert parts.cloud.starts == 3


async def test_instances_of_a_read_region_are_compared_while_another_is_silent(tmp_path: Path) -> None:
    parts = await build(tmp_path, pool=spec(region="eu"))
    await parts.want(1)
    await parts.pass_time(60.0)
    abroad = stray(parts.cloud, "01ABROAD", region="us")
    parts.cloud.silent_regions.add("us")
    (record,) = parts.ledger.alive()
    (machine,) = parts.cloud.find(record.id)
    parts.cloud.end(machine, after_s=0.0)
    await parts.pass_time(120.0)
    assert record.id not in {alive.id for alive in parts.ledger.alive()}
    assert parts.cloud.machines[abroad.id].gone_at is None


async def test_the_quarantine_of_an_orphan_goes_on_while_its_region_is_silent(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    orphan = stray(parts.cloud, region="us")
    await parts.pass_time(60.0)
    parts.cloud.silent_regions.add("us")
    await parts.pass_time(600.0)
    assert list(parts.ledger.orphans) == [("cloud", orphan.id)]
    assert parts.cloud.machines[orphan.id].gone_at is None
