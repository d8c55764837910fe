"""Durability of the journal, and its behaviour when it cannot write."""

import asyncio
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput, StorageFull
from astraflow.dataflow.storage import journal as journal_module
from astraflow.dataflow.storage.journal import Journal
from tests.dataflow.running import committing

pytestmark = pytest.mark.anyio

INSERT = "insert into acts values (?, ?)"


async def test_wait_durable_returns_after_the_commit_is_visible_to_others(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    journal = Journal(path)
    async with committing(journal):
        journal.put(INSERT, 1, b"one")
        await journal.wait_durable()
        with closing(sqlite3.connect(path)) as other:
            assert other.execute("select body from acts").fetchall() == [(b"one",)]


async def test_stored_states_match_their_commit(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    count = 0
    journal.register_state("count", lambda: {"count": count})
    async with committing(journal):
        for _ in range(50):
            count += 1
            journal.put(INSERT, count, b"")
            if count % 7 == 0:
                await journal.wait_durable()
                saved = journal.saved_state("count")
                assert saved == {"count": len(journal.rows("select * from acts"))}
    reopened = Journal(tmp_path / "journal.sqlite")
    assert reopened.saved_state("count") == {"count": 50}
    async with committing(reopened):
        await reopened.wait_durable()


async def test_a_state_is_written_again_only_when_it_is_another_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "RETRY_S", 0.01)
    journal = Journal(tmp_path / "journal.sqlite")
    (pages,) = journal.rows("pragma page_count")[0]
    written: list[Mapping[str, str]] = []
    write = journal._write

    def recording(changes: Any, states: Mapping[str, str]) -> None:
        written.append(states)
        write(changes, states)

    monkeypatch.setattr(journal, "_write", recording)
    state = {"steps": 1}
    journal.register_state("steps", lambda: state)
    async with committing(journal):
        for number in range(3):
            journal.put(INSERT, number, b"")
            await journal.wait_durable()
        assert written == [{"steps": '{"steps": 1}'}, {}, {}]
        journal.rows(f"pragma max_page_count = {pages}")
        state = {"steps": 2}
        journal.put(INSERT, 3, b"x" * 100_000)
        with pytest.raises(StorageFull):
            await journal.wait_durable()
        journal.rows("pragma max_page_count = 1000000")
        while journal.failure is not None:  # noqa: ASYNC110 (the journal notifies waiters for durability only)
            await asyncio.sleep(0.01)
        await journal.wait_durable()
        assert journal.saved_state("steps") == {"steps": 2}, "the state of a failed commit was not written again"


async def test_a_full_disk_is_reported_and_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "RETRY_S", 0.01)
    journal = Journal(tmp_path / "journal.sqlite")
    (pages,) = journal.rows("pragma page_count")[0]
    async with committing(journal):
        journal.rows(f"pragma max_page_count = {pages}")
        journal.put(INSERT, 1, b"x" * 100_000)
        with pytest.raises(StorageFull) as caught:
            await journal.wait_durable()
        assert caught.value.code == "journal.disk_full"
        assert isinstance(journal.failure, StorageFull)
        journal.rows("pragma max_page_count = 1000000")
        while journal.failure is not None:  # noqa: ASYNC110 (the journal notifies waiters for durability only)
            await asyncio.sleep(0.01)
        await journal.wait_durable()
        assert journal.rows("select length(body) from acts") == [(100_000,)]


def test_an_unwritable_journal_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(InvalidInput) as caught:
        Journal(tmp_path / "file" / "journal.sqlite")
    assert caught.value.code == "journal.unusable"


def test_a_file_that_is_not_a_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    path.write_bytes(b"torn" * 1000)
    with pytest.raises(InvalidInput, match=r"journal\.sqlite"):
        Journal(path)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_journal_of_another_release_is_refused_unchanged(tmp_path: Path, change: int) -> None:
    path = tmp_path / "journal.sqlite"
    Journal(path).close()
    with closing(sqlite3.connect(path)) as other:
        (version,) = other.execute("pragma user_version").fetchone()
        other.execute(f"pragma user_version = {version + change}")
    content = path.read_bytes()
    with pytest.raises(InvalidInput) as caught:
        Journal(path)
    assert caught.value.code == "journal.schema_mismatch"
    assert path.read_bytes() == content, "the other release can still use it"
