"""Weight plane whose answers a test can change in transit."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Chunk, Transfer, TransferPlan
from astraflow.wire.channel import ServiceChannel, dial
from tests.weights.running import TOKEN


class RewrittenPlane(WeightPlaneClient):
    """Real plane whose answers a test can change in transit."""

    def __init__(self, link: ServiceChannel) -> None:
        super().__init__(link)
        self.on_plan: Callable[[TransferPlan], Awaitable[TransferPlan]] | None = None
        self.on_chunk: Callable[[Chunk], Chunk] | None = None
        self.fetched: list[tuple[Transfer, int]] = []
        self.has_fetched = asyncio.Event()

    async def plan(self, policy: PolicyId, *, have: Version | None, want: Version | None = None) -> TransferPlan:
        plan = await super().plan(policy, have=have, want=want)
        return await self.on_plan(plan) if self.on_plan else plan

    async def fetch(self, transfer: Transfer, *, offset: int = 0, size_bytes: int = 0) -> AsyncGenerator[Chunk, None]:
        self.fetched.append((transfer, offset))
        self.has_fetched.set()
        async for chunk in super().fetch(transfer, offset=offset, size_bytes=size_bytes):
            yield self.on_chunk(chunk) if self.on_chunk else chunk


@asynccontextmanager
async def rewritten(address: str) -> AsyncIterator[RewrittenPlane]:
    async with dial(address, token=TOKEN) as link:
        yield RewrittenPlane(link)
