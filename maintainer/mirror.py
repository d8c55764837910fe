"""Copies the transcript to the fleet service, where people read it. The file stays the one that counts."""

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from astraflow.contract.errors import AstraFlowError, Conflict
from astraflow.contract.maintenance import TranscriptEntry
from astraflow.runtime.logs import get_logger
from maintainer.transcript import line_of

log = get_logger()

MOST_ENTRIES = 200
MOST_BYTES = 1024 * 1024
"""Of one message, about."""


class KeepPort(Protocol):
    """Who keeps the copy: the fleet plane's client."""

    async def keep_transcript(self, chain: str, entries: tuple[TranscriptEntry, ...]) -> int:
        """Take these; returns the ordinal that is wanted next."""


class Mirror:
    """What has not been copied yet."""

    def __init__(self, port: KeepPort, known: Iterable[TranscriptEntry]) -> None:
        """known: all that the transcript has."""
        self._port = port
        self._waiting = deque(known)
        self._chain = self._waiting[0].hash if self._waiting else ""
        self._is_met = False
        self.trouble = ""
        """Why it does not go on; empty while it does."""

    def add(self, entry: TranscriptEntry) -> None:
        """One more."""
        self._chain = self._chain or entry.hash
        self._waiting.append(entry)

    async def push(self) -> None:
        """Copy what waits, as far as the fleet service takes it."""
        try:
            if not self._is_met and self._chain:
                self._drop_below(await self._port.keep_transcript(self._chain, ()))
                self._is_met = True
            while self._waiting:
                self._drop_below(await self._port.keep_transcript(self._chain, self._batch()))
            self.trouble = ""
        except Conflict as problem:
            self._is_met = False
            self._say(f"the copy of the transcript does not match: {problem}")
        except AstraFlowError as problem:
            self._say(f"the transcript is not copied: {problem}")

    def _batch(self) -> tuple[TranscriptEntry, ...]:
        batch: list[TranscriptEntry] = []
        size_bytes = 0
        for entry in self._waiting:
            size_bytes += len(line_of(entry))
            if batch and (size_bytes > MOST_BYTES or len(batch) == MOST_ENTRIES):
                break
            batch.append(entry)
        return tuple(batch)

    def _drop_below(self, wanted: int) -> None:
        while self._waiting and self._waiting[0].ordinal < wanted:
            self._waiting.popleft()

    def _say(self, trouble: str) -> None:
        if trouble != self.trouble:
            log.warning("transcript_not_copied", problem=trouble)
        self.trouble = trouble
