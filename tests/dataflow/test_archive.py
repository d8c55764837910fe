"""The archive holds data for display only: it is written beside the run and never delays it."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from astraflow.archive import connection
from astraflow.contract.errors import CorruptData, DeadlineExceeded, InvalidInput, Unavailable
from astraflow.dataflow.history import archive as archive_module
from astraflow.dataflow.history.archive import Archive
from tests.errors import raises_code
from tests.fakes.clock import ManualClock

pytestmark = pytest.mark.anyio

INSERT = "insert into seconds values (?, ?)"


def sequences(database: sqlite3.Connection) -> list[int]:
    return [sequence for (sequence,) in database.execute("select sequence from seconds order by sequence")]


def opened(folder: Path, **options: bool) -> Archive:
    return Archive(folder / "history.sqlite", clock=ManualClock(), **options)


def fill_up(archive: Archive) -> None:
    (pages,) = archive.rows("pragma page_count")[0]
    archive.rows(f"pragma max_page_count = {pages}")


def make_room(archive: Archive) -> None:
    archive.rows("pragma max_page_count = 1000000")


async def test_a_read_sees_all_earlier_writes(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    archive.put(INSERT, 1, b"one")
    archive.put(INSERT, 2, lambda: b"made by the writer")
    assert await archive.read(sequences) == [1, 2]
    archive.close()


async def test_the_archive_flushes_once_a_second_and_at_the_end(tmp_path: Path) -> None:
    clock = ManualClock()
    archive = Archive(tmp_path / "history.sqlite", clock=clock)
    writing = asyncio.create_task(archive.run())
    archive.put(INSERT, 1, b"")
    await clock.pass_time(archive_module.FLUSH_S)
    while not archive.rows("select * from seconds"):  # noqa: ASYNC110 (another thread writes)
        await asyncio.sleep(0.01)
    archive.put(INSERT, 2, b"")
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    archive.close()
    again = opened(tmp_path)
    assert await again.read(sequences) == [1, 2]
    again.close()


async def test_a_full_disk_drops_the_oldest_samples_and_keeps_actions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, "QUEUE_BYTES", 100_000)
    archive = opened(tmp_path)
    fill_up(archive)
    archive.put(INSERT, 0, bytes(50_000), size_bytes=50_000, must_keep=True)
    for sequence in range(1, 9):
        archive.put(INSERT, sequence, bytes(20_000), size_bytes=20_000)
    await archive.flush()
    problem = archive.problem
    assert problem is not None
    assert problem.cause == "archive_unwritable"
    assert "free some space" in str(problem.values["error"])
    assert float(problem.values["dropped"]) > 0
    make_room(archive)
    left = await archive.read(sequences)
    assert archive.problem is None
    assert (left[0], left[-1]) == (0, 8)
    assert len(left) < 9
    archive.close()


async def test_rows_that_a_full_disk_did_not_drop_are_written_in_order(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    fill_up(archive)
    archive.put(INSERT, 1, bytes(100_000))
    await archive.flush()
    assert archive.problem is not None
    archive.put("update seconds set body = ? where sequence = 1", b"later")
    make_room(archive)
    assert await archive.read(lambda database: database.execute("select body from seconds").fetchall()) == [(b"later",)]
    archive.close()


async def test_a_slow_query_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "QUERY_S", 0.05)
    archive = opened(tmp_path)
    endless = "with recursive n(x) as (select 1 union all select x + 1 from n) select count(*) from n"
    with raises_code(DeadlineExceeded, "archive.query_timeout"):
        await archive.read(lambda database: database.execute(endless).fetchone())
    assert await archive.read(sequences) == []
    archive.close()


async def test_a_reader_cannot_write(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    with raises_code(Unavailable, "archive.outage"):
        await archive.read(lambda database: database.execute("delete from seconds"))
    archive.close()


@pytest.mark.parametrize("content", [b"no database at all, but long enough to be looked at" * 100, b""])
async def test_a_damaged_archive_is_set_aside_and_the_run_continues(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "history.sqlite").write_bytes(content)
    archive = opened(tmp_path)
    archive.put(INSERT, 1, b"")
    assert await archive.read(sequences) == [1]
    archive.close()
    aside = tmp_path / "history.unreadable.sqlite"
    assert aside.exists() == bool(content)
    assert not content or aside.read_bytes() == content


async def test_a_file_damaged_during_the_run_is_set_aside_and_writing_goes_on(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    archive.put(INSERT, 1, b"x" * 100_000)
    await archive.flush()
    archive.close()
    path = tmp_path / "history.sqlite"
    content = path.read_bytes()
    archive = opened(tmp_path)
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    with raises_code(CorruptData, "archive.damaged"):
        await archive.read(lambda database: database.execute("select body from seconds").fetchall())
    archive.put(INSERT, 2, b"")
    assert await archive.read(sequences) == [2]
    assert archive.problem is not None
    assert archive.problem.cause == "archive_set_aside"
    assert archive.problem.values["aside"] == "history.unreadable.sqlite"
    archive.close()
    assert (tmp_path / "history.unreadable.sqlite").stat().st_size == len(content)


async def test_a_file_of_another_release_is_set_aside(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    archive.put(INSERT, 1, b"")
    archive.rows("pragma user_version = 999")
    archive.close()
    again = opened(tmp_path)
    assert await again.read(sequences) == []
    again.close()


async def test_an_archive_can_start_empty(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    archive.put(INSERT, 1, b"")
    archive.close()
    again = opened(tmp_path, starts_empty=True)
    assert await again.read(sequences) == []
    again.close()


def test_an_unwritable_archive_path_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput) as caught:
        opened(tmp_path / "file")
    assert caught.value.code == "archive.unusable"
