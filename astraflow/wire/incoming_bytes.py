"""Memory of requests that are being received: a few at a time, piece by piece, shared among peers, within a time limit.

A request arrives as one message, or as several whose bytes are joined: its pieces. gRPC buffers at most the window of a
stream before a piece is asked for, and then one piece, whatever the method. So the memory of all requests is bounded by
the number of those that are being received, and by the size of those that are being handled:

    unread, at most the window ──its turn──► receiving ──complete──► handled
                  └────too slow, or another peer's turn────► refused, freed

When all places are taken, the oldest request of the peer with most of them makes room for a peer with fewer; among
equals, one that is older than `GRACE_S`. Peers are told apart by credential; callers with the run token by connection.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from astraflow.contract.errors import AstraFlowError, DeadlineExceeded, InvalidInput, RateLimited
from astraflow.wire.listener_limits import ListenerLimits
from astraflow.wire.request_limits import check_size

GRACE_S = 2.0
"""Time for which a request is not stopped in favour of a peer that receives as many. Seconds."""

SLOW_S = 60.0
"""Time for which a peer whose request did not arrive in time, or had to be stopped, comes after others. Seconds."""


@dataclass(slots=True, eq=False)
class _Receiving:
    """A request that is being received."""

    peer: str
    began_at: float
    task: "asyncio.Task[Any] | None"
    is_stopped: bool = False


class IncomingBytes:
    """Requests of one listener that are being received and handled."""

    def __init__(self, limits: ListenerLimits) -> None:
        self._limits = limits
        self._receiving: dict[_Receiving, None] = {}
        self._waiting: dict[str, dict[_Receiving, asyncio.Future[None]]] = {}
        """Requests that wait for their turn, by peer, in order."""
        self._places_of: Counter[str] = Counter()
        """Requests that are being received, by peer."""
        self._unread: Counter[str] = Counter()
        """Requests that wait or are being received, by peer."""
        self._slow_until: dict[str, float] = {}
        self._handled_bytes = 0
        self._large = asyncio.Lock()
        """Held by the request that exceeds one piece."""

    @asynccontextmanager
    async def request(self, context: Any, method: str, *, peer: str) -> AsyncIterator[bytes]:
        """Receives the request of a call, whose memory counts until the block ends.

        Raises: InvalidInput for a request that is too large; RateLimited when others come first; DeadlineExceeded when
        it is not complete in time.
        """
        with self._counting_unread(peer, method):
            request = await self._within_time(context, method, peer)
        self._handled_bytes += len(request)
        try:
            yield request
        finally:
            self._handled_bytes -= len(request)
            self._serve_all()

    async def pieces(self, requests: AsyncIterator[Any], method: str) -> AsyncIterator[Any]:
        """Yields the requests of a stream. Raises: DeadlineExceeded when one does not arrive in time."""
        while True:
            try:
                async with asyncio.timeout(self._limits.request_s) as limit:
                    request = await anext(requests)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if not limit.expired():
                    raise
                raise _unfinished(method, self._limits.request_s) from None
            yield request

    @contextmanager
    def _counting_unread(self, peer: str, method: str) -> Iterator[None]:
        """Counts a call whose request has not arrived. Raises: RateLimited."""
        if self._unread[peer] >= self._limits.peer_unread:
            raise RateLimited(
                f"cannot accept a call to {method!r}: the requests of {self._unread[peer]} open calls have not "
                "arrived; send them first",
                code="rate_limit.unread_calls",
            )
        self._unread[peer] += 1
        try:
            yield
        finally:
            self._unread[peer] -= 1
            if not self._unread[peer]:
                del self._unread[peer]

    async def _within_time(self, context: Any, method: str, peer: str) -> bytes:
        receiving = _Receiving(peer, _now(), asyncio.current_task())
        try:
            async with asyncio.timeout(self._limits.request_s) as limit:
                await self._wait_for_turn(receiving)
                return await self._read(context, method)
        except TimeoutError:
            if not limit.expired():
                raise
            if receiving not in self._receiving:
                raise _others_first(method) from None
            self._note_slow(peer)
            raise _unfinished(method, self._limits.request_s) from None
        except asyncio.CancelledError:
            if not receiving.is_stopped or receiving.task is None:
                raise
            receiving.task.uncancel()
            raise _others_first(method) from None
        finally:
            self._leave(receiving)

    async def _read(self, context: Any, method: str) -> bytes:
        """Returns all pieces of a request; one that is shorter than a message may be is the last. Of requests with
        several pieces one at a time is received."""
        pieces: list[bytes] = []
        size_bytes = 0
        is_large = False
        try:
            while (piece := await context.read()) is not grpc.aio.EOF:
                pieces.append(piece)
                size_bytes += len(piece)
                check_size(method, size_bytes)
                if len(piece) < self._limits.message_bytes:
                    break
                if len(pieces) == 2:
                    is_large = await self._large.acquire()
        finally:
            if is_large:
                self._large.release()
        if not pieces:
            raise InvalidInput(
                f"cannot accept a call to {method!r}: it has no request; send one", code="message.missing"
            )
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _wait_for_turn(self, receiving: _Receiving) -> None:
        """Waits in the peer's queue; stops another request if that one has to make room."""
        if receiving.peer not in self._waiting and self._has_place(receiving.peer):
            self._take_place(receiving)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(receiving.peer, {})[receiving] = turn
        self._serve(receiving.peer)
        await turn

    def _serve_all(self) -> None:
        """Serves the queues, those of peers with the fewest places first."""
        for peer in sorted(self._waiting, key=self._claim):
            self._serve(peer)

    def _serve(self, peer: str) -> None:
        """Gives places to the first requests of a peer's queue; stops another peer's request for the first of them."""
        queue = self._waiting[peer]
        while queue and self._has_place(peer):
            receiving, turn = next(iter(queue.items()))
            del queue[receiving]
            if not turn.done():
                self._take_place(receiving)
                turn.set_result(None)
        if not queue:
            del self._waiting[peer]
        elif (other := self._one_to_stop(peer)) is not None:
            self._note_slow(other.peer)
            other.is_stopped = True
            if other.task is not None:
                other.task.cancel()

    def _has_place(self, peer: str) -> bool:
        return (
            len(self._receiving) < self._limits.receiving
            and self._places_of[peer] < self._limits.peer_receiving
            and self._handled_bytes <= self._limits.handled_bytes
        )

    def _take_place(self, receiving: _Receiving) -> None:
        self._receiving[receiving] = None
        self._places_of[receiving.peer] += 1

    def _leave(self, receiving: _Receiving) -> None:
        """Ends the receipt of a request, or its wait."""
        queue = self._waiting.get(receiving.peer, {})
        queue.pop(receiving, None)
        if not queue:
            self._waiting.pop(receiving.peer, None)
        if receiving in self._receiving:
            del self._receiving[receiving]
            self._places_of[receiving.peer] -= 1
            if not self._places_of[receiving.peer]:
                del self._places_of[receiving.peer]
            self._serve_all()

    def _one_to_stop(self, peer: str) -> _Receiving | None:
        """Returns the request that makes room for a peer; None while one ends anyway, or none has to."""
        is_full = len(self._receiving) >= self._limits.receiving
        if not is_full or any(other.is_stopped for other in self._receiving):
            return None
        own, now = self._claim(peer, places=1), _now()
        claims = [(self._claim(other.peer), now - other.began_at, other) for other in self._receiving]
        due = [entry for entry in claims if entry[0] > own or (entry[0] == own and entry[1] > GRACE_S)]
        return max(due, key=lambda entry: entry[:2])[2] if due else None

    def _claim(self, peer: str, places: int = 0) -> tuple[bool, int]:
        """Returns whether a peer was slow lately, and its places with `places` more: the lower, the sooner its turn."""
        now = _now()
        return self._slow_until.get(peer, now) > now, self._places_of[peer] + places

    def _note_slow(self, peer: str) -> None:
        now = _now()
        self._slow_until = {other: until for other, until in self._slow_until.items() if until > now}
        self._slow_until[peer] = now + SLOW_S


def _now() -> float:
    return asyncio.get_running_loop().time()


def _unfinished(method: str, limit_s: float) -> AstraFlowError:
    return DeadlineExceeded(
        f"cannot accept a request to {method!r}: it was not complete after {limit_s:g} s; send smaller requests, or "
        "use a faster link",
        code="request.unfinished",
    )


def _others_first(method: str) -> AstraFlowError:
    return RateLimited(
        f"cannot accept a request to {method!r} now: others are being received, and memory is limited; retry",
        code="request.others_first",
    )
