"""Nodes of a real dataflow service: two that serve one policy each, and one whose engine starts slowly."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from astraflow.client.control_plane import ControlPlaneClient
from astraflow.contract.ids import FlowId
from astraflow.contract.reports.report import NodeState, Report
from astraflow.dataflow.config import DataflowConfig, FlowConfig, StreamConfig
from astraflow.dataflow.service import serve
from astraflow.wire.channel import dial
from astraflow.wire.server import ListenOptions
from tests.fakes.dataflow import TOKEN
from tests.raas.engines.test_serving_engines import ServedEngine
from tests.raas.test_service import QUICK, node, publish, weight_store

pytestmark = [pytest.mark.anyio, pytest.mark.long]

POLICIES = ("solver", "verifier")
LEASE_S = 1.0


def config() -> DataflowConfig:
    """Returns a run with a flow for each policy."""
    return DataflowConfig(
        flows={
            f"train-{policy}": FlowConfig(
                dataset={"kind": "scripted"},
                workflow={"kind": "single_turn", "policy": policy},
                reward={"kind": "exact_match"},
                group_size=2,
                filters=({"kind": "keep_all"},),
            )
            for policy in POLICIES
        },
        streams={policy: StreamConfig(batch_groups=4, max_staleness=1) for policy in POLICIES},
        models={policy: {"kind": "scripted"} for policy in POLICIES},
        engine=QUICK,
        lease_s=LEASE_S,
        heartbeat_s=0.1,
        report_s=0.1,
    )


async def report_when_admitted(client: ControlPlaneClient, *flows: str) -> Report:
    """Returns the first report in which groups of these flows were admitted."""
    async with asyncio.timeout(30):
        while True:
            report = await client.report()
            if all(flow.admitted >= 4 for flow in report.flows if flow.id in flows):
                return report
            await asyncio.sleep(0.1)


@asynccontextmanager
async def dataflow(folder: Path) -> AsyncIterator[tuple[str, ControlPlaneClient]]:
    """Serves a run whose policies have version 0; yields its address and a client."""
    stop = asyncio.Event()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with weight_store(folder) as weights:
        for policy in POLICIES:
            await publish(weights, 0, policy)
        serving = asyncio.create_task(
            serve(
                config(),
                listen=ListenOptions(port=0, token=TOKEN, drain_s=0.5),
                directory=folder / "dataflow",
                weights_address=weights,
                stop=stop,
                on_ready=ready.set_result,
            )
        )
        address = await ready
        async with dial(address, token=TOKEN) as link:
            yield address, ControlPlaneClient(link)
        stop.set()
        await serving


async def test_each_node_runs_the_flows_whose_policies_it_serves(tmp_path: Path) -> None:
    async with dataflow(tmp_path) as (address, client), node(address, name="a", engine=None, policies=["solver"]):
        report = await report_when_admitted(client, "train-solver")
        issued = {flow.id: flow.issued for flow in report.flows}
        assert issued[FlowId("train-verifier")] == 0
        assert ("flow_unserved", "train-verifier") in [(problem.cause, problem.subject) for problem in report.problems]
        async with node(address, name="b", engine=None, policies=["verifier"]):
            report = await report_when_admitted(client, "train-solver", "train-verifier")
            assert report.problems == ()
            assert {(node.facts.name, tuple(node.versions)) for node in report.nodes if node.versions} == {
                ("a", ("solver",)),
                ("b", ("verifier",)),
            }


async def test_a_node_with_a_slow_engine_start_stays_registered_without_tasks(tmp_path: Path) -> None:
    engine = {**QUICK, "kind": ServedEngine.kind, "start_s": 3 * LEASE_S}
    async with dataflow(tmp_path) as (address, client), node(address, name="slow", engine=engine):
        await asyncio.sleep(2 * LEASE_S)
        report = await client.report()
        [starting] = report.nodes
        assert (starting.facts.engine, starting.state) == (ServedEngine.kind, NodeState.JOINING)
        assert [flow.issued for flow in report.flows] == [0, 0]
        report = await report_when_admitted(client, "train-solver")
        assert [(node.id, node.state) for node in report.nodes] == [(starting.id, NodeState.READY)]
