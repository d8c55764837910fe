"""A disk that fills up during a run: the run reports it, waits, and continues when there is room."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.processes import assert_balanced, running

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.needs("root"),
]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of three megabytes, full after a few steps."""
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(mount_point)], check=True)
    yield mount_point
    subprocess.run(["umount", "-l", str(mount_point)], check=True)


@pytest.fixture
def small_trainer_disk(tmp_path: Path) -> Iterator[Path]:
    """The trainer's folder of a run, on a disk of its own that holds no checkpoint; dataflow's disk has room."""
    mount_point = tmp_path / "run" / "trainer-solver"
    mount_point.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", str(mount_point)], check=True)
    yield mount_point
    subprocess.run(["umount", "-l", str(mount_point)], check=True)


async def test_a_trainer_that_cannot_write_its_checkpoint_says_so_in_the_report(small_trainer_disk: Path) -> None:
    options = ("--no-web", "--set", "stop.reward=2.0", "--set", "stop.steps=1000000")
    async with running("smoke", small_trainer_disk.parent, *options) as run:
        report = await run.until(lambda report: bool(report.problems))
        assert (report.problems[0].cause, report.problems[0].subject) == ("trainer_problem", "solver")
        assert "cannot write checkpoint" in str(report.problems[0].values["error"])
        subprocess.run(["mount", "-o", "remount,size=200m", str(small_trainer_disk)], check=True)
        await run.until(lambda report: not report.problems)
        assert_balanced(await run.steps_more(3))


async def test_a_full_disk_is_reported_and_the_run_continues_without_loss(small_disk: Path, tmp_path: Path) -> None:
    options = ("--no-web", "--set", "stop.reward=2.0", "--set", "stop.steps=1000000")
    async with running("smoke", small_disk / "run", *options, output_file=tmp_path / "run.out") as run:
        report = await run.until(lambda report: bool(report.problems))
        assert "free some space" in str(report.problems[0].values["error"])
        subprocess.run(["mount", "-o", "remount,size=200m", str(small_disk)], check=True)
        await run.until(lambda report: not report.problems)
        report = await run.steps_more(5)
        assert_balanced(report)
        steps = [step["batch"] for step in run.logged_steps("trainer-solver")]
        assert len(steps) == len(set(steps))
