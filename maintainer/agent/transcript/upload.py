"""Copies the transcript to the fleet service, where people read it. The file remains authoritative."""

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from astraflow.contract.errors import AstraFlowError, Conflict
from astraflow.contract.fleet.maintainer import TranscriptEntry
from astraflow.runtime.logs import get_logger
from maintainer.agent.transcript.transcript import line_of

log = get_logger()

MAX_ENTRIES = 200
MAX_BYTES = 1024 * 1024
"""Approximate size of one upload."""


class TranscriptStore(Protocol):
    """Interface of the service that stores the copy; implemented by the client of the fleet plane."""

    async def append_transcript(self, chain: str, entries: tuple[TranscriptEntry, ...]) -> int:
        """Appends entries; returns the ordinal that the service expects next."""


class TranscriptUploader:
    """Uploads entries that the fleet service does not have yet."""

    def __init__(self, port: TranscriptStore, entries: Iterable[TranscriptEntry]) -> None:
        """known: all entries of the transcript."""
        self._store = port
        self._waiting = deque(entries)
        self._chain = self._waiting[0].hash if self._waiting else ""
        self._is_position_known = False
        self.problem = ""
        """Reason why uploads fail; empty while they succeed."""

    def add(self, entry: TranscriptEntry) -> None:
        """Queues one entry."""
        self._chain = self._chain or entry.hash
        self._waiting.append(entry)

    async def upload(self) -> None:
        """Uploads queued entries as far as the fleet service accepts them."""
        try:
            if not self._is_position_known and self._chain:
                self._drop_below(await self._store.append_transcript(self._chain, ()))
                self._is_position_known = True
            while self._waiting:
                self._drop_below(await self._store.append_transcript(self._chain, self._batch()))
            self.problem = ""
        except Conflict as problem:
            self._is_position_known = False
            self._set_problem(f"the fleet service's copy of the transcript differs: {problem}")
        except AstraFlowError as problem:
            self._set_problem(f"the transcript is not uploaded: {problem}")

    def _batch(self) -> tuple[TranscriptEntry, ...]:
        batch: list[TranscriptEntry] = []
        size_bytes = 0
        for entry in self._waiting:
            size_bytes += len(line_of(entry))
            if batch and (size_bytes > MAX_BYTES or len(batch) == MAX_ENTRIES):
                break
            batch.append(entry)
        return tuple(batch)

    def _drop_below(self, next_ordinal: int) -> None:
        while self._waiting and self._waiting[0].ordinal < next_ordinal:
            self._waiting.popleft()

    def _set_problem(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("transcript_upload_failed", problem=problem)
        self.problem = problem
