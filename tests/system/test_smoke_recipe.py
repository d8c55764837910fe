"""`recipes/smoke` as a person or a script runs it: from the command line to its end."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from astraflow.contract.reports.evaluations import EvaluationState
from tests.system.processes import ROOT, RunningRun, assert_balanced, command, running

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.long]

RARELY = ("--set", "evaluations.progress.prompts=100", "--set", "evaluations.progress.every_versions=1000000")
DONE = EvaluationState.DONE
ENDLESS = ("--set", "stop.reward=2.0", "--set", "stop.steps=1000000")
SLOWLY = ("--set", "nodes.engine.accuracy_gain=0.005", "--set", "stop.reward=0.75")


def headless(recipe: str, folder: Path, *options: str) -> tuple[int, str, dict[str, Any]]:
    """Runs to the end; returns the exit code, the output and the summary."""
    file = folder / "summary.json"
    arguments = ["run", recipe, "--headless", "--limit-s", "90", "--json", str(file), "--run-dir", str(folder / "run")]
    ran = subprocess.run(
        command(*arguments, *options),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
    )
    return ran.returncode, ran.stdout, json.loads(file.read_text())


def processes_of(folder: Path) -> list[str]:
    """Returns the processes that have the folder in their command line."""
    processes = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(folder) in line and process.info["status"] != psutil.STATUS_ZOMBIE:
            processes.append(line)
    return processes


@pytest.mark.parametrize("recipe", ["smoke", "smoke/two_policies"])
def test_a_run_learns_with_balanced_counts_and_leaves_no_process(recipe: str, tmp_path: Path) -> None:
    travels = "two" in recipe
    code, output, summary = headless(
        recipe, tmp_path, *(["--set", "nodes.pull.use_shared_memory=false"] if travels else [])
    )
    assert code == 0, output
    assert (summary["learned"], summary["balanced"], summary["failed"], summary["restarts"]) == (True, True, False, 0)
    assert summary["reward_first"] < 0.5 < summary["reward_last"]
    whole, deltas, mapped = (summary[f"weight_updates_{way}"] for way in ("full", "delta", "shared"))
    counts = (whole, deltas, mapped)
    # A node may fetch a delta over the link while the store changes the shared buffer.
    assert deltas > whole > mapped == 0 if travels else mapped > 9 * deltas and whole == 0, counts
    assert summary["simulated"] == ["engine scripted", "trainer scripted"]
    assert len(summary["policies"]) == (2 if "two" in recipe else 1)
    assert summary["seconds_training"] < summary["seconds"]
    assert processes_of(tmp_path) == []


def test_a_run_that_missed_its_reward_fails_and_can_be_resumed(tmp_path: Path) -> None:
    code, output, summary = headless("smoke", tmp_path, "--no-web", *SLOWLY, "--steps", "20")
    assert code == 1
    assert summary["reason"].startswith("20 steps") and "0.75" in summary["reason"], output
    code, output, again = headless("smoke", tmp_path, "--no-web", *SLOWLY)
    assert code == 0, output
    assert again["steps"] > summary["steps"] >= 20
    assert (again["run"]["run"], again["balanced"]) == (summary["run"]["run"], True)


def test_a_time_limit_or_a_process_that_cannot_start_ends_a_run(tmp_path: Path) -> None:
    code, output, summary = headless("smoke", tmp_path, "--no-web", *ENDLESS, "--limit-s", "4")
    assert code == 1, output
    assert "limit of 4 s" in summary["reason"]
    broken = ("--set", "policies.solver.model={kind='tiny'}", "--set", "nodes.count=1")
    (tmp_path / "broken").mkdir()
    code, output, summary = headless("smoke", tmp_path / "broken", "--no-web", *broken)
    assert code == 1
    assert summary["failed"]
    assert "[engine.unsupported_model]" in output
    assert "Traceback" not in output
    assert processes_of(tmp_path) == []


async def test_versions_are_evaluated_during_training(tmp_path: Path) -> None:
    """Evaluates one round by the recipe, with a kill in its middle, and one on request, of an old version."""
    slowly = ("--no-web", *ENDLESS, *SLOWLY[:2], *RARELY)
    async with running("smoke", tmp_path / "run", *slowly) as run:
        await run.until(lambda report: bool(report.evaluations) and report.evaluations[-1].done > 0)
        run.kill("dataflow")
        first = await run.until(lambda report: bool(report.evaluations) and report.evaluations[0].state is DONE)
        began = await run.steps_more(15)
        process = await asyncio.create_subprocess_exec(
            *command(
                *("evaluate", "version", "progress", run.facts()["dataflow"]),
                *("--token", run.token(), "--version", "3", "--json"),
            ),
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        ended = await run.steps_more(5)
        out, _ = await process.communicate()
        last = await run.report()
    printed = json.loads(out)
    at_start = first.evaluations[0]
    assert (at_start.versions, at_start.done, at_start.failed) == ({"solver": 0}, 400, 0)
    assert (printed["state"], printed["versions"], printed["done"]) == ("done", {"solver": 3}, 400)
    assert began.streams[0].version > 3, "an older version is evaluated while newer ones are trained"
    assert ended.streams[0].training.steps > began.streams[0].training.steps
    assert_balanced(last)
    scores = {score.name: score for score in at_start.scores}
    assert scores["avg@4"].value == pytest.approx(0.3, abs=0.1), "the configured accuracy of the scripted engine"
    assert scores["pass@4"].value > scores["pass@1"].value == scores["avg@4"].value


async def test_a_killed_page_is_restarted_without_effect_on_the_run(tmp_path: Path) -> None:
    async with running("smoke", tmp_path / "run", *ENDLESS) as run:
        await _until(lambda: _pages_in(run) == 1)
        before = run.pids()
        run.kill("web")
        await run.steps_more(5)
        await _until(lambda: _pages_in(run) == 2)
        after = run.pids()
    assert {name for name in after if after[name] != before[name]} == {"web"}


def _pages_in(run: RunningRun) -> int:
    log = run.directory / "logs" / "supervisor.log"
    return log.read_text().count("web ready http://127.0.0.1:") if log.exists() else 0


async def _until(is_so: Callable[[], bool], *, within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while not is_so():  # noqa: ASYNC110 (other processes set no events)
            await asyncio.sleep(0.05)


@pytest.mark.real_processes
async def test_no_process_survives_a_killed_command(tmp_path: Path) -> None:
    async with started(tmp_path) as run:
        run.process.kill()
    await _until(lambda: not processes_of(tmp_path), within_s=30)


@pytest.mark.real_processes
async def test_closing_the_terminal_stops_the_run(tmp_path: Path) -> None:
    async with started(tmp_path, "--no-web") as run:
        os.kill(run.process.pid, signal.SIGHUP)
        run.process.wait(timeout=30)
        await _until(lambda: not processes_of(tmp_path))


@asynccontextmanager
async def started(directory: Path, *options: str) -> AsyncIterator[RunningRun]:
    """Yields a run that trains; kills it in the end, so that a failed test does not wait for it."""
    arguments = command("run", "smoke", *options, *ENDLESS, "--run-dir", str(directory / "run"))
    with subprocess.Popen(
        arguments,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # ignored by what `nohup` starts
    ) as process:
        try:
            run = RunningRun(process=process, directory=directory / "run")
            await run.until(lambda report: report.streams[0].training.steps > 2)
            yield run
        finally:
            process.kill()
