"""One transfer over a link that breaks: resumed where it broke, checked piece by piece and as a whole."""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import CorruptData, Unavailable
from astraflow.contract.weights import Transfer
from astraflow.runtime.aio import TRANSIENT
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.weights.chunks import Assembly
from astraflow.weights.tensors import Buffer

log = get_logger()

FIRST_DELAY_S = 0.1
MAX_DELAY_S = 2.0
MAX_CORRUPT_IN_A_ROW = 3
"""As many bad chunks at the same place, and the source is at fault, not the link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """A whole file, and how often it had to be resumed."""

    data: Buffer
    resumes: int


async def download(client: WeightPlaneClient, transfer: Transfer, *, stall_s: float, clock: Clock) -> Download:
    """Fetch a file, going on after every break until it is there; proven against the transfer's hash.

    Raises: UnknownVersion when the source no longer keeps it; CorruptData when the source's bytes are wrong.
    """
    assembly = Assembly(transfer)
    resumes = breaks_in_a_row = corrupt_in_a_row = 0
    while not assembly.is_complete:
        received = assembly.received
        try:
            await _receive(client, transfer, assembly, stall_s=stall_s)
            break
        except (*TRANSIENT, CorruptData) as problem:
            has_advanced = assembly.received > received
            breaks_in_a_row = 0 if has_advanced else breaks_in_a_row + 1
            corrupt_in_a_row = 0 if has_advanced else corrupt_in_a_row
            corrupt_in_a_row += isinstance(problem, CorruptData)
            if corrupt_in_a_row >= MAX_CORRUPT_IN_A_ROW:
                raise
            log.warning(
                "fetch_broken",
                version=transfer.target,
                at=assembly.received,
                of=transfer.size_bytes,
                problem=str(problem),
            )
        resumes += 1
        await clock.sleep(min(FIRST_DELAY_S * 2**breaks_in_a_row, MAX_DELAY_S))
    return Download(data=await asyncio.to_thread(assembly.finish), resumes=resumes)


async def _receive(client: WeightPlaneClient, transfer: Transfer, assembly: Assembly, *, stall_s: float) -> None:
    """One stream, to its end. Raises: Unavailable when it stalls or ends early."""
    loop = asyncio.get_running_loop()
    try:
        async with (
            aclosing(client.fetch(transfer, offset=assembly.received)) as chunks,
            asyncio.timeout(stall_s) as limit,
        ):
            async for chunk in chunks:
                assembly.add(chunk)
                limit.reschedule(loop.time() + stall_s)
    except TimeoutError:
        raise Unavailable(f"nothing arrived for {stall_s} s") from None
    if not assembly.is_complete:
        raise Unavailable(f"the stream ended at byte {assembly.received} of {transfer.size_bytes}")
