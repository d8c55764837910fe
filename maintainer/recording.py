"""Writes things down: in the file first, then counted, then on the way to the copy, in one order."""

import asyncio
from collections.abc import Mapping
from typing import Any

from maintainer.counting import Counters
from maintainer.mirror import KeepPort, Mirror
from maintainer.transcript import Kind, Transcript
from maintainer.unsettled import Unsettled


class Recorder:
    """One for the process. The transcript is open."""

    def __init__(self, transcript: Transcript, keeper: KeepPort) -> None:
        """keeper: who keeps the copy."""
        self._transcript = transcript
        self._is_writing = asyncio.Lock()
        self.counters = Counters(transcript.known)
        self.unsettled = Unsettled(transcript.known)
        self.mirror = Mirror(keeper, transcript.known)

    async def opened(self, body: Mapping[str, Any]) -> None:
        """A process begins; what the one before did not finish writing is said first."""
        if self._transcript.torn:
            await self.record(Kind.TORN, {"size_bytes": len(self._transcript.torn)})
        await self.record(Kind.OPENED, body)

    async def record(self, kind: Kind, body: Mapping[str, Any], wake: str = "") -> None:
        """Also when its caller is stopped meanwhile: what is in the file is counted and copied."""
        await asyncio.shield(asyncio.create_task(self._written(kind, body, wake)))

    async def _written(self, kind: Kind, body: Mapping[str, Any], wake: str) -> None:
        async with self._is_writing:  # so that the mirror has them in order
            entry = await self._transcript.add(kind, body, wake=wake)
            self.mirror.add(entry)
            self.counters.seen(entry)
            self.unsettled.seen(entry)
