"""Durability of the journal, and its behaviour when it cannot write."""

import asyncio
import errno
import sqlite3
import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput, StorageFull
from astraflow.contract.ids import FlowId, PolicyId, TaskId, Version
from astraflow.dataflow.outcomes import UNKNOWN
from astraflow.dataflow.storage import journal as journal_module
from astraflow.dataflow.storage import segments
from astraflow.dataflow.storage.journal import Journal
from tests.dataflow.running import committing, config, evaluation, facts, running
from tests.dataflow.test_service import episode
from tests.errors import raises_code

pytestmark = pytest.mark.anyio

INSERT = "insert into actions values (?, ?)"
INSERT_ADMISSION = "insert into admissions values (?, ?, null, 0)"
DELETE_ADMISSION = "delete from admissions where policy = ? and group_id = ?"


async def test_wait_durable_returns_after_the_commit_is_visible_to_others(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    journal = Journal(path)
    async with committing(journal):
        journal.put(INSERT, 1, b"one")
        await journal.wait_durable()
        with closing(sqlite3.connect(path)) as other:
            assert other.execute("select body from actions").fetchall() == [(b"one",)]


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
                assert saved == {"count": len(journal.rows("select * from actions"))}
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
        assert journal.rows("select length(body) from actions") == [(100_000,)]


def test_an_unwritable_journal_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(InvalidInput) as caught:
        Journal(tmp_path / "file" / "journal.sqlite")
    assert caught.value.code == "journal.unusable"


def test_a_file_that_is_not_a_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    path.write_bytes(b"torn" * 1000)
    with raises_code(InvalidInput, "journal.unusable"):
        Journal(path)


@pytest.mark.parametrize("change", [-3, 1])
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


async def test_a_commit_that_fails_during_the_shutdown_leaves_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    write, is_writing, may_fail = journal._write, threading.Event(), threading.Event()

    def failing_once(changes: Any, states: Mapping[str, str]) -> None:
        if not is_writing.is_set():
            is_writing.set()
            may_fail.wait()
            raise OSError(errno.ENOSPC, "full")
        write(changes, states)

    monkeypatch.setattr(journal, "_write", failing_once)
    working = asyncio.create_task(journal.run())
    journal.put(INSERT, 1, b"one")
    await asyncio.to_thread(is_writing.wait)
    journal.put(INSERT, 2, b"two")
    working.cancel()
    await asyncio.sleep(0)
    may_fail.set()
    await asyncio.wait({working})
    with closing(Journal(tmp_path / "journal.sqlite")) as reopened:
        assert reopened.rows("select body from actions order by ordinal") == [(b"one",), (b"two",)]


async def test_nothing_is_committed_after_an_unexpected_error(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    states: list[Any] = [{"not JSON": {1}}, {"steps": 1}]
    journal.register_state("steps", lambda: states.pop(0))
    journal.put(INSERT, 1, b"one")
    with pytest.raises(TypeError):
        await journal.run()
    with closing(Journal(tmp_path / "journal.sqlite")) as reopened:
        assert reopened.saved_state("steps") is None


async def test_a_segment_that_cannot_be_removed_does_not_fail_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    remove, failures = journal._files.remove, [OSError(errno.ENOSPC, "full")]

    def failing_once(numbers: Any) -> None:
        if failures:
            raise failures.pop()
        remove(numbers)

    monkeypatch.setattr(journal._files, "remove", failing_once)
    async with committing(journal):
        for number in (1, 2):
            journal.put(INSERT, number, b"")
            await journal.wait_durable()
        assert journal.failure is None


async def test_records_that_move_twice_while_the_disk_is_full_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 4 * segments.PAGE_BYTES)
    journal = Journal(tmp_path / "journal.sqlite")
    retained = journal.store_payload(b"k" * 100)
    payloads = [journal.store_payload(b"x" * 5000) for _ in range(4)]
    journal._write(journal._collected()[0], {})
    for _ in range(7):  # each collection is of a commit that fails
        for number in payloads:
            journal.drop_payload(number)
        payloads = [journal.store_payload(b"y" * 5000) for _ in range(4)]
        journal._take_back(journal._collected()[0])
    journal._write(journal._pending, {})
    stored = dict(journal.payloads())
    assert stored == {retained: b"k" * 100, **dict.fromkeys(payloads, b"y" * 5000)}
    journal.close()


async def test_round_numbers_are_not_reused_after_an_evaluation_is_renamed(tmp_path: Path) -> None:
    for number, name in ((1, "first"), (2, "renamed")):
        async with running(tmp_path, config(evaluations={name: evaluation()})) as service:
            await service.trainer().attach(version=Version(0), backend="local", is_simulated=False)
            report = await service.control.evaluate(FlowId(name), actor="a", reason="r")
            assert report.round == number
            await service.control.stop_evaluation(FlowId(name), actor="a", reason="r")


async def test_a_task_id_with_leading_zeros_is_unknown(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.trainer().attach(version=Version(0), backend="local", is_simulated=False)
        node = (await service.nodes.join(facts())).node
        lease = await service.nodes.lease(node, 1, wait_s=0, versions={PolicyId("solver"): Version(0)})
        (task,) = lease.tasks
        alias = replace(episode(task), task=TaskId(f"{task.group}/0{task.member}"))
        assert await service.nodes.push(node, [alias]) == (UNKNOWN,)


async def test_rows_whose_keys_were_damaged_are_written_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    journal = Journal(path)
    async with committing(journal):
        for group in range(4):
            journal.put(INSERT_ADMISSION, "solver", f"train:{group}")
        await journal.wait_durable()
    with closing(sqlite3.connect(path)) as database:
        database.execute("pragma journal_mode = delete")
    file = path.read_bytes()
    before, _, after = file.rpartition(b"train:1")  # the table's page follows that of its index, or precedes it
    path.write_bytes(before + b"train:2" + after)

    reopened = Journal(path)
    async with committing(reopened):
        reopened.put(DELETE_ADMISSION, "solver", "train:1")
        reopened.put(INSERT_ADMISSION, "solver", "train:1")
        await reopened.wait_durable()

        assert reopened.rows("pragma integrity_check") == [("ok",)]
        assert {group for (group,) in reopened.rows("select group_id from admissions")} == {
            f"train:{group}" for group in range(4)
        }
        assert reopened.failure is None
