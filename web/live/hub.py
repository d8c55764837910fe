"""Broadcast of frames to browsers. Each browser has a short queue; a browser that falls behind gets a snapshot."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable

QUEUE_FRAMES = 4
RETAINED_FRAMES = 60
"""Retained frames; a browser that was disconnected for less than a minute gets exactly the frames it missed."""


class Hub:
    """Broadcasts frames: JSON texts, encoded once, numbered by the sequence of their report.

    snapshot: returns the text that updates a browser from a given sequence to the newest state.
    """

    def __init__(self, snapshot: Callable[[int], str]) -> None:
        self._snapshot = snapshot
        self._recent_frames: deque[tuple[int, str]] = deque(maxlen=RETAINED_FRAMES)
        self._listeners: set[_Listener] = set()
        self._is_closed = False

    @property
    def listeners(self) -> int:
        """Number of connected browsers."""
        return len(self._listeners)

    def publish(self, sequence: int, text: str) -> None:
        """Sends a frame to all browsers. A gap in the sequence discards the retained frames."""
        if self._recent_frames and sequence != self._recent_frames[-1][0] + 1:
            self._recent_frames.clear()
        self._recent_frames.append((sequence, text))
        self._send(text, sequence)

    def broadcast(self, text: str) -> None:
        """Sends a transient message, such as a heartbeat, to all browsers. It is not retained."""
        self._send(text, None)

    def close(self) -> None:
        """Ends all streams of frames."""
        self._is_closed = True
        for listener in self._listeners:
            listener.wake.set()

    async def frames(self, after: int) -> AsyncGenerator[str, None]:
        """Yields the messages for a browser that has everything up to sequence `after`, until closed."""
        listener = _Listener(after, self._since(after))
        self._listeners.add(listener)
        try:
            while not self._is_closed:
                if listener.is_behind:
                    yield self._snapshot(listener.catch_up(self._recent_frames[-1][0] if self._recent_frames else 0))
                while listener.queue and not listener.is_behind:
                    yield listener.next_text()
                if not listener.is_behind:
                    await listener.wake.wait()
                    listener.wake.clear()
        finally:
            self._listeners.discard(listener)

    def _since(self, after: int) -> list[tuple[int | None, str]]:
        """Returns the frames after a sequence if all are retained, else a snapshot."""
        if self._recent_frames and self._recent_frames[0][0] <= after + 1 and after <= self._recent_frames[-1][0]:
            return [(sequence, text) for sequence, text in self._recent_frames if sequence > after]
        return [(self._recent_frames[-1][0] if self._recent_frames else None, self._snapshot(after))]

    def _send(self, text: str, sequence: int | None) -> None:
        for listener in self._listeners:
            listener.enqueue(text, sequence)


class _Listener:
    """Queue of one browser; an overflow replaces it by a request for a snapshot."""

    def __init__(self, after: int, backlog: list[tuple[int | None, str]]) -> None:
        self.queue: deque[tuple[int | None, str]] = deque(backlog)
        self.wake = asyncio.Event()
        self.is_behind = False
        self._sent = after

    def enqueue(self, text: str, sequence: int | None) -> None:
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
        """Resets the queue for a snapshot that ends at `latest`; returns the sequence after which it must start."""
        start_after, self._sent = self._sent, latest
        self.is_behind = False
        self.queue.clear()
        return start_after
