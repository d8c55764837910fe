"""Reports of the last minutes and points of the run: durable, without gaps or duplicates, in pages of bounded size."""

import math
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from astraflow.archive.reports import compress_report
from astraflow.contract.errors import InvalidInput
from astraflow.contract.reports.report import Report
from astraflow.dataflow.history import history as history_module
from astraflow.dataflow.history.archive import Archive
from astraflow.dataflow.history.history import History
from astraflow.dataflow.plugin_changes import plugin_kinds
from astraflow.dataflow.storage.journal import Journal
from astraflow.wire.codecs.converter import from_message, to_message
from astraflow.wire.pb import control_plane_pb2
from tests import make
from tests.dataflow.running import committing
from tests.fakes.clock import ManualClock

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def opened(folder: Path, *, seconds: int = 900, minutes: int = 1000) -> AsyncIterator[History]:
    journal = Journal(folder / "journal.sqlite")
    archive = Archive(folder / "history.sqlite", clock=ManualClock())
    async with committing(journal):
        with closing(archive):
            yield History(journal, archive, seconds=seconds, minutes=minutes)
            await journal.wait_durable()


def report(second: int) -> Report:
    return replace(make.report(sequence=second), at=6000.0 + second)


async def kept(history: History, *, after: int = 0, limit: int = 10_000, resolution_s: int = 1) -> list[int]:
    reply = await history.page_after(after, limit=limit, resolution_s=resolution_s)
    return [report.sequence for report in reply.reports]


async def test_reports_are_stored_completely_except_for_node_errors(tmp_path: Path) -> None:
    async with opened(tmp_path) as history:
        node = replace(make.node_report(), errors=("again and again",))
        full_report = replace(report(1), nodes=(node,))
        history.add(full_report)
        reply = await history.page_after(0, limit=10, resolution_s=0)
        assert from_message(reply.reports[0], Report) == replace(full_report, nodes=(replace(node, errors=()),))
        assert history.latest == full_report


async def test_kinds_of_plugins_are_in_no_stored_report(tmp_path: Path) -> None:
    async with opened(tmp_path) as history:
        for second in (1, 2, 62):
            history.add(replace(report(second), at=6000.0 + second, plugin_kinds=plugin_kinds()))
        pages = [await history.page_after(0, limit=10, resolution_s=resolution_s) for resolution_s in (0, 60)]
        assert [[bool(stored.plugin_kinds) for stored in page.reports] for page in pages] == [[False] * 3, [False]]
        assert history.latest is not None and history.latest.plugin_kinds


async def test_the_latest_reports_are_returned_oldest_first(tmp_path: Path) -> None:
    async with opened(tmp_path, seconds=5) as history:
        for second in range(1, 11):
            history.add(report(second))
        assert await kept(history) == [6, 7, 8, 9, 10]
        assert await kept(history, limit=2) == [9, 10]
        assert await kept(history, after=8) == [9, 10]
        assert await kept(history, after=2**64 - 1) == await kept(history, limit=0) == []


async def test_a_large_answer_is_split_into_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "PAGE_BYTES", 1500)
    async with opened(tmp_path) as history:
        for second in range(1, 11):
            history.add(report(second))
        first = await history.page_after(0, limit=8, resolution_s=1)
        assert first.has_more
        assert first.reports[0].sequence == 3
        rest = await kept(history, after=first.reports[-1].sequence, limit=8)
        assert rest[0] == first.reports[-1].sequence + 1


@pytest.mark.long
async def test_one_point_per_minute_is_kept_for_the_run(tmp_path: Path) -> None:
    async with opened(tmp_path, seconds=10, minutes=3) as history:
        for second in range(60 * 5 + 1):
            history.add(report(second))
        assert await kept(history, resolution_s=60) == [179, 239, 299]
        assert (await history.page_after(0, limit=9, resolution_s=60)).reports[0].nodes == []


@pytest.mark.long
@pytest.mark.parametrize("cut", [1, 59, 60, 61, 119, 120, 121])
async def test_a_restart_leaves_no_gap_and_no_duplicate(tmp_path: Path, cut: int) -> None:
    async with opened(tmp_path) as history:
        for second in range(1, cut + 1):
            history.add(report(second))
    async with opened(tmp_path) as history:
        assert history.next_sequence == cut + 1
        for second in range(cut + 1, 200):
            history.add(report(second))
        assert await kept(history) == list(range(1, 200))
        assert await kept(history, resolution_s=60) == [59, 119, 179]


async def test_the_sequence_continues_after_the_loss_of_the_archive(tmp_path: Path) -> None:
    async with opened(tmp_path) as history:
        history.add(report(1))
        history.add(report(2))
    for ending in ("", "-wal", "-shm"):
        (tmp_path / f"history.sqlite{ending}").unlink(missing_ok=True)
    async with opened(tmp_path) as history:
        assert history.next_sequence == 3


async def test_an_unknown_resolution_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as history:
        with pytest.raises(InvalidInput) as caught:
            await history.page_after(0, limit=1, resolution_s=5)
        assert caught.value.code == "history.unknown_resolution"


def bad_rows() -> list[bytes]:
    """Returns rows that cannot be read or displayed as a report."""
    node = make.node_report()
    priceless = replace(node, facts=replace(node.facts, price_per_hour=math.nan))
    unknown = to_message(replace(report(3), nodes=(node,)), control_plane_pb2.Report)
    unknown.nodes[0].state = "melted"
    compress = zstandard.ZstdCompressor().compress
    return [
        compress_report(replace(report(2), nodes=(priceless,))),
        compress(unknown.SerializeToString()),
        compress(b"?"),
        b"?",
    ]


@pytest.mark.parametrize("table", ["seconds", "minutes"])
@pytest.mark.parametrize("body", bad_rows())
async def test_an_unreadable_row_is_left_out_and_counted_after_a_restart(
    tmp_path: Path, table: str, body: bytes
) -> None:
    async with opened(tmp_path) as history:
        for second in (1, 2, 3):
            history.add(report(second))
    with closing(sqlite3.connect(tmp_path / "history.sqlite")) as database, database:
        database.execute(f"insert or replace into {table} values (2, ?)", (body,))  # noqa: S608 (one of two constants)
    async with opened(tmp_path) as history:
        assert history.losses.counts["row_read"] == 1
        assert history.next_sequence == 4
        history.add(report(4))
        shown = await kept(history)
        assert set(shown) >= {1, 3, 4}


async def test_a_report_that_cannot_be_encoded_is_left_out_and_later_ones_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as history:
        history.add(replace(report(1), memory_bytes=-1))
        history.add(report(2))
        assert await kept(history) == [2]
        assert history.losses.counts["row_written"] == 1
