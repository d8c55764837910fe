"""A run of real processes with damaged checkpoints goes on from an intact one, or ends with one sentence."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from astraflow.contract.records import render
from astraflow.trainer.checkpoints import finished_checkpoints
from tests.hostile.files import flip_bit
from tests.system.processes import assert_balanced, command, running

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

OPTIONS = ("--no-web", "--set", "stop.reward=2", "--set", "stop.steps=100000")


async def stopped_run(folder: Path) -> Sequence[Path]:
    """Runs some steps; returns the checkpoints, newest first."""
    async with running("smoke", folder, *OPTIONS) as run:
        await run.steps_more(5)
    return finished_checkpoints(folder / "trainer-solver" / "checkpoints")


async def test_a_run_goes_on_from_an_older_checkpoint(tmp_path: Path, forked_programs: None) -> None:
    newest, *_ = await stopped_run(tmp_path / "run")
    flip_bit(next(path for path in (newest / "state").rglob("*") if path.is_file()))
    async with running("smoke", tmp_path / "run", *OPTIONS) as run:
        report = await run.until(lambda report: "checkpoint_set_aside" in {event.kind.value for event in report.events})
        assert_balanced(await run.steps_more(3))
        (event,) = (event for event in report.events if event.kind.value == "checkpoint_set_aside")
        assert f"{newest.name}.damaged" in render(event)
        assert event.values in [problem.values for problem in report.problems]
        assert newest.with_name(f"{newest.name}.damaged").is_dir()


async def test_a_run_without_an_intact_checkpoint_ends_with_one_sentence(tmp_path: Path, forked_programs: None) -> None:
    for checkpoint in await stopped_run(tmp_path / "run"):
        flip_bit(checkpoint / "manifest.json")
    resumed = command("run", "smoke", "--headless", "--limit-s", "60", "--run-dir", str(tmp_path / "run"), *OPTIONS)
    ended = subprocess.run(resumed, capture_output=True, text=True, timeout=90, check=False)
    assert ended.returncode != 0
    assert ended.stderr.count("no checkpoint is intact") == 1
