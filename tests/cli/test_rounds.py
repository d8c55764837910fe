import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from astraflow.cli.rounds import round_table
from astraflow.contract.errors import UnknownNode
from astraflow.contract.ids import FlowId, NodeId, PolicyId, Version
from astraflow.contract.tasks import Task
from tests.dataflow.running import TOKEN, Service, config, evaluation, facts, running
from tests.dataflow.test_evaluating import answer
from tests.fakes.world import World

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0


async def command(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "astraflow.cli", "evaluate", *arguments, "--token", TOKEN),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def next_tasks(service: Service) -> tuple[NodeId, tuple[Task, ...]]:
    """Wait until a round begins; the node that asks, and the tasks it gets."""
    await service.control.pause_flow(FlowId("train-solver"), is_paused=True, actor="ada", reason="only to evaluate")
    async with asyncio.timeout(PATIENCE_S):
        while True:  # the command may take longer to start than a node that says nothing is kept
            node = (await service.nodes.join(facts())).node
            with contextlib.suppress(UnknownNode):
                if tasks := (await service.nodes.lease(node, 100, wait_s=2, evaluation_capacity=1)).tasks:
                    return node, tasks


def shown(world: World) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(round_table(world.rounds(60)))
    return captured.get()


def test_a_round_is_shown_with_its_figures_and_their_error() -> None:
    lines = shown(World(policies=("solver", "verifier"))).splitlines()
    assert ["held-out", "4", "done", "128/128"] in [line.split()[:4] for line in lines]
    assert sum("verifier" in line for line in lines) == sum("solver" in line for line in lines) == 5
    assert "avg@4 0." in lines[-1]
    assert "± 0.030" in lines[-1]


async def test_asked_for_a_version_the_command_waits_for_its_scores(tmp_path: Path) -> None:
    async with running(tmp_path, config(evaluations={"held-out": evaluation(prompts=2)})) as service:
        await service.trainer().attach(version=Version(7), backend="single", is_simulated=False)
        asking = await command("held-out", service.link.address, "--version", "5", "--json", "--reason", "to see")
        node, tasks = await next_tasks(service)
        assert [task.pinned for task in tasks] == [{PolicyId("solver"): 5}] * 4
        await service.nodes.push(node, [answer(task) for task in tasks])
        out, said = await asking.communicate()
        found = json.loads(out)
        (known,) = await service.control.evaluations()
    assert asking.returncode == 0, said
    assert (found["state"], found["versions"], found["reason"]) == ("done", {"solver": 5}, "to see")
    assert {score["name"]: score["value"] for score in found["scores"]}["avg@2"] == 1.0
    assert known.round == found["round"]


async def test_who_stops_waiting_does_not_stop_the_round(tmp_path: Path) -> None:
    async with running(tmp_path, config(evaluations={"held-out": evaluation()})) as service:
        asking = await command("held-out", service.link.address)
        await next_tasks(service)
        asking.send_signal(signal.SIGINT)
        _, said = await asking.communicate()
        (going_on,) = await service.control.evaluations()
        assert asking.returncode == 0
        assert "The round goes on" in said.decode()
        assert going_on.state.value == "running"

        again = await command("held-out", service.link.address)
        _, said = await again.communicate()
        assert again.returncode == 1
        assert "round 1 of held-out runs: wait until it has ended" in said.decode()


async def test_a_stopped_round_is_no_success(tmp_path: Path) -> None:
    async with running(tmp_path, config(evaluations={"held-out": evaluation()})) as service:
        asking = await command("held-out", service.link.address)
        await next_tasks(service)
        await service.control.stop_evaluation(FlowId("held-out"), actor="ada", reason="enough")
        out, _ = await asking.communicate()
    assert asking.returncode == 1
    assert "stopped" in out.decode()


def wrong() -> Iterator[tuple[tuple[str, ...], str]]:
    yield ("held-in",), "no evaluation 'held-in'; it has held-out"
    yield ("held-out", "--version", "newest"), "'newest' is no version: write a number, or POLICY=NUMBER"
    yield ("held-out", "--version", "3"), "this run has several policies (solver, verifier): say whose version"
    yield ("held-out", "--version", "solver=3"), "version 3 of solver is not made yet"


async def test_what_cannot_be_evaluated_is_answered_in_a_sentence(tmp_path: Path) -> None:
    settings = config(policies=("solver", "verifier"), evaluations={"held-out": evaluation()})
    async with running(tmp_path, settings) as service:
        for (name, *rest), sentence in wrong():
            asking = await command(name, service.link.address, *rest)
            _, said = await asking.communicate()
            assert asking.returncode == 2
            assert sentence in said.decode()
            assert "Traceback" not in said.decode()
