import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from astraflow.cli.evaluation.rounds import round_table
from astraflow.contract.errors import UnknownNode
from astraflow.contract.ids import FlowId, NodeId, PolicyId, Version
from astraflow.contract.rollouts.tasks import Task
from tests.dataflow.running import TOKEN, Service, config, evaluation, facts, running
from tests.dataflow.test_evaluation import answer
from tests.fakes.synthetic_run import SyntheticRun

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("forked_programs")]

PATIENCE_S = 60.0


async def command(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "astraflow.cli", "evaluate", "version", *arguments, "--token", TOKEN),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def next_tasks(service: Service) -> tuple[NodeId, tuple[Task, ...]]:
    """Joins a node and waits for a round; returns the node and its evaluation tasks."""
    await service.control.pause_flow(FlowId("train-solver"), is_paused=True, actor="ada", reason="only to evaluate")
    async with asyncio.timeout(PATIENCE_S):
        while True:  # a silent node may expire before the command has started
            node = (await service.nodes.join(facts())).node
            with contextlib.suppress(UnknownNode):
                if tasks := (await service.nodes.lease(node, 100, wait_s=2, evaluation_capacity=1)).tasks:
                    return node, tasks


def shown(synthetic_run: SyntheticRun) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(round_table(synthetic_run.rounds(60)))
    return captured.get()


def test_a_round_is_shown_with_its_figures_and_their_error() -> None:
    lines = shown(SyntheticRun(policies=("solver", "verifier"))).splitlines()
    assert ["held-out", "4", "done", "128/128"] in [line.split()[:4] for line in lines]
    assert sum("verifier" in line for line in lines) == sum("solver" in line for line in lines) == 5
    assert "avg@4 0." in lines[-1]
    assert "± 0.030" in lines[-1]


@pytest.mark.long
async def test_the_command_waits_for_the_scores_of_a_requested_version(tmp_path: Path) -> None:
    async with running(tmp_path, config(evaluations={"held-out": evaluation(prompts=2)})) as service:
        await service.trainer().attach(version=Version(7), backend="local", is_simulated=False)
        asking = await command("held-out", service.link.address, "--version", "5", "--json", "--reason", "to see")
        node, tasks = await next_tasks(service)
        assert [task.pinned for task in tasks] == [{PolicyId("solver"): 5}] * 4
        await service.nodes.push(node, [answer(task) for task in tasks])
        out, stderr = await asking.communicate()
        printed = json.loads(out)
        (known,) = await service.control.evaluations()
    assert asking.returncode == 0, stderr
    assert (printed["state"], printed["versions"], printed["reason"]) == ("done", {"solver": 5}, "to see")
    assert {score["name"]: score["value"] for score in printed["scores"]}["avg@2"] == 1.0
    assert known.round == printed["round"]


@pytest.mark.long
async def test_interrupting_the_command_does_not_stop_the_round(tmp_path: Path) -> None:
    async with running(tmp_path, config(evaluations={"held-out": evaluation()})) as service:
        asking = await command("held-out", service.link.address)
        await next_tasks(service)
        asking.send_signal(signal.SIGINT)
        _, stderr = await asking.communicate()
        (going_on,) = await service.control.evaluations()
        assert asking.returncode == 0
        assert "The round continues" in stderr.decode()
        assert going_on.state.value == "running"

        again = await command("held-out", service.link.address)
        _, stderr = await again.communicate()
        assert again.returncode == 1
        assert "[evaluation.round_running]" in stderr.decode()


@pytest.mark.long
async def test_a_stopped_round_exits_with_1(tmp_path: Path) -> None:
    async with running(tmp_path, config(evaluations={"held-out": evaluation()})) as service:
        asking = await command("held-out", service.link.address)
        await next_tasks(service)
        await service.control.stop_evaluation(FlowId("held-out"), actor="ada", reason="enough")
        out, _ = await asking.communicate()
    assert asking.returncode == 1
    assert "stopped" in out.decode()


def wrong() -> Iterator[tuple[tuple[str, ...], str]]:
    yield ("held-in",), "cannot find evaluation 'held-in'"
    yield ("held-out", "--version", "newest"), "[evaluation.invalid_version]"
    yield ("held-out", "--version", "3"), "[evaluation.policy_required]"
    yield ("held-out", "--version", "solver=3"), "its trainer is at version 0"


@pytest.mark.long
async def test_an_evaluation_that_cannot_run_is_refused(tmp_path: Path) -> None:
    settings = config(policies=("solver", "verifier"), evaluations={"held-out": evaluation()})
    async with running(tmp_path, settings) as service:
        for (name, *rest), sentence in wrong():
            asking = await command(name, service.link.address, *rest)
            _, stderr = await asking.communicate()
            assert asking.returncode == 2
            assert sentence in stderr.decode()
            assert "Traceback" not in stderr.decode()
