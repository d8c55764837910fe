"""One transfer over links that break: ranges over all connections of a place, each resumed where it broke."""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import CorruptData, Unavailable
from astraflow.runtime.aio import TRANSIENT
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.weights.assembly import Assembly, Range
from astraflow.weights.origins import Origin
from astraflow.weights.pace import Pace

log = get_logger()

FIRST_DELAY_S = 0.1
MAX_DELAY_S = 2.0
MAX_REFUSALS = 3
"""As many bad chunks in a row at the same place, and the origin is at fault, not the link."""
MAX_BREAKS = 3
"""As many breaks in a row of one connection, while no other brings anything either, and the origin is given up."""


TELLING_BYTES = 4 * 2**20
"""What is at least to be fetched for its rate to tell something."""


class Stalled(Unavailable):
    """A connection is there and brings nothing."""


class Trickles(Unavailable):
    """A place is there and brings little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """What an origin may do before it is left for another one."""

    stall_s: float
    """Bring nothing on one connection."""
    slow_s: float
    """Bring less than `floor_bytes_per_s`."""
    floor_bytes_per_s: float


class Download:
    """Brings the missing ranges of a file; what had come before is kept, whoever brought it."""

    def __init__(
        self, origin: Origin, assembly: Assembly, *, pace: Pace, patience: Patience, gives_up: bool, clock: Clock
    ) -> None:
        """gives_up: whether there is another place to turn to; else it is tried for ever."""
        self._origin = origin
        self._assembly = assembly
        self._pace = pace
        self._patience = patience
        self._gives_up = gives_up
        self._clock = clock
        self._changed = asyncio.Condition()
        self.resumes = 0
        """Breaks that were got over."""

    async def run(self) -> None:
        """Until every byte is there; whether they are the right ones is for `Assembly.finish` to prove.

        Raises: UnknownVersion when the origin no longer keeps the file; CorruptData when it sends bad chunks;
        Unavailable when it brings nothing, or too little, and `gives_up`.
        """
        began, received = self._clock.now(), self._assembly.received
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(self._watch())
                async with asyncio.TaskGroup() as connections:
                    for client in self._origin.clients:
                        connections.create_task(self._work(client))
                watching.cancel()
        except BaseExceptionGroup as problems:
            raise _first_of(problems) from None
        finally:
            self._note_rate(self._assembly.received - received, self._clock.now() - began)

    async def _watch(self) -> None:
        """Look every `slow_s` what has come. Raises: Trickles."""
        floor = self._patience.floor_bytes_per_s
        while self._gives_up and floor:
            began, received = self._clock.now(), self._assembly.received
            while (took_s := self._clock.now() - began) < self._patience.slow_s:
                await self._clock.sleep(self._patience.slow_s - took_s)
            rate = (self._assembly.received - received) / took_s
            if rate < floor:
                raise Trickles(
                    f"it brought {rate:.0f} bytes/s for {took_s:.0f} s, and at least {floor:.0f} are expected"
                )

    def _note_rate(self, size_bytes: int, took_s: float) -> None:
        """For comparing others with it; little says nothing, since it takes a round trip however fast the link is."""
        if size_bytes >= TELLING_BYTES and took_s > 0:
            self._origin.bytes_per_s = size_bytes / took_s

    async def _work(self, client: WeightPlaneClient) -> None:
        """What one connection does: a range, and the next one, until all are whole."""
        breaks = 0
        while (part := await self._next()) is not None:
            received = self._assembly.received
            try:
                await self._fetch(client, part)
                continue
            except (*TRANSIENT, CorruptData) as problem:
                if part.refusals >= MAX_REFUSALS:
                    raise
                breaks = 0 if self._assembly.received > received else breaks + 1
                if self._gives_up and (breaks >= MAX_BREAKS or (breaks and isinstance(problem, Stalled))):
                    raise
                self._note(part, problem)
            finally:
                await self._release(part)
            await self._clock.sleep(min(FIRST_DELAY_S * 2**breaks, MAX_DELAY_S))

    async def _next(self) -> Range | None:
        async with self._changed:
            while not self._assembly.is_complete:
                if (part := self._assembly.take()) is not None:
                    return part
                await self._changed.wait()
        return None

    async def _release(self, part: Range) -> None:
        self._assembly.release(part)
        async with self._changed:
            self._changed.notify_all()

    async def _fetch(self, client: WeightPlaneClient, part: Range) -> None:
        """The rest of a range, in one stream unless a bound on the rate asks for more of them."""
        while part.missing_bytes:
            size_bytes = self._pace.slice_bytes(part.missing_bytes)
            await self._pace.wait_for(size_bytes)
            await self._receive(client, part, until=part.position + size_bytes)

    async def _receive(self, client: WeightPlaneClient, part: Range, *, until: int) -> None:
        """One stream, to its end. Raises: Unavailable when it stalls or ends early."""
        loop = asyncio.get_running_loop()
        stream = client.fetch(self._assembly.transfer, offset=part.position, size_bytes=until - part.position)
        try:
            async with aclosing(stream) as chunks, asyncio.timeout(self._patience.stall_s) as limit:
                async for chunk in chunks:
                    self._assembly.add(part, chunk)
                    if part.position >= min(until, part.end):  # another connection may have taken over the rest
                        return
                    limit.reschedule(loop.time() + self._patience.stall_s)
        except TimeoutError:
            raise Stalled(f"nothing arrived for {self._patience.stall_s} s") from None
        raise Unavailable(f"the stream ended at byte {part.position} of {until}")

    def _note(self, part: Range, problem: Exception) -> None:
        self.resumes += 1
        log.warning(
            "fetch_broken",
            origin=self._origin.name,
            version=self._assembly.transfer.target,
            at=part.position,
            received=self._assembly.received,
            of=self._assembly.transfer.size_bytes,
            problem=str(problem),
        )


def _first_of(problems: BaseExceptionGroup[BaseException]) -> BaseException:
    first = problems.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first
