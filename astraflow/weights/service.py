"""The weight store as a role: builds the store, serves the weight plane, stops gracefully."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.weights.config import WeightsConfig
from astraflow.weights.servicer import WeightsServicer
from astraflow.weights.signing import VerifyingKey
from astraflow.weights.store import opened
from astraflow.wire.pb.weight_plane_pb2_grpc import add_WeightPlaneServicer_to_server
from astraflow.wire.server import Listen, serving

log = get_logger()


async def serve(
    config: WeightsConfig,
    *,
    listen: Listen,
    directory: Path,
    stop: asyncio.Event,
    on_ready: Callable[[str], None],
    trusted: VerifyingKey | None = None,
) -> None:
    """Run the role until `stop` is set. `on_ready` is called once with the bound address.

    trusted: the key that must have signed what is taken in; None in a run that does not sign.
    Raises: InvalidInput when the port is taken, or the directory cannot be used.
    """
    async with running(config, listen=listen, directory=directory, trusted=trusted) as address:
        on_ready(address)
        await stop.wait()


@asynccontextmanager
async def running(
    config: WeightsConfig,
    *,
    listen: Listen,
    directory: Path,
    clock: Clock | None = None,
    trusted: VerifyingKey | None = None,
) -> AsyncIterator[str]:
    """A weight store that serves while the block runs; yields its address `HOST:PORT`."""
    opening = opened(directory, config, clock=clock, trusted=trusted)
    store = await asyncio.to_thread(opening.__enter__)
    try:
        servicer = WeightsServicer(store, direct_wait_s=config.direct_wait_s)
        async with serving(listen, lambda server: add_WeightPlaneServicer_to_server(servicer, server)) as address:
            log.info("weight_store_ready", address=address, directory=str(directory))
            try:
                yield address
            finally:
                await servicer.stop()
    finally:
        opening.__exit__(None, None, None)
    log.info("weight_store_stopped")
