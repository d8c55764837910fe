"""A client connected to a fake endpoint, for tests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from astraflow.agents.calls import AgentMessage, Role
from astraflow.agents.upstream.client import Upstream, UpstreamOptions
from tests.fakes.clock import ManualClock
from tests.fakes.hosted_endpoint import KEY, HostedEndpoint, hosted


def user(text: str) -> AgentMessage:
    return AgentMessage(role=Role.USER, content=text)


def echo(body: dict[str, Any]) -> dict[str, Any]:
    return {"content": f"echo of {body['messages'][-1]['content']}"}


@asynccontextmanager
async def connected(
    reply: Any = echo, *, key: str = KEY, clock: Any = None, **options: Any
) -> AsyncIterator[tuple[HostedEndpoint, Upstream]]:
    async with hosted(reply) as endpoint:
        upstream = Upstream(UpstreamOptions(base_url=endpoint.base_url, **options), key=key, clock=clock or Instant())
        await upstream.start()
        try:
            yield endpoint, upstream
        finally:
            await upstream.close()


class Instant(ManualClock):
    """Clock whose sleeps end at once; `slept` has their lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)
