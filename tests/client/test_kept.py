"""What a run left in its folder: the same answers as while it went on, also after a crash and of a torn file."""

import shutil
from pathlib import Path

import pytest
from zstandard import ZstdCompressor

from astraflow.archive.reports import packed
from astraflow.client.kept import KeptRun
from astraflow.client.kept_reports import kept_reports
from astraflow.contract.errors import CorruptData, InvalidInput, Unavailable
from astraflow.contract.lookups import EventQuery, RewardQuery, TrajectoryQuery
from astraflow.dataflow.reporting.archive import Archive
from astraflow.dataflow.reporting.samples import Samples
from tests import make
from tests.fakes.kept_run import archive_of, fill
from tests.fakes.world import World

pytestmark = pytest.mark.anyio

ALL = TrajectoryQuery(limit=100)
SPREAD = RewardQuery(matching=ALL)


def filled(folder: Path) -> tuple[Archive, Samples]:
    archive = archive_of(folder)
    return archive, fill(archive, rounds=(make.round_report(1), make.round_report(2)))


async def test_who_reopens_the_folder_is_told_what_dataflow_told(tmp_path: Path) -> None:
    archive, samples = filled(tmp_path)
    page, spread = await samples.page(ALL), await samples.rewards(SPREAD)
    archive.close()
    files = sorted((tmp_path / "dataflow").iterdir())
    kept = KeptRun(tmp_path)

    assert len(page.trajectories) == 9
    assert await kept.trajectories(ALL) == page
    assert await kept.rewards(SPREAD) == spread
    assert [one.round for one in await kept.evaluations()] == [2, 1]
    assert await kept.evaluations(before=2, limit=5) == (make.round_report(1),)
    assert (await kept.events(EventQuery())).events == ()
    assert sorted((tmp_path / "dataflow").iterdir()) == files, "looking leaves no trace"


async def test_what_was_written_before_a_crash_is_there(tmp_path: Path) -> None:
    archive, samples = filled(tmp_path / "run")
    page = await samples.page(ALL)
    shutil.copytree(tmp_path / "run", tmp_path / "crashed")  # the log of changes is not taken into the file yet
    archive.close()

    assert (tmp_path / "crashed/dataflow/history.sqlite-wal").stat().st_size > 0
    assert await KeptRun(tmp_path / "crashed").trajectories(ALL) == page


async def test_a_log_that_a_crash_tore_holds_what_was_whole_before(tmp_path: Path) -> None:
    archive, samples = filled(tmp_path / "run")
    await samples.page(ALL)
    fill(archive, groups=5)
    await archive.flush()
    shutil.copytree(tmp_path / "run", tmp_path / "crashed")
    archive.close()
    log = tmp_path / "crashed/dataflow/history.sqlite-wal"
    log.write_bytes(log.read_bytes()[:-100])
    (tmp_path / "crashed/dataflow/history.sqlite-shm").unlink()

    page = await KeptRun(tmp_path / "crashed").trajectories(ALL)
    assert {sample.group for sample in page.trajectories} == {"train:1", "train:2", "train:3"}


async def test_what_is_torn_or_missing_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="kept nothing there"):
        await KeptRun(tmp_path).trajectories(ALL)

    archive, _ = filled(tmp_path)
    archive.close()
    file = tmp_path / "dataflow" / "history.sqlite"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(CorruptData, match="cannot read"):
        await KeptRun(tmp_path).trajectories(ALL)
    file.write_text("this is no database at all")
    with pytest.raises(CorruptData, match="cannot read"):
        await KeptRun(tmp_path).rewards(SPREAD)


async def test_a_row_that_holds_something_else_is_a_sentence(tmp_path: Path) -> None:
    archive, _ = filled(tmp_path)
    archive.put("update samples set body = ?", b"\xff\xff\xff")
    archive.put("update rounds set body = ?", b"\xff\xff\xff")
    archive.close()
    kept = KeptRun(tmp_path)
    with pytest.raises(CorruptData):
        await kept.trajectories(ALL)
    with pytest.raises(CorruptData):
        await kept.evaluations()


def test_reports_are_minutes_and_then_seconds(tmp_path: Path) -> None:
    world, archive = World(began_at=1200.0), archive_of(tmp_path)
    fill(archive, reports=tuple(world.report(second) for second in range(1, 301)))
    archive.close()
    skipped: list[CorruptData] = []
    told = [report.sequence for report in kept_reports(tmp_path, on_skipped=skipped.append)]

    assert told[-60:] == list(range(241, 301)), "every one of the last minutes"
    assert told[:-60] == [59, 119, 179, 239], "before that, one a minute"


def test_reports_of_a_folder_without_any_say_so(tmp_path: Path) -> None:
    skipped: list[CorruptData] = []
    with pytest.raises(InvalidInput, match="no history"):
        list(kept_reports(tmp_path, on_skipped=skipped.append))


def test_rows_that_cannot_be_read_are_skipped_and_counted(tmp_path: Path) -> None:
    world, archive = World(began_at=1200.0), archive_of(tmp_path)
    fill(archive, reports=tuple(world.report(second) for second in range(1, 31)))
    truncated, bomb = packed(world.report(11))[:-40], ZstdCompressor().compress(b"\0" * 2**30)
    assert len(bomb) < 2**16
    rows = {
        10: truncated,
        12: bomb,
        14: b"no frame",
        16: ZstdCompressor().compress(b"\xff\xff\xff"),
        18: "text",
        20: b"",
    }
    for sequence, body in rows.items():
        archive.put("update seconds set body = ? where sequence = ?", body, sequence)
    archive.close()
    skipped: list[CorruptData] = []
    told = [report.sequence for report in kept_reports(tmp_path, on_skipped=skipped.append)]

    assert set(range(1, 31)) - set(told) == set(rows)
    assert len(skipped) == len(rows)
