"""Stream of a run's reports that survives restarts of the dataflow service."""

import asyncio
from collections.abc import AsyncGenerator

from astraflow.client.control_plane import ControlPlaneClient
from astraflow.contract.errors import AstraFlowError
from astraflow.contract.reports.report import Report
from astraflow.runtime.retries import TRANSIENT
from astraflow.wire.channel import ClientTls, dial

RETRY_S = 0.5


async def reports(
    address: str, *, token: str, tls: ClientTls | None = None
) -> AsyncGenerator[Report | AstraFlowError, None]:
    """Yields the reports of the run at `address`, one per second, without end; the error while it is unavailable.

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
