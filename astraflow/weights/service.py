"""The weight store as a role: builds the store, serves the weight plane, stops gracefully."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from astraflow.runtime.aio import periodic
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.weights.config import WeightsConfig
from astraflow.weights.mirror import Mirror, Upstream
from astraflow.weights.servicer import WeightsServicer
from astraflow.weights.signing import VerifyingKey
from astraflow.weights.store import WeightStore, opened
from astraflow.wire.listeners import WEIGHTS
from astraflow.wire.pb.weight_plane_pb2_grpc import add_WeightPlaneServicer_to_server
from astraflow.wire.server import Listen, serving

log = get_logger()

MIN_LET_GO_S = 0.1


async def serve(
    config: WeightsConfig,
    *,
    listen: Listen,
    directory: Path,
    stop: asyncio.Event,
    on_ready: Callable[[str], None],
    trusted: VerifyingKey | None = None,
    upstream: Upstream | None = None,
) -> None:
    """Run the role until `stop` is set. `on_ready` is called once with the bound address.

    trusted: the key that must have signed what is taken in; None in a run that does not sign. upstream: what this
    store mirrors; None for a run's own store.
    Raises: InvalidInput when the port is taken, or the directory cannot be used.
    """
    store = running(config, listen=listen, directory=directory, trusted=trusted, upstream=upstream)
    async with store as address:
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
    upstream: Upstream | None = None,
) -> AsyncIterator[str]:
    """A weight store that serves while the block runs, and follows `upstream` if there is one; yields its address."""
    opening = opened(directory, config, clock=clock, trusted=trusted, follows=upstream is not None)
    store = await asyncio.to_thread(opening.__enter__)
    try:
        follows = upstream.name if upstream else ""
        servicer = WeightsServicer(
            store,
            direct_wait_s=config.direct_wait_s,
            parts_wait_s=config.parts_wait_s,
            follows=follows,
            clock=clock,
        )
        async with serving(
            listen, lambda server: add_WeightPlaneServicer_to_server(servicer, server), limits=WEIGHTS
        ) as address:
            log.info("weight_store_ready", address=address, directory=str(directory))
            beside = [asyncio.create_task(_let_go(store, config, clock))]
            if upstream is not None:
                mirror = Mirror(store, upstream, keep=servicer.copy, config=config.mirror, trusted=trusted, clock=clock)
                beside.append(asyncio.create_task(mirror.run()))
            try:
                yield address
            finally:
                await servicer.stop()
                for task in beside:
                    task.cancel()
                await asyncio.wait(beside)
    finally:
        opening.__exit__(None, None, None)
    log.info("weight_store_stopped")


async def _let_go(store: WeightStore, config: WeightsConfig, clock: Clock | None) -> None:
    """Bits that linger are let go in time also while no version comes: their publisher may wait for the memory."""

    async def once() -> None:
        await asyncio.to_thread(store.let_go)

    await periodic(once, every_s=max(config.linger_s / 4, MIN_LET_GO_S), clock=clock)
