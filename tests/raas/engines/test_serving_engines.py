"""Nodes whose engines have servers: slow starts, failures, an engine for each policy, and a part of the policies."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId
from astraflow.contract.nodes import JoinResult
from astraflow.contract.rollouts.recording import ColumnNeeds
from astraflow.contract.values import Json
from astraflow.raas.builders import build_flow, build_policies
from astraflow.raas.engines import engines
from astraflow.raas.engines.base import EngineGauges, LoadTimings
from astraflow.raas.engines.scripted import ScriptedEngine, ScriptedEngineOptions
from astraflow.runtime.service import flattened_errors
from astraflow.weights.tensors import VerifiedWeights
from tests.errors import raises_code
from tests.fakes.dataflow import FakeDataflow, flow
from tests.raas.parts import SOLVER
from tests.raas.test_service import ENDLESS, QUICK, node, publish, tasks, weight_store

pytestmark = pytest.mark.anyio


class ServedOptions(ScriptedEngineOptions):
    start_s: float = 0.0


@engines.register("served_in_test", options=ServedOptions)
class ServedEngine(ScriptedEngine):
    """Scripted engine that behaves as if it had a server."""

    kind: ClassVar[str] = "served_in_test"
    built: ClassVar[list["ServedEngine"]] = []
    load_now: ClassVar[EngineGauges] = EngineGauges()

    def __init__(self, options: ServedOptions, model: Mapping[str, Json]) -> None:
        super().__init__(options, model)
        self.start_s = options.start_s
        self.failure: asyncio.Queue[str] = asyncio.Queue()
        self.built.append(self)

    async def start(self) -> None:
        await asyncio.sleep(self.start_s)

    async def wait_failed(self) -> str:
        return await self.failure.get()

    def gauges(self) -> EngineGauges:
        return self.load_now

    async def load(self, weights: VerifiedWeights) -> LoadTimings:
        await super().load(weights)
        return LoadTimings(stage_s=0.25, pause_s=0.5, apply_s=0.125, resume_s=0.0625)


@pytest.fixture(autouse=True)
def no_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServedEngine, "built", [])
    monkeypatch.setattr(ServedEngine, "load_now", EngineGauges())


def served(spec: dict[str, Any] = QUICK, **options: Any) -> dict[str, Any]:
    return {**spec, "kind": "served_in_test", **options}


@pytest.mark.long
async def test_a_node_sends_heartbeats_and_leases_nothing_while_its_engine_starts(tmp_path: Path) -> None:
    async with weight_store(tmp_path) as weights:
        await publish(weights, 0)
        dataflow = FakeDataflow(weights_address=weights)
        dataflow.add(tasks(2))
        async with dataflow.serving() as address, node(address, engine=served(start_s=1.0)):
            await dataflow.until(lambda: len(dataflow.beats) >= 4)
            joins = len(dataflow.joins)
            assert dataflow.asked == []
            assert dataflow.joins[-1].engine == ServedEngine.kind
            assert dataflow.beats[-1].versions == {}
            await dataflow.until(lambda: len(dataflow.episodes) == 2)
            assert len(dataflow.joins) == joins, "no second registration after the start"


async def test_load_phases_and_engine_gauges_are_reported(tmp_path: Path) -> None:
    ServedEngine.load_now = EngineGauges(running=3, waiting=1, cache_used=0.5, restarts=2)
    async with weight_store(tmp_path) as weights:
        await publish(weights, 0)
        dataflow = FakeDataflow(weights_address=weights)
        dataflow.add(tasks(2))
        options: dict[str, Any] = {"pull": {"use_shared_memory": False}}
        async with dataflow.serving() as address, node(address, engine=served(), **options):
            await dataflow.until(lambda: bool(dataflow.beats) and bool(dataflow.beats[-1].versions))
            await publish(weights, 1)
            await dataflow.until(lambda: dataflow.beats[-1].versions == {"solver": 1})
            await dataflow.until(lambda: dataflow.beats[-1].links[0].versions == 2)
            heartbeat = dataflow.beats[-1]

    (link,) = heartbeat.links
    assert (link.pause_s, link.apply_s, link.resume_s) == (1.0, 0.25, 0.125)
    assert heartbeat.counters["weight_pause_s"] == 0.6875, "of the version that replaced a served one"
    assert heartbeat.counters["engine_restarts"] == 2
    shown = {name: heartbeat.gauges[name] for name in ("engine_running", "engine_waiting", "engine_cache_used")}
    assert shown == {"engine_running": 3, "engine_waiting": 1, "engine_cache_used": 0.5}
    assert heartbeat.gauges["lease_limit"] == 8, "the capacity of the node"


async def test_a_node_with_a_failed_engine_returns_its_tasks_with_the_reason(tmp_path: Path) -> None:
    async with weight_store(tmp_path) as weights:
        await publish(weights, 0)
        dataflow = FakeDataflow(weights_address=weights)
        dataflow.add(tasks(5))
        async with dataflow.serving() as address, node(address, engine=served(ENDLESS)) as serving:
            await dataflow.until(lambda: bool(dataflow.beats) and len(dataflow.beats[-1].running) == 5)
            ServedEngine.built[0].failure.put_nowait("it ended 4 times")
            took_s = await serving.until_ended()

    reason = "the engine of 'solver' has failed: it ended 4 times"
    assert took_s < 5
    assert dataflow.left == [reason]
    assert len(dataflow.handed_back) == 5
    assert dataflow.beats[-1].leave_reason == reason
    assert dataflow.beats[-1].errors == (reason,)


async def test_each_policy_has_its_own_engine(tmp_path: Path) -> None:
    async with weight_store(tmp_path) as weights:
        dataflow = FakeDataflow(
            flows=(flow(workflow={"kind": "solve_and_verify"}),),
            policies=("solver", "verifier"),
            weights_address=weights,
        )
        dataflow.add(tasks(3))
        for policy in dataflow.policies:
            await publish(weights, 0, policy.id)
        async with dataflow.serving() as address, node(address, engines={"verifier": served()}):
            await dataflow.until(lambda: len(dataflow.episodes) == 3)

    assert len(ServedEngine.built) == 1
    assert dataflow.joins[-1].engine == "scripted, served_in_test"


@pytest.mark.parametrize(
    "needs",
    [
        {"columns": {SOLVER: ColumnNeeds(top_tokens=8)}},
        {"temperatures": {SOLVER: 1.0}, "workflow": {"kind": "single_turn", "top_p": 0.9}},
    ],
)
async def test_an_engine_that_records_less_than_training_needs_is_refused(
    needs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataflow = FakeDataflow()
    spec = cast("JoinResult", dataflow)  # of which only the policies are read
    evaluated = {FlowId("train"): build_flow(replace(flow(), **{**needs, "temperatures": {}, "columns": {}}))}
    trained = {FlowId("train"): build_flow(replace(flow(), **needs))}
    async with AsyncExitStack() as resources:
        await build_policies(spec, trained, {SOLVER: served()}, resources)
        monkeypatch.setattr(ServedEngine, "records", frozenset())
        await build_policies(spec, evaluated, {SOLVER: served()}, resources)
        with raises_code(InvalidInput, "node.engine_records_less", "'solver'"):
            await build_policies(spec, trained, {SOLVER: served()}, resources)


async def test_a_node_builds_only_the_policies_that_it_serves(tmp_path: Path) -> None:
    async with weight_store(tmp_path) as weights:
        verify = flow("verify", workflow={"kind": "single_turn", "policy": "verifier"})
        dataflow = FakeDataflow(flows=(flow(), verify), policies=("solver", "verifier"), weights_address=weights)
        dataflow.add(tasks(3))
        await publish(weights, 0, "solver")
        async with dataflow.serving() as address, node(address, engine=served(), policies=["solver"]):
            await dataflow.until(lambda: len(dataflow.episodes) == 3)
            await dataflow.until(lambda: dataflow.beats[-1].versions == {"solver": 0})

    assert len(ServedEngine.built) == 1
    assert {facts.policies for facts in dataflow.joins} == {("solver",)}


@pytest.mark.parametrize(("policies", "code"), [(["unknown"], "node.unknown_policy"), (["verifier"], "node.no_flow")])
async def test_a_node_without_a_flow_ends_with_the_reason(policies: list[str], code: str) -> None:
    dataflow = FakeDataflow(policies=("solver", "verifier"))
    async with dataflow.serving() as address:
        with pytest.raises(ExceptionGroup) as refused:
            async with node(address, policies=policies) as serving:
                await serving.until_ended()

    (problem,) = flattened_errors(refused.value)
    assert isinstance(problem, InvalidInput)
    assert problem.code == code
