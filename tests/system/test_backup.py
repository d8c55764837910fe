"""A backup of a run's folder is the whole run."""

import shutil
from pathlib import Path

import pytest

from tests.system.processes import assert_balanced, running

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.long]

ENDLESS = ("--no-web", "--set", "stop.reward=2.0", "--set", "stop.steps=1000000")


async def test_a_run_continues_from_a_backup_in_another_folder(tmp_path: Path) -> None:
    async with running("smoke", tmp_path / "run", *ENDLESS) as run:
        before = await run.steps_more(3)
    backup = shutil.make_archive(str(tmp_path / "backup"), "gztar", tmp_path / "run")
    shutil.rmtree(tmp_path / "run")

    shutil.unpack_archive(backup, tmp_path / "restored")
    async with running("smoke", tmp_path / "restored", *ENDLESS) as run:
        first = await run.report()
        after = await run.steps_more(1)
    assert first.streams[0].training.steps >= before.streams[0].training.steps
    assert first.flows[0].issued >= before.flows[0].issued
    assert (after.run, after.sequence > before.sequence) == (before.run, True)
    assert_balanced(after)
