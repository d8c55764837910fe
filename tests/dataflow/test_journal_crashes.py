"""Compares the journal, killed at every point of every commit, with the list of requested actions.

After any kill the journal holds a prefix of the actions: it contains every action reported as durable, payloads are
whole, and states match that prefix.
"""

import asyncio
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.dataflow.storage import segments
from astraflow.dataflow.storage.journal import Journal
from astraflow.dataflow.storage.segments import PAGE_BYTES
from tests.dataflow.kills import KilledFiles
from tests.dataflow.running import committing

pytestmark = pytest.mark.long


class Asked:
    """Performs actions on a journal, and records the payloads after each change."""

    def __init__(self, folder: Path, copies: Path) -> None:
        folder.mkdir()
        self.journal = Journal(folder / "journal.sqlite")
        self.files = self.journal._files = KilledFiles(folder, copies)
        self.journal.register_state("actions", lambda: {"done": len(self.history) - 1})
        self.history: list[dict[int, bytes]] = [{}]

    async def carry_out(self, actions: list[tuple[str, int]]) -> None:
        async with committing(self.journal):
            for name, value in actions:
                await self._act(name, value)

    async def _act(self, name: str, value: int) -> None:
        known = dict(self.history[-1])
        match name:
            case "keep":
                body = bytes([len(self.history) % 256]) * value
                known[self.journal.store_payload(body)] = body
                self.history.append(known)
            case "drop" if known:
                number = list(known)[value % len(known)]
                del known[number]
                self.journal.drop_payload(number)
                self.journal.touch()
                self.history.append(known)
            case "wait":
                last_change = len(self.history) - 1
                await self.journal.wait_durable()
                self.files.durable = last_change
            case "let it commit":
                await asyncio.sleep(0)


async def reopened(folder: Path) -> tuple[int, dict[int, bytes]]:
    """Returns the number of actions in a journal and its payloads, and checks them after one more reopening."""
    journal = Journal(folder / "journal.sqlite")
    stored_payloads = dict(journal.payloads())
    state = journal.saved_state("actions")
    async with committing(journal):
        await asyncio.sleep(0)
    with closing(Journal(folder / "journal.sqlite")) as again:
        assert dict(again.payloads()) == stored_payloads
    return (state["done"] if state else 0), stored_payloads


numbers = st.integers(0, 30)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("keep"), st.integers(0, 3 * PAGE_BYTES)),
        st.tuples(st.just("drop"), numbers),
        st.tuples(st.sampled_from(["wait", "let it commit"]), st.just(0)),
    ),
    max_size=20,
)


@settings(max_examples=20, deadline=None)
@given(drawn_actions=actions)
def test_after_a_kill_the_journal_has_all_durable_changes(
    tmp_path_factory: pytest.TempPathFactory, drawn_actions: list[tuple[str, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(segments, "SEGMENT_BYTES", 4 * PAGE_BYTES)
        folder = tmp_path_factory.mktemp("journal")
        run = Asked(folder / "run", folder / "kills")
        asyncio.run(run.carry_out(drawn_actions))
        for kill in run.files.kills:
            done, stored_payloads = asyncio.run(reopened(kill.folder))
            assert kill.durable <= done
            assert stored_payloads == run.history[done]
        shutil.rmtree(folder)


def test_the_files_of_a_long_run_stay_within_a_few_times_the_needed_size(tmp_path: Path) -> None:
    """Keeps two payloads for ever among hundreds that come and go."""
    segment_bytes = 16 * PAGE_BYTES

    async def run() -> tuple[int, dict[int, bytes]]:
        journal = Journal(tmp_path / "journal.sqlite")
        async with committing(journal):
            kept = [journal.store_payload(b"k" * 5000)]
            largest = 0
            for turn in range(120):
                passing = [journal.store_payload(b"p" * 9000) for _ in range(3)]
                await journal.wait_durable()
                if turn == 40:
                    kept.append(journal.store_payload(b"l" * 5000))
                for number in passing:
                    journal.drop_payload(number)
                await journal.wait_durable()
                largest = max(largest, sum(path.stat().st_size for path in (tmp_path / "payload").iterdir()))
            stored_payloads = dict(journal.payloads())
        assert list(stored_payloads) == kept
        return largest, stored_payloads

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(segments, "SEGMENT_BYTES", segment_bytes)
        largest, _ = asyncio.run(run())
        assert largest <= (4 + segments.MAX_SPARE_SEGMENTS) * segment_bytes
        with closing(Journal(tmp_path / "journal.sqlite")) as reopened_journal:
            assert {body[:1] for _, body in reopened_journal.payloads()} == {b"k", b"l"}
