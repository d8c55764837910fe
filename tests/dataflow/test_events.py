"""Event journal: commands are as durable as their effects; events are paged and repeats are combined."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from astraflow.archive.connection import open_read_only
from astraflow.archive.events import find_events
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import render
from astraflow.contract.reports.queries import EventQuery
from astraflow.dataflow.history.archive import Archive
from astraflow.dataflow.history.events import Events
from astraflow.dataflow.history.repeats import WINDOW_S
from astraflow.dataflow.storage.journal import Journal
from astraflow.dataflow.storage.null_journal import NullJournal
from astraflow.wire.pb import control_plane_pb2 as pb
from tests.dataflow.running import committing
from tests.fakes.clock import ManualClock

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def opened(folder: Path, *, kept: int = 1000, clock: ManualClock | None = None) -> AsyncIterator[Events]:
    clock = clock or ManualClock()
    journal, archive = Journal(folder / "journal.sqlite"), Archive(folder / "history.sqlite", clock=clock)
    async with committing(journal):
        with closing(archive):
            yield Events(journal, archive, clock, limit=kept)
            await journal.wait_durable()


async def messages_of(events: Events, **query: object) -> list[str]:
    return [render(event) for event in (await events.page(EventQuery(**query))).events]  # type: ignore[arg-type]  # as given


async def test_events_are_paged_newest_first(tmp_path: Path) -> None:
    async with opened(tmp_path) as events:
        for number in range(5):
            events.add(RecordKind.NODE_JOINED, f"node-{number}", text=f"number {number}")
        first = await events.page(EventQuery(limit=2))
        assert [render(event) for event in first.events] == ["number 4", "number 3"]
        second = await events.page(EventQuery(limit=3, before=first.events[-1].ordinal))
        assert [render(event) for event in second.events] == ["number 2", "number 1", "number 0"]
        assert (first.has_older, second.has_older) == (True, False)


async def test_events_are_found_by_kind_subject_and_text(tmp_path: Path) -> None:
    async with opened(tmp_path) as events:
        events.add(RecordKind.NODE_JOINED, "node-1", text="spot, sglang")
        events.add(RecordKind.NODE_LOST, "node-1", text="silent 12 s")
        events.add(RecordKind.TRAINER_ATTACHED, "solver", text="version 100%")
        assert await messages_of(events, kinds=(RecordKind.NODE_LOST, RecordKind.TRAINER_ATTACHED)) == [
            "version 100%",
            "silent 12 s",
        ]
        assert await messages_of(events, subject="node-1", text="SPOT") == ["spot, sglang"]
        assert await messages_of(events, text="0%") == ["version 100%"]
        assert await messages_of(events, text="%") == ["version 100%"]
        assert await messages_of(events, text="node-1", kinds=(RecordKind.NODE_LOST,)) == ["silent 12 s"]


async def test_the_oldest_events_are_removed(tmp_path: Path) -> None:
    async with opened(tmp_path, kept=100) as events:
        for number in range(150):
            events.record_action(RecordKind.FLOW_PAUSED, "train", actor="ada", reason=str(number))
        left = await messages_of(events, limit=1000)
        assert len(left) == 100
        assert left[-1] == "by ada: 50"


async def test_ordinals_increase_across_restarts(tmp_path: Path) -> None:
    async with opened(tmp_path) as events:
        events.add(RecordKind.NODE_JOINED, "node-1", text="first")
    async with opened(tmp_path) as events:
        assert [render(event) for event in events.latest(10)] == ["first"]
        events.add(RecordKind.NODE_JOINED, "node-1", text="second")
        assert [event.ordinal for event in events.latest(10)] == [1, 2]


async def test_actions_survive_the_loss_of_the_archive_and_events_do_not(tmp_path: Path) -> None:
    async with opened(tmp_path) as events:
        events.add(RecordKind.NODE_JOINED, "node-1", text="seen in the run itself")
        events.record_action(RecordKind.FLOW_PAUSED, "train", actor="ada", reason="looking")
        events.record_action(RecordKind.FLOW_RESUMED, "train", actor="ada", reason="")
    for ending in ("", "-wal", "-shm"):
        (tmp_path / f"history.sqlite{ending}").unlink(missing_ok=True)
    async with opened(tmp_path) as events:
        assert await messages_of(events) == ["by ada: no reason given", "by ada: looking"]
        assert [event.kind.value for event in events.latest(10)] == ["flow_paused", "flow_resumed"]
        events.add(RecordKind.NODE_JOINED, "node-1", text="again")
        assert events.latest(1)[0].ordinal == 4


async def test_an_action_is_committed_with_its_change(tmp_path: Path) -> None:
    async with opened(tmp_path) as events:
        events.record_action(RecordKind.FLOW_PAUSED, "train", actor="ada", reason="looking")
    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as journal:
        assert journal.execute("select count(*) from actions").fetchone() == (1,)


async def test_repeated_events_are_folded_into_one(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(tmp_path, clock=clock) as events:
        for number in range(5):
            events.add(RecordKind.NODE_JOINED, f"node.{number}", text=f"life {number}", source="node")
        assert [render(event) for event in events.latest(10)] == ["life 0"]
        clock.advance(WINDOW_S)
        events.tick()
        last = events.latest(1)[0]
        assert (last.subject, last.repeats, render(last)) == ("node", 3, "life 4")
        events.add(RecordKind.NODE_JOINED, "node.5", text="life 5", source="node")
        events.add(RecordKind.NODE_JOINED, "node.6", text="life 6", source="node")
        events.stop()
        last = events.latest(1)[0]
        assert (last.repeats, render(last)) == (0, "life 6")


async def test_actions_are_never_folded(tmp_path: Path) -> None:
    async with opened(tmp_path) as events:
        for number in range(50):
            events.record_action(RecordKind.FLOW_PAUSED, "train", actor="ada", reason=str(number))
        assert len(events.latest(100)) == 50


async def test_without_a_journal_events_are_kept_while_the_service_runs(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "history.sqlite", clock=ManualClock(), starts_empty=True)
    events = Events(NullJournal(), archive, ManualClock(), limit=100)
    events.record_action(RecordKind.FLOW_PAUSED, "train", actor="ada", reason="looking")
    assert await messages_of(events) == ["by ada: looking"]
    archive.close()


async def test_sentences_of_an_earlier_release_become_values(tmp_path: Path) -> None:
    async with opened(tmp_path) as events:
        events.record_action(RecordKind.FLOW_PAUSED, "train", actor="ada", reason="lunch")
        events.add(RecordKind.NODE_LOST, "n1", silent_s=9)
    sentence = b"by ada: lunch {now}"
    event = pb.Event(ordinal=2, at=5.0, kind="flow_paused", subject="train")
    body = event.SerializeToString() + bytes([5 << 3 | 2, len(sentence)]) + sentence
    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as journal:
        journal.execute("update actions set ordinal = 2, body = ?", (body,))
        journal.execute("alter table actions rename to acts")
        journal.execute("alter table admissions rename to routed")
        journal.execute("pragma user_version = 14")
        journal.commit()
    with closing(sqlite3.connect(tmp_path / "history.sqlite")) as archive:
        archive.executescript(
            "drop table events; create table events (ordinal integer primary key, at real not null, kind text not null,"
            " subject text not null, message text not null, repeats integer not null);"
            "insert into events values (1, 4.0, 'node_lost', 'n1', 'no heartbeat for 9 s', 3); pragma user_version = 5;"
        )
    with closing(open_read_only(tmp_path / "history.sqlite")) as archive:
        (old_event,) = find_events(archive, EventQuery(text="HEART")).events
        assert render(old_event) == "no heartbeat for 9 s", "the archive of a run that has ended is read as it is"
    async with opened(tmp_path) as events:
        latest = [(event.ordinal, event.kind.name, event.repeats, render(event)) for event in events.latest(10)]
        assert latest == [(1, "NODE_LOST", 3, "no heartbeat for 9 s"), (2, "FLOW_PAUSED", 0, sentence.decode())]
        assert await messages_of(events, text="9 S") == ["no heartbeat for 9 s"]
