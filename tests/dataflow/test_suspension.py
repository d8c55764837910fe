"""A run whose dataflow service does not run for a while: no node is lost, and no task is requeued."""

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from astraflow.client.control_plane import ControlPlaneClient
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.nodes import NodeStatus
from astraflow.contract.records import render
from astraflow.contract.reports.report import NodeState, Report
from astraflow.dataflow.operations.nodes import NodeOperations
from astraflow.dataflow.service import build_run
from astraflow.dataflow.storage.null_journal import NullJournal
from astraflow.runtime.clock import AwakeClock
from tests.dataflow.running import archive_in, config, facts, running
from tests.dataflow.test_service import episode
from tests.fakes.clock import JumpingClock, ManualClock, settle

pytestmark = pytest.mark.anyio

SERVED = {PolicyId("solver"): Version(0)}


async def suspended_report(control: ControlPlaneClient) -> Report:
    async for report in control.watch_report():
        if any(event.kind.value == "run_suspended" for event in report.events):
            return report
    raise AssertionError("the reports ended")


@pytest.mark.parametrize("lease_s", [4.0, 600.0])
async def test_a_suspended_service_keeps_nodes_and_leases(lease_s: float, tmp_path: Path) -> None:
    clock = JumpingClock()
    async with running(tmp_path, config(lease_s=lease_s), clock=clock) as service:
        node = (await service.nodes.join(facts())).node
        lease = await service.nodes.lease(node, 4, wait_s=2, versions=SERVED)
        clock.jump(60)
        report = await suspended_report(service.control)
        status = NodeStatus(node=node, running=tuple(task.id for task in lease.tasks), versions=SERVED)
        assert (await service.nodes.heartbeat(status)).action == "continue_running"
        assert await service.nodes.push(node, [episode(task) for task in lease.tasks]) == ("accepted",) * 4
        report = await service.control.report()
    assert report.nodes[0].state is NodeState.READY
    assert [flow.leases_expired for flow in report.flows] == [0]
    kinds = [event.kind.value for event in report.events]
    assert kinds.count("run_suspended") == 1
    assert not {"node_lost", "leases_expired"} & set(kinds)
    (event,) = (event for event in report.events if event.kind.value == "run_suspended")
    assert (event.subject, "did not run for 60 s" in render(event)) == ("test", True)


async def test_after_a_suspension_a_silent_node_has_the_rest_of_its_lease(tmp_path: Path) -> None:
    clock = ManualClock()
    with closing(archive_in(tmp_path)) as archive:
        awake = AwakeClock(clock, gap_s=2)
        run = build_run(config(lease_s=10), journal=NullJournal(), archive=archive, clock=awake)
        nodes = NodeOperations(run)
        node = nodes.membership.join(facts())
        assert len((await nodes.leasing.lease(node.id, 4, versions=SERVED, wait_s=0)).tasks) == 4
        (flow,) = run.all_flows
        held = []
        for passed_s in (2.0, 2.0, 2.0, 60.0, 2.0, 3600.0, 1.0, 2.0):
            clock.advance(passed_s)
            nodes.membership.tick()
            held.append((node.state, flow.leases.held))
    assert held == [(NodeState.READY, 4)] * 7 + [(NodeState.LOST, 0)]


async def test_tasks_leased_for_a_call_whose_node_is_gone_return_to_the_queue_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(archive_in(tmp_path)) as archive:
        run = build_run(config(), journal=NullJournal(), archive=archive, clock=ManualClock())
        nodes = NodeOperations(run)
        node = nodes.membership.join(facts())
        (flow,) = run.all_flows
        with monkeypatch.context() as patched:
            patched.setattr(run.journal, "wait_durable", asyncio.Event().wait)
            call = asyncio.create_task(nodes.leasing.lease(node.id, 4, versions=SERVED, wait_s=1))
            await settle()
            assert flow.leases.held == 4
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        assert (flow.leases.held, flow.leases.queued, flow.counts.tasks_returned) == (0, 4, 4)
        again = await nodes.leasing.lease(node.id, 4, versions=SERVED, wait_s=0)
    assert [task.id for task in again.tasks] == [
        f"train-solver:{group}/{member}" for group in (0, 1) for member in (0, 1)
    ]
