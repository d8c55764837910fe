"""A run of real processes under `kill -9`, with nodes that are started and stopped by hand."""

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest

from astraflow.contract.reports.report import NodeState, Report
from tests.system.processes import PATIENCE_S, ROOT, assert_balanced, command, running

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.long]

ENDLESS = ("--no-web", "--set", "stop.reward=2.0", "--set", "stop.steps=1000000")


@pytest.mark.flaky(reruns=1)  # seven processes start again in turn, each within a time that a busy machine exceeds
async def test_every_batch_is_trained_once_despite_a_kill_of_any_process(tmp_path: Path) -> None:
    async with running("smoke", tmp_path / "run", *ENDLESS) as run:
        await run.until(lambda report: report.streams[0].training.steps >= 3)
        for program in ("dataflow", "node-1", "trainer-solver", "weights", "node-2"):
            run.kill(program)
            report = await run.steps_more(5)
            assert_balanced(report)
        await asyncio.sleep(0.5)
        steps = run.logged_steps("trainer-solver")
        report = await run.report()
        restarted = [
            line for line in (tmp_path / "run/logs/supervisor.log").read_text().splitlines() if "killed" in line
        ]
    batches = [step["batch"] for step in steps]
    # The log line follows the acknowledgement, so a kill may lose the line of the last step before it.
    assert len(batches) == len(set(batches)) >= report.streams[0].training.steps - 2
    assert [step["step"] for step in steps] == [int(batch.partition(":")[2]) + 1 for batch in batches]
    assert len(restarted) == 5
    # A version is published before its step is acknowledged.
    assert report.streams[0].version - report.streams[0].training.steps in (0, 1)


@pytest.mark.real_processes  # SIGSTOP stops no program that forks
async def test_a_stalled_trainer_does_not_stop_others_and_resumes(tmp_path: Path) -> None:
    patience = ("--set", "policies.verifier.stalled_after_s=1")
    async with running("smoke/two_policies", tmp_path / "run", *ENDLESS, *patience) as run:
        before = _steps(await run.until(lambda report: min(_steps(report).values()) >= 3))
        stalled = run.pids()["trainer-verifier"]
        os.kill(stalled, signal.SIGSTOP)
        try:
            report = await run.until(lambda report: _steps(report)["solver"] >= before["solver"] + 30)
        finally:
            os.kill(stalled, signal.SIGCONT)
        verifier = report.streams[1]
        assert verifier.training.steps < before["verifier"] + 10
        assert verifier.groups.dropped["full"] > 0
        assert (
            verifier.groups.buffered + verifier.groups.in_batch <= (verifier.max_staleness + 1) * verifier.batch_groups
        )
        report = await run.until(lambda report: _steps(report)["verifier"] >= verifier.training.steps + 10)
    assert_balanced(report)


async def test_a_manually_joined_node_contributes_and_returns_its_tasks(tmp_path: Path) -> None:
    async with running("smoke", tmp_path / "run", *ENDLESS, "--nodes", "1") as run:
        await run.until(lambda report: report.streams[0].training.steps >= 1)
        environment = {**os.environ, "ASTRAFLOW_TOKEN": run.token()}
        arguments = command("join", run.facts()["dataflow"], "--name", "by-hand")
        node = subprocess.Popen(arguments, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
        try:
            await run.until(
                lambda report: any(
                    node.facts.name == "by-hand" and node.counters.get("episodes_done", 0) > 0 for node in report.nodes
                )
            )
            node.send_signal(signal.SIGINT)
            assert node.wait(timeout=PATIENCE_S) == 128 + signal.SIGINT
            report = await run.report()
            (left,) = (node for node in report.nodes if node.facts.name == "by-hand")
            assert (left.state, left.leased) == (NodeState.GONE, 0)
            assert_balanced(report)
        finally:
            node.kill()
            node.wait()


async def test_two_policies_of_one_workflow_learn_with_separate_trainers(tmp_path: Path) -> None:
    async with running("smoke/two_policies", tmp_path / "run", *ENDLESS) as run:
        report = await run.until(lambda report: all(stream.training.steps >= 5 for stream in report.streams))
        assert {stream.policy for stream in report.streams} == {"solver", "verifier"}
        assert_balanced(report)
        run.kill("trainer-verifier")
        await run.steps_more(5)
        assert_balanced(await run.report())


def _steps(report: Report) -> dict[str, int]:
    return {stream.policy: stream.training.steps for stream in report.streams}
