"""Sends one shared frame to every browser: each has a short queue, and one that falls behind gets a snapshot."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable

QUEUE_FRAMES = 4
KEPT_FRAMES = 60
"""A browser that was away for less than a minute gets exactly the frames it missed."""


class Hub:
    """Frames are JSON texts, encoded once. A frame's number is the sequence of the report it shows.

    snapshot: makes the text that brings a browser from any past sequence to now.
    """

    def __init__(self, snapshot: Callable[[int], str]) -> None:
        self._snapshot = snapshot
        self._kept: deque[tuple[int, str]] = deque(maxlen=KEPT_FRAMES)
        self._listeners: set[_Listener] = set()
        self._is_closed = False

    @property
    def listeners(self) -> int:
        """Browsers that listen now."""
        return len(self._listeners)

    def publish(self, sequence: int, text: str) -> None:
        """Send a frame to everybody. A sequence that did not grow by one makes earlier frames useless for resuming."""
        if self._kept and sequence != self._kept[-1][0] + 1:
            self._kept.clear()
        self._kept.append((sequence, text))
        self._send(text, sequence)

    def tell(self, text: str) -> None:
        """Send a passing message to everybody: a heartbeat. It is not resumed."""
        self._send(text, None)

    def close(self) -> None:
        """End every stream of frames."""
        self._is_closed = True
        for listener in self._listeners:
            listener.wake.set()

    async def frames(self, after: int) -> AsyncGenerator[str, None]:
        """What a browser that has everything up to sequence `after` must be sent, for ever."""
        listener = _Listener(after, self._since(after))
        self._listeners.add(listener)
        try:
            while not self._is_closed:
                if listener.is_behind:
                    yield self._snapshot(listener.catch_up(self._kept[-1][0] if self._kept else 0))
                while listener.queue and not listener.is_behind:
                    yield listener.next_text()
                if not listener.is_behind:
                    await listener.wake.wait()
                    listener.wake.clear()
        finally:
            self._listeners.discard(listener)

    def _since(self, after: int) -> list[tuple[int | None, str]]:
        """The frames after a sequence when all are kept, else a snapshot."""
        if self._kept and self._kept[0][0] <= after + 1 and after <= self._kept[-1][0]:
            return [(sequence, text) for sequence, text in self._kept if sequence > after]
        return [(self._kept[-1][0] if self._kept else None, self._snapshot(after))]

    def _send(self, text: str, sequence: int | None) -> None:
        for listener in self._listeners:
            listener.take(text, sequence)


class _Listener:
    """One browser's queue; more than it holds turns into the wish for a snapshot."""

    def __init__(self, after: int, backlog: list[tuple[int | None, str]]) -> None:
        self.queue: deque[tuple[int | None, str]] = deque(backlog)
        self.wake = asyncio.Event()
        self.is_behind = False
        self._sent = after

    def take(self, text: str, sequence: int | None) -> None:
        if len(self.queue) >= QUEUE_FRAMES:
            self.is_behind = True
            self.queue.clear()
        if not self.is_behind:
            self.queue.append((sequence, text))
        self.wake.set()

    def next_text(self) -> str:
        sequence, text = self.queue.popleft()
        self._sent = self._sent if sequence is None else sequence
        return text

    def catch_up(self, latest: int) -> int:
        """Begin again from a snapshot that ends at `latest`; returns the sequence it must begin after."""
        began_after, self._sent = self._sent, latest
        self.is_behind = False
        self.queue.clear()
        return began_after
