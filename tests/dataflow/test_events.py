"""Event journal: commands are as durable as their effects; events are paged and repeats are combined."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from astraflow.contract.reports.queries import EventQuery
from astraflow.dataflow.history.archive import Archive
from astraflow.dataflow.history.events import Events
from astraflow.dataflow.history.repeats import WINDOW_S
from astraflow.dataflow.storage.journal import Journal
from astraflow.dataflow.storage.null_journal import NullJournal
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
    return [event.message for event in (await events.page(EventQuery(**query))).events]  # type: ignore[arg-type]  # as given


async def test_events_are_paged_newest_first(tmp_path: Path) -> None:
    async with opened(tmp_path) as events:
        for number in range(5):
            events.add("node_joined", f"node-{number}", f"number {number}")
        first = await events.page(EventQuery(limit=2))
        assert [event.message for event in first.events] == ["number 4", "number 3"]
        second = await events.page(EventQuery(limit=3, before=first.events[-1].ordinal))
        assert [event.message for event in second.events] == ["number 2", "number 1", "number 0"]
        assert (first.has_older, second.has_older) == (True, False)


async def test_events_are_found_by_kind_subject_and_text(tmp_path: Path) -> None:
    async with opened(tmp_path) as events:
        events.add("node_joined", "node-1", "spot, sglang")
        events.add("node_lost", "node-1", "silent 12 s")
        events.add("trainer_attached", "solver", "version 100%")
        assert await messages_of(events, kinds=("node_lost", "trainer_attached")) == [
            "version 100%",
            "silent 12 s",
        ]
        assert await messages_of(events, subject="node-1", text="SPOT") == ["spot, sglang"]
        assert await messages_of(events, text="0%") == ["version 100%"]
        assert await messages_of(events, text="%") == ["version 100%"]
        assert await messages_of(events, text="node-1", kinds=("node_lost",)) == ["silent 12 s"]


async def test_the_oldest_events_are_removed(tmp_path: Path) -> None:
    async with opened(tmp_path, kept=100) as events:
        for number in range(150):
            events.record_action("flow_paused", "train", actor="ada", reason=str(number))
        left = await messages_of(events, limit=1000)
        assert len(left) == 100
        assert left[-1] == "by ada: 50"


async def test_ordinals_increase_across_restarts(tmp_path: Path) -> None:
    async with opened(tmp_path) as events:
        events.add("node_joined", "node-1", "first")
    async with opened(tmp_path) as events:
        assert [event.message for event in events.latest(10)] == ["first"]
        events.add("node_joined", "node-1", "second")
        assert [event.ordinal for event in events.latest(10)] == [1, 2]


async def test_actions_survive_the_loss_of_the_archive_and_events_do_not(tmp_path: Path) -> None:
    async with opened(tmp_path) as events:
        events.add("node_joined", "node-1", "seen in the run itself")
        events.record_action("flow_paused", "train", actor="ada", reason="looking")
        events.record_action("flow_resumed", "train", actor="ada", reason="")
    for ending in ("", "-wal", "-shm"):
        (tmp_path / f"history.sqlite{ending}").unlink(missing_ok=True)
    async with opened(tmp_path) as events:
        assert await messages_of(events) == ["by ada: no reason given", "by ada: looking"]
        assert [event.kind for event in events.latest(10)] == ["flow_paused", "flow_resumed"]
        events.add("node_joined", "node-1", "again")
        assert events.latest(1)[0].ordinal == 4


async def test_an_action_is_committed_with_its_change(tmp_path: Path) -> None:
    async with opened(tmp_path) as events:
        events.record_action("flow_paused", "train", actor="ada", reason="looking")
    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as journal:
        assert journal.execute("select count(*) from acts").fetchone() == (1,)


async def test_repeated_events_are_folded_into_one(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(tmp_path, clock=clock) as events:
        for number in range(5):
            events.add("node_joined", f"node.{number}", f"life {number}", source="node")
        assert [event.message for event in events.latest(10)] == ["life 0"]
        clock.advance(WINDOW_S)
        events.tick()
        last = events.latest(1)[0]
        assert (last.subject, last.repeats, last.message) == ("node", 3, "life 4")
        events.add("node_joined", "node.5", "life 5", source="node")
        events.add("node_joined", "node.6", "life 6", source="node")
        events.stop()
        last = events.latest(1)[0]
        assert (last.repeats, last.message) == (0, "life 6")


async def test_actions_are_never_folded(tmp_path: Path) -> None:
    async with opened(tmp_path) as events:
        for number in range(50):
            events.record_action("flow_paused", "train", actor="ada", reason=str(number))
        assert len(events.latest(100)) == 50


async def test_without_a_journal_events_are_kept_while_the_service_runs(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "history.sqlite", clock=ManualClock(), starts_empty=True)
    events = Events(NullJournal(), archive, ManualClock(), limit=100)
    events.record_action("flow_paused", "train", actor="ada", reason="looking")
    assert await messages_of(events) == ["by ada: looking"]
    archive.close()
