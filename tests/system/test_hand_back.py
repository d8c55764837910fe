"""Nodes of a real run that leave in the middle of long answers: other nodes finish the answers."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from astraflow.contract.records import render
from astraflow.contract.reports.report import NodeState, Report
from tests.system.processes import PATIENCE_S, ROOT, RunningRun, assert_balanced, command, running

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LONG_ANSWERS = (
    "--no-web",
    *("--set", "stop.reward=2.0"),
    *("--set", "stop.steps=1000000"),
    *("--set", "flows.train.workflow.max_new_tokens=3000"),
    *("--set", "nodes.engine.tokens={kind='lognormal', mean=800, spread=0.8}"),
)
"""About two seconds per answer, up to seven and a half."""


def partial_rollouts(report: Report) -> dict[str, int]:
    return dict(report.flows[0].partial_rollouts)


def assert_all_balances(report: Report) -> None:
    assert_balanced(report)
    rollout_counts = partial_rollouts(report)
    assert rollout_counts["handed_back"] == sum(
        rollout_counts[end] for end in ("stored", "continued", "discarded", "stale")
    )


def writes(name: str) -> Callable[[Report], bool]:
    """Returns whether that node has been generating for a while."""
    return lambda report: any(
        node.facts.name == name and node.leased > 8 and node.counters.get("tokens_generated", 0) > 0
        for node in report.nodes
    )


@pytest.mark.long
async def test_a_terminated_node_returns_its_partial_rollouts(tmp_path: Path) -> None:
    async with running("smoke", tmp_path / "run", *LONG_ANSWERS) as run:
        await run.until(writes("node-1"))
        os.kill(run.pids()["node-1"], signal.SIGTERM)
        report = await run.until(lambda report: partial_rollouts(report)["continued"] > 0)
        await run.steps_more(3)
        report = await run.until(lambda report: partial_rollouts(report)["stored"] == 0)
        assert_all_balances(report)
        assert partial_rollouts(report)["tokens_saved"] > 0
        assert report.flows[0].episodes.get("failed_engine", 0) == 0
        (left,) = (node for node in report.nodes if node.facts.name == "node-1" and node.counters)
        assert (left.state, left.lease_expiries) == (NodeState.GONE, 0)
        continued = sum(node.counters.get("tokens_continued", 0) for node in report.nodes)
        assert continued >= partial_rollouts(report)["tokens_saved"]


async def test_a_preempted_spot_node_drains_before_its_end(tmp_path: Path) -> None:
    notice = tmp_path / "notice.json"
    async with running("smoke", tmp_path / "run", *LONG_ANSWERS, "--nodes", "1") as run:
        await run.until(lambda report: report.streams[0].training.steps >= 1)
        with by_hand(run, f"{{kind = 'file', path = '{notice}', poll_interval_s = 0.1}}") as node:
            await run.until(writes("spot"))
            notice.write_text('{"deadline_s": 3}')
            assert node.wait(timeout=PATIENCE_S) == 0
        report = await run.until(lambda report: partial_rollouts(report)["continued"] > 0)
        assert_all_balances(report)
        (drain_event,) = (event for event in report.events if event.kind.value == "node_draining")
        assert drain_event.subject.startswith("spot.")
        assert render(drain_event).startswith(f"preempted: the file {notice}")
        (departure,) = (event for event in report.events if event.kind.value == "node_left")
        assert render(departure).startswith("preempted: ")
        await run.steps_more(3)


@contextmanager
def by_hand(run: RunningRun, preemption: str) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a node that joins the run from elsewhere."""
    environment = {**os.environ, "ASTRAFLOW_TOKEN": run.token()}
    arguments = command("join", run.facts()["dataflow"], "--name", "spot", "--preemption", preemption)
    node = subprocess.Popen(arguments, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    try:
        yield node
    finally:
        node.kill()
        node.wait()
