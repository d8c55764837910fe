"""Data of a run read from its folder: the answers of the live run, also after a crash and with a torn file."""

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from zstandard import ZstdCompressor

from astraflow.archive.reports import compress_report
from astraflow.client.offline_run import OfflineRun, offline_reports
from astraflow.contract.errors import CorruptData, InvalidInput, Unavailable
from astraflow.contract.reports.queries import EventQuery, RewardQuery, TrajectoryQuery
from astraflow.dataflow.history.archive import Archive
from astraflow.dataflow.history.samples import TrajectorySamples
from tests import make
from tests.errors import raises_code
from tests.fakes.recorded_run import fill, recorded_archive
from tests.fakes.synthetic_run import SyntheticRun

pytestmark = pytest.mark.anyio

ALL = TrajectoryQuery(limit=100)
SPREAD = RewardQuery(matching=ALL)


def filled(folder: Path) -> tuple[Archive, TrajectorySamples]:
    archive = recorded_archive(folder)
    return archive, fill(archive, rounds=(make.round_report(1), make.round_report(2)))


async def test_an_offline_run_returns_the_reports_of_dataflow(tmp_path: Path) -> None:
    archive, samples = filled(tmp_path)
    page, spread = await samples.page(ALL), await samples.rewards(SPREAD)
    archive.close()
    files = sorted((tmp_path / "dataflow").iterdir())
    kept = OfflineRun(tmp_path)

    assert len(page.trajectories) == 9
    assert await kept.trajectories(ALL) == page
    assert await kept.rewards(SPREAD) == spread
    assert [evaluation.round for evaluation in await kept.evaluations()] == [2, 1]
    assert await kept.evaluations(before=2, limit=5) == (make.round_report(1),)
    assert (await kept.events(EventQuery())).events == ()
    assert sorted((tmp_path / "dataflow").iterdir()) == files, "reading leaves the files unchanged"


async def test_records_written_before_a_crash_are_read(tmp_path: Path) -> None:
    archive, samples = filled(tmp_path / "run")
    page = await samples.page(ALL)
    shutil.copytree(tmp_path / "run", tmp_path / "crashed")  # the write-ahead log is not yet merged into the file
    archive.close()

    assert (tmp_path / "crashed/dataflow/history.sqlite-wal").stat().st_size > 0
    assert await OfflineRun(tmp_path / "crashed").trajectories(ALL) == page


async def test_a_truncated_write_ahead_log_is_read_up_to_the_last_commit(tmp_path: Path) -> None:
    archive, samples = filled(tmp_path / "run")
    await samples.page(ALL)
    fill(archive, groups=5)
    await archive.flush()
    shutil.copytree(tmp_path / "run", tmp_path / "crashed")
    archive.close()
    log = tmp_path / "crashed/dataflow/history.sqlite-wal"
    log.write_bytes(log.read_bytes()[:-100])
    (tmp_path / "crashed/dataflow/history.sqlite-shm").unlink()

    page = await OfflineRun(tmp_path / "crashed").trajectories(ALL)
    assert {sample.group for sample in page.trajectories} == {"train:1", "train:2", "train:3"}


async def test_a_damaged_or_missing_archive_is_refused(tmp_path: Path) -> None:
    with raises_code(Unavailable, "archive.unavailable"):
        await OfflineRun(tmp_path).trajectories(ALL)

    archive, _ = filled(tmp_path)
    archive.close()
    file = tmp_path / "dataflow" / "history.sqlite"
    file.write_bytes(file.read_bytes()[:5000])
    with raises_code(CorruptData, "archive.unreadable"):
        await OfflineRun(tmp_path).trajectories(ALL)
    file.write_text("this is no database at all")
    with raises_code(CorruptData, "archive.unreadable"):
        await OfflineRun(tmp_path).rewards(SPREAD)


async def test_undecodable_rows_are_left_out(tmp_path: Path) -> None:
    archive, _ = filled(tmp_path)
    archive.close()
    with closing(sqlite3.connect(tmp_path / "dataflow" / "history.sqlite")) as database, database:
        before = [row[0] for row in database.execute("select ordinal from samples order by ordinal desc")]
        (rounds,) = database.execute("select count(*) from rounds").fetchone()
        database.execute("update samples set body = ? where ordinal = ?", (b"\xff\xff\xff", before[1]))
        database.execute("update samples set completion_text = cast(x'ff41' as text) where ordinal = ?", (before[2],))
        database.execute("update rounds set body = ? where round = (select max(round) from rounds)", (b"\xff\xff",))
    kept = OfflineRun(tmp_path)
    shown = (await kept.trajectories(replace(ALL, limit=2))).trajectories
    assert [sample.ordinal for sample in shown] == [before[0], before[2]]
    assert shown[1].completion_text == "\ufffdA"
    assert len(await kept.evaluations()) == rounds - 1


@pytest.mark.long
def test_reports_are_by_minute_and_lately_by_second(tmp_path: Path) -> None:
    synthetic_run, archive = SyntheticRun(began_at=1200.0), recorded_archive(tmp_path)
    fill(archive, reports=tuple(synthetic_run.report(second) for second in range(1, 301)))
    archive.close()
    skipped: list[CorruptData] = []
    sequences = [report.sequence for report in offline_reports(tmp_path, on_skipped=skipped.append)]

    assert sequences[-60:] == list(range(241, 301)), "every second of the last minute"
    assert sequences[:-60] == [59, 119, 179, 239], "one per minute before that"


def test_reports_of_a_folder_without_an_archive_are_refused(tmp_path: Path) -> None:
    skipped: list[CorruptData] = []
    with raises_code(InvalidInput, "archive.missing"):
        list(offline_reports(tmp_path, on_skipped=skipped.append))


def test_unreadable_rows_are_skipped_and_counted(tmp_path: Path) -> None:
    synthetic_run, archive = SyntheticRun(began_at=1200.0), recorded_archive(tmp_path)
    fill(archive, reports=tuple(synthetic_run.report(second) for second in range(1, 31)))
    truncated, bomb = compress_report(synthetic_run.report(11))[:-40], ZstdCompressor().compress(b"\0" * 2**30)
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
    sequences = [report.sequence for report in offline_reports(tmp_path, on_skipped=skipped.append)]

    assert set(range(1, 31)) - set(sequences) == set(rows)
    assert len(skipped) == len(rows)
