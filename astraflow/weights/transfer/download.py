"""Download of one transfer over unreliable links: ranges over all connections of a source, resumed after breaks."""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import CorruptData, Unavailable
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import TRANSIENT
from astraflow.weights.transfer.assembly import Assembly, ByteRange
from astraflow.weights.transfer.weight_sources import RateLimiter, WeightSource

log = get_logger()

FIRST_DELAY_S = 0.1
MAX_DELAY_S = 2.0
MAX_REFUSALS = 3
"""Consecutive corrupt chunks at the same position after which the source is at fault, not the link."""
MAX_FAILURES_IN_A_ROW = 3
"""Consecutive failures of one connection, while no other receives data, after which the source is given up."""


MIN_RATE_SAMPLE_BYTES = 4 * 2**20
"""Smallest transfer from which a rate is measured."""


class ConnectionStalled(Unavailable):
    """A connection is open but delivers no data."""


class SourceTooSlow(Unavailable):
    """A source delivers less data than required."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlownessLimits:
    """Limits below which a source is replaced by another one."""

    stall_timeout_s: float
    """Time without data on one connection."""
    slow_window_s: float
    """Time below `min_bytes_per_s_required`."""
    min_bytes_per_s_required: float


class Download:
    """Fetches the missing ranges of a file; bytes received earlier, from any source, are kept."""

    def __init__(
        self,
        source: WeightSource,
        assembly: Assembly,
        *,
        rate_limiter: RateLimiter,
        limits: SlownessLimits,
        has_alternative: bool,
        clock: Clock,
    ) -> None:
        """has_alternative: whether there is another source; without one, this one is retried indefinitely."""
        self._source = source
        self._assembly = assembly
        self._rate_limiter = rate_limiter
        self._limits = limits
        self._has_alternative = has_alternative
        self._clock = clock
        self._changed = asyncio.Condition()
        self.resumes = 0
        """Interruptions after which the download was resumed. Count."""

    async def run(self) -> None:
        """Runs until every byte has arrived; `Assembly.finish` then proves that they are correct.

        Raises: UnknownVersion when the source no longer has the file; CorruptData when it sends corrupt chunks;
        Unavailable when it is stalled or too slow, and `has_alternative`.
        """
        began, received = self._clock.now(), self._assembly.received
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(self._watch())
                async with asyncio.TaskGroup() as connections:
                    for client in self._source.clients:
                        connections.create_task(self._run_connection(client))
                watching.cancel()
        except BaseExceptionGroup as problems:
            raise _first_error(problems) from None
        finally:
            self._record_rate(self._assembly.received - received, self._clock.now() - began)

    async def _watch(self) -> None:
        """Checks the rate every `slow_window_s`. Raises: SourceTooSlow."""
        floor = self._limits.min_bytes_per_s_required
        while self._has_alternative and floor:
            began, received = self._clock.now(), self._assembly.received
            while (took_s := self._clock.now() - began) < self._limits.slow_window_s:
                await self._clock.sleep(self._limits.slow_window_s - took_s)
            rate = (self._assembly.received - received) / took_s
            if rate < floor:
                raise SourceTooSlow(
                    f"cannot use this source: it sent {rate:.0f} bytes/s for {took_s:.0f} s, below the required "
                    f"{floor:.0f}; the next source is tried",
                    code="weights.source_too_slow",
                )

    def _record_rate(self, size_bytes: int, took_s: float) -> None:
        """Records the rate for comparing sources; a small transfer is dominated by the round trip and not recorded."""
        if size_bytes >= MIN_RATE_SAMPLE_BYTES and took_s > 0:
            self._source.bytes_per_s = size_bytes / took_s

    async def _run_connection(self, client: WeightPlaneClient) -> None:
        """Fetches one range after another on one connection, until all are complete."""
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
                if self._has_alternative and (
                    breaks >= MAX_FAILURES_IN_A_ROW or (breaks and isinstance(problem, ConnectionStalled))
                ):
                    raise
                self._log_interruption(part, problem)
            finally:
                await self._release(part)
            await self._clock.sleep(min(FIRST_DELAY_S * 2**breaks, MAX_DELAY_S))

    async def _next(self) -> ByteRange | None:
        async with self._changed:
            while not self._assembly.is_complete:
                if (part := self._assembly.next_range()) is not None:
                    return part
                await self._changed.wait()
        return None

    async def _release(self, part: ByteRange) -> None:
        self._assembly.release(part)
        async with self._changed:
            self._changed.notify_all()

    async def _fetch(self, client: WeightPlaneClient, part: ByteRange) -> None:
        """Fetches the rest of a range, in one stream unless the rate limit requires several."""
        while part.missing_bytes:
            size_bytes = self._rate_limiter.slice_bytes(part.missing_bytes)
            await self._rate_limiter.wait_for(size_bytes)
            await self._receive(client, part, until=part.position + size_bytes)

    async def _receive(self, client: WeightPlaneClient, part: ByteRange, *, until: int) -> None:
        """Receives one stream to its end. Raises: Unavailable when it stalls or ends early."""
        loop = asyncio.get_running_loop()
        stream = client.fetch(self._assembly.transfer, offset=part.position, size_bytes=until - part.position)
        try:
            async with aclosing(stream) as chunks, asyncio.timeout(self._limits.stall_timeout_s) as limit:
                async for chunk in chunks:
                    self._assembly.add(part, chunk)
                    if part.position >= min(until, part.end):  # another connection may have taken over the rest
                        return
                    limit.reschedule(loop.time() + self._limits.stall_timeout_s)
        except TimeoutError:
            raise ConnectionStalled(
                f"cannot continue the fetch: no data for {self._limits.stall_timeout_s} s; it is resumed",
                code="weights.connection_stalled",
            ) from None
        raise Unavailable(
            f"cannot continue the fetch: the stream ended at byte {part.position} of {until}; it is resumed",
            code="weights.stream_ended",
        )

    def _log_interruption(self, part: ByteRange, problem: Exception) -> None:
        self.resumes += 1
        log.warning(
            "fetch_interrupted",
            source=self._source.name,
            version=self._assembly.transfer.target,
            at=part.position,
            received=self._assembly.received,
            of=self._assembly.transfer.size_bytes,
            problem=str(problem),
        )


def _first_error(problems: BaseExceptionGroup[BaseException]) -> BaseException:
    first = problems.exceptions[0]
    return _first_error(first) if isinstance(first, BaseExceptionGroup) else first
