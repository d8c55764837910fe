"""Records entries in one order: file first, then counters, then the queue of the uploader."""

import asyncio
from collections.abc import Mapping
from typing import Any

from maintainer.agent.transcript.counters import Counters
from maintainer.agent.transcript.pending_actions import PendingActions
from maintainer.agent.transcript.transcript import Kind, Transcript
from maintainer.agent.transcript.upload import TranscriptStore, TranscriptUploader


class Recorder:
    """Recorder of one process. Expects an open transcript."""

    def __init__(self, transcript: Transcript, store: TranscriptStore) -> None:
        """store: stores the copy of the transcript."""
        self._transcript = transcript
        self._is_writing = asyncio.Lock()
        self.counters = Counters(transcript.known)
        self.pending_actions = PendingActions(transcript.known)
        self.transcript_uploader = TranscriptUploader(store, transcript.known)

    async def record_start(self, body: Mapping[str, Any]) -> None:
        """Records a start of the process; records a truncated last line first."""
        if self._transcript.torn:
            await self.record(Kind.INCOMPLETE_LINE, {"size_bytes": len(self._transcript.torn)})
        await self.record(Kind.OPENED, body)

    async def record(self, kind: Kind, body: Mapping[str, Any], wake: str = "") -> None:
        """Records an entry; cancelling the caller does not interrupt it: an entry in the file is always counted and
        copied."""
        await asyncio.shield(asyncio.create_task(self._write(kind, body, wake)))

    async def _write(self, kind: Kind, body: Mapping[str, Any], wake: str) -> None:
        async with self._is_writing:  # keeps the copy in order
            entry = await self._transcript.add(kind, body, wake=wake)
            self.transcript_uploader.add(entry)
            self.counters.add(entry)
            self.pending_actions.add(entry)
