"""Nodes that serve some policies only."""

from pathlib import Path

import pytest

from astraflow.client.data_plane import NodeDataClient
from astraflow.contract.ids import FlowId, NodeId, PolicyId, Version
from astraflow.contract.nodes import NodeStatus
from astraflow.contract.rollouts.tasks import Task
from tests.dataflow.running import config, evaluation, facts, running

pytestmark = pytest.mark.anyio

SOLVER, VERIFIER = PolicyId("solver"), PolicyId("verifier")
BOTH = ("solver", "verifier")


async def ready_node(nodes: NodeDataClient, name: str, *policies: PolicyId) -> NodeId:
    """Joins a node that serves version 0 of its policies."""
    node = (await nodes.join(facts(name, policies=policies))).node
    await nodes.heartbeat(NodeStatus(node=node, running=(), versions=versions(*policies)))
    return node


def versions(*policies: PolicyId) -> dict[PolicyId, Version]:
    return dict.fromkeys(policies or (SOLVER, VERIFIER), Version(0))


async def lease(nodes: NodeDataClient, node: NodeId, *policies: PolicyId, evaluations: int = 0) -> tuple[Task, ...]:
    answer = await nodes.lease(node, 32, wait_s=0.2, versions=versions(*policies), evaluation_capacity=evaluations)
    return answer.tasks


def flows(tasks: tuple[Task, ...]) -> set[str]:
    return {str(task.flow) for task in tasks}


async def test_a_node_gets_only_tasks_of_flows_whose_policies_it_serves(tmp_path: Path) -> None:
    async with running(tmp_path, config(policies=BOTH, max_staleness=4)) as service:
        solving = await ready_node(service.nodes, "a", SOLVER)
        verifying = await ready_node(service.nodes, "b", VERIFIER)

        assert flows(await lease(service.nodes, solving, SOLVER)) == {"train-solver"}
        assert flows(await lease(service.nodes, verifying, VERIFIER)) == {"train-verifier"}
        assert (await service.control.report()).problems == ()


async def test_a_returned_task_goes_to_a_node_that_serves_its_flow(tmp_path: Path) -> None:
    async with running(tmp_path, config(policies=BOTH)) as service:
        first = await ready_node(service.nodes, "a", SOLVER)
        verifying = await ready_node(service.nodes, "b", VERIFIER)
        second = await ready_node(service.nodes, "c", SOLVER)
        held = await lease(service.nodes, first, SOLVER)
        await service.nodes.leave(first, reason="stopped")

        assert flows(await lease(service.nodes, verifying, VERIFIER)) == {"train-verifier"}
        assert {task.id for task in held} <= {task.id for task in await lease(service.nodes, second, SOLVER)}


async def test_an_evaluation_waits_for_a_node_that_serves_its_policies(tmp_path: Path) -> None:
    held_out = {"held-out": evaluation("solver")}
    async with running(tmp_path, config(policies=BOTH, evaluations=held_out)) as service:
        await service.control.evaluate(FlowId("held-out"), actor="me", reason="a test")
        verifying = await ready_node(service.nodes, "b", VERIFIER)
        solving = await ready_node(service.nodes, "a", SOLVER)

        assert flows(await lease(service.nodes, verifying, VERIFIER, evaluations=8)) == {"train-verifier"}
        assert "held-out" in flows(await lease(service.nodes, solving, SOLVER, evaluations=8))


async def test_a_flow_that_no_node_serves_is_a_problem(tmp_path: Path) -> None:
    async with running(tmp_path, config(policies=BOTH)) as service:
        assert (await service.control.report()).problems == (), "no node has joined yet"
        await ready_node(service.nodes, "a", SOLVER)
        problems = (await service.control.report()).problems
        assert [(problem.cause, problem.subject) for problem in problems] == [("flow_unserved", "train-verifier")]
        await ready_node(service.nodes, "b")
        assert (await service.control.report()).problems == ()
        assert [node.facts.policies for node in (await service.control.report()).nodes] == [(SOLVER,), ()]
