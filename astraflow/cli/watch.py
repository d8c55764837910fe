"""Following a run's report, whatever happens to the service that makes it."""

import asyncio
from collections.abc import AsyncGenerator

from astraflow.client.control_plane import ControlPlaneClient
from astraflow.contract.errors import AstraFlowError
from astraflow.contract.reports import Report
from astraflow.runtime.aio import TRANSIENT
from astraflow.wire.channel import ClientTls, dial

RETRY_S = 0.5


async def reports(
    address: str, *, token: str, tls: ClientTls | None = None
) -> AsyncGenerator[Report | AstraFlowError, None]:
    """Every report of the run at `address`, one a second, for ever; while the service is away, why.

    Raises: NotAuthenticated, ProtocolMismatch, InvalidInput.
    """
    async with dial(address, token=token, tls=tls) as link:
        client = ControlPlaneClient(link)
        while True:
            try:
                async for report in client.watch_report():
                    yield report
            except TRANSIENT as problem:
                yield problem
            await asyncio.sleep(RETRY_S)
