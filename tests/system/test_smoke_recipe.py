"""`recipes/smoke` as a person or a script runs it: from the command line, to its end."""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.system.processes import ROOT, RunningRun, command, running

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ENDLESS = ("--set", "stop.reward=2.0", "--set", "stop.steps=1000000")
SLOWLY = ("--set", "nodes.engine.accuracy_gain=0.005", "--set", "stop.reward=0.75")


def headless(recipe: str, folder: Path, *options: str) -> tuple[int, str, dict[str, Any]]:
    """A run to its end: exit code, what it said, and its summary."""
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
    """Processes that have the folder in their command line."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(folder) in line and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(line)
    return found


@pytest.mark.parametrize("recipe", ["smoke", "smoke/two_policies"])
def test_a_run_learns_balances_and_leaves_nothing_behind(recipe: str, tmp_path: Path) -> None:
    code, said, summary = headless(recipe, tmp_path)
    assert code == 0, said
    assert (summary["learned"], summary["balanced"], summary["failed"], summary["restarts"]) == (True, True, False, 0)
    assert summary["reward_first"] < 0.5 < summary["reward_last"]
    assert summary["weight_updates_delta"] > summary["weight_updates_full"] > 0
    assert summary["simulated"] == ["engine scripted", "trainer scripted"]
    assert len(summary["policies"]) == (2 if "two" in recipe else 1)
    assert summary["seconds_training"] < summary["seconds"]
    assert processes_of(tmp_path) == []


def test_a_run_that_did_not_learn_says_so_and_goes_on_later(tmp_path: Path) -> None:
    code, said, summary = headless("smoke", tmp_path, "--no-web", *SLOWLY, "--steps", "20")
    assert code == 1
    assert "20 steps were made and the mean reward did not reach 0.75" in summary["reason"], said
    code, said, again = headless("smoke", tmp_path, "--no-web", *SLOWLY)
    assert code == 0, said
    assert again["steps"] > summary["steps"] >= 20
    assert (again["run"]["run"], again["balanced"]) == (summary["run"]["run"], True)


def test_a_limit_ends_a_run_and_a_process_that_cannot_run_does_too(tmp_path: Path) -> None:
    code, said, summary = headless("smoke", tmp_path, "--no-web", *ENDLESS, "--limit-s", "4")
    assert code == 1, said
    assert summary["reason"] == "the time limit of 4 s was reached"
    broken = ("--set", "policies.solver.model={kind='tiny'}", "--set", "nodes.count=1")
    (tmp_path / "broken").mkdir()
    code, said, summary = headless("smoke", tmp_path / "broken", "--no-web", *broken)
    assert code == 1
    assert summary["failed"]
    assert "error: node-1 cannot run: " in said
    assert "Traceback" not in said
    assert processes_of(tmp_path) == []


async def test_the_page_may_be_killed_and_the_run_does_not_notice(tmp_path: Path) -> None:
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


async def test_nothing_outlives_a_killed_command(tmp_path: Path) -> None:
    arguments = command("run", "smoke", *ENDLESS, "--run-dir", str(tmp_path / "run"))
    with subprocess.Popen(
        arguments, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
    ) as process:
        run = RunningRun(process=process, directory=tmp_path / "run")
        await run.until(lambda report: report.streams[0].steps > 2)
        process.kill()
    await _until(lambda: not processes_of(tmp_path), within_s=10)


async def test_closing_the_terminal_is_a_way_to_stop(tmp_path: Path) -> None:
    arguments = command("run", "smoke", "--no-web", *ENDLESS, "--run-dir", str(tmp_path / "run"))
    with subprocess.Popen(
        arguments, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
    ) as process:
        run = RunningRun(process=process, directory=tmp_path / "run")
        await run.until(lambda report: report.streams[0].steps > 2)
        began = time.monotonic()
        os.kill(process.pid, signal.SIGHUP)
        process.wait(timeout=10)
        await _until(lambda: not processes_of(tmp_path))
        assert time.monotonic() - began < 5
