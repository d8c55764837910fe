"""Service of the weight store: builds the store, serves the weight plane, stops gracefully."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from astraflow.contract.errors import InternalError
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import periodic
from astraflow.weights.config import WeightsConfig
from astraflow.weights.mirror import Mirror, Upstream
from astraflow.weights.signing import VerifyingKey
from astraflow.weights.store.servicer import WeightsServicer
from astraflow.weights.store.store import WeightStore, open_store
from astraflow.wire.listener_limits import WEIGHTS_LIMITS
from astraflow.wire.pb.weight_plane_pb2_grpc import add_WeightPlaneServicer_to_server
from astraflow.wire.server import ListenOptions, serving

log = get_logger()

MIN_RELEASE_INTERVAL_S = 0.1
"""Minimum time between two checks for retired versions."""


async def serve(
    config: WeightsConfig,
    *,
    listen: ListenOptions,
    directory: Path,
    stop: asyncio.Event,
    on_ready: Callable[[str], None],
    trusted: VerifyingKey | None = None,
    upstream: Upstream | None = None,
) -> None:
    """Runs the weight store until `stop` is set. Calls `on_ready` once with the bound address.

    trusted: the key that must have signed uploads; None in a run without signatures. upstream: stores that this store
    mirrors; None for a run's own store.
    Raises: InvalidInput when the port is in use, or the directory cannot be used; the error that ended background work.
    """
    store = running(config, listen=listen, directory=directory, trusted=trusted, upstream=upstream)
    async with store as address:
        on_ready(address)
        await stop.wait()


@asynccontextmanager
async def running(
    config: WeightsConfig,
    *,
    listen: ListenOptions,
    directory: Path,
    clock: Clock | None = None,
    trusted: VerifyingKey | None = None,
    upstream: Upstream | None = None,
) -> AsyncIterator[str]:
    """Serves a weight store within the block, and mirrors `upstream` if given; yields the bound address.

    Background work that fails cancels the block and raises an ExceptionGroup: a store whose mirror has ended would
    serve stale versions for ever.
    """
    opening = open_store(directory, config, clock=clock, trusted=trusted, is_mirror=upstream is not None)
    store = await asyncio.to_thread(opening.__enter__)
    try:
        mirrored_store = upstream.name if upstream else ""
        servicer = WeightsServicer(
            store,
            direct_delta_wait_s=config.direct_delta_wait_s,
            multipart_wait_s=config.multipart_wait_s,
            mirrored_store=mirrored_store,
            clock=clock,
        )
        async with serving(
            listen, lambda server: add_WeightPlaneServicer_to_server(servicer, server), limits=WEIGHTS_LIMITS
        ) as address:
            log.info("weight_store_ready", address=address, directory=str(directory))
            work = {"releasing versions": lambda: _release_retired_periodically(store, config, clock)}
            if upstream is not None:
                store_version, options = servicer.store_mirrored, config.mirror
                mirror = Mirror(
                    store, upstream, store_version=store_version, config=options, trusted=trusted, clock=clock
                )
                work["mirroring"] = mirror.run
            async with _in_background(work):
                try:
                    yield address
                finally:
                    await servicer.stop()
    finally:
        opening.__exit__(None, None, None)
    log.info("weight_store_stopped")


@asynccontextmanager
async def _in_background(work: Mapping[str, Callable[[], Awaitable[None]]]) -> AsyncIterator[None]:
    """Runs endless work, by its name, during the block. Work that ends earlier cancels the block.

    Raises: ExceptionGroup of the errors of `work`, else the error of the block as it is.
    """
    block_error: Exception | None = None
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_run_endlessly(name, endless), name=name) for name, endless in work.items()]
        try:
            yield
        except Exception as problem:
            block_error = problem  # raised outside the group, which would wrap it
        finally:
            for task in tasks:
                task.cancel()
    if block_error is not None:
        raise block_error


async def _run_endlessly(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Runs work that must not end by itself. Raises: its error; InternalError when it returns."""
    try:
        await work()
    except Exception:  # logged with its traceback, and raised again
        log.exception("background_work_failed", work=name)
        raise
    raise InternalError(
        f"cannot continue the weight store: {name} has ended unexpectedly; read its log and restart it",
        code="weights.background_work_ended",
    )


async def _release_retired_periodically(store: WeightStore, config: WeightsConfig, clock: Clock | None) -> None:
    """Frees retired versions also while no version arrives: their publisher may wait for the memory."""

    async def release() -> None:
        await asyncio.to_thread(store.release_retired)

    await periodic(release, every_s=max(config.retired_version_s / 4, MIN_RELEASE_INTERVAL_S), clock=clock)
