"""A server that another party runs and refreshes, for nodes with the engine `openai_tokens`."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

from astraflow.contract.ids import PolicyId
from astraflow.raas.engines.server.dialect import MODEL_NAME
from astraflow.raas.engines.server.engine import ServerEngine
from astraflow.weights.config import PullConfig
from astraflow.weights.transfer.puller import Puller
from astraflow.weights.transfer.weight_sources import connect_sources
from astraflow.wire.channel import dial
from tests.system.processes import RunningRun

KEY_VARIABLE = "ASTRAFLOW_ENGINE_KEY"


def key_of(engine: ServerEngine) -> str:
    """Returns the key of the server."""
    return engine.servers[0].client._session.headers["Authorization"].removeprefix("Bearer ")


def node_engine(engine: ServerEngine) -> Mapping[str, str | float]:
    """Returns the engine of nodes that use the server; the key is in the variable `KEY_VARIABLE`."""
    return {
        "kind": "openai_tokens",
        "base_url": engine.servers[0].client.base_url,
        "model": MODEL_NAME,
        "key_variable": KEY_VARIABLE,
        "dtype": "float32",
        "refresh_poll_s": 0.2,
        "refresh_timeout_s": 5.0,
    }


@asynccontextmanager
async def closed_after(engine: ServerEngine) -> AsyncIterator[None]:
    """Starts the server, with its key in the variable `KEY_VARIABLE` of programs that this one starts; ends it."""
    try:
        await engine.start()
        os.environ[KEY_VARIABLE] = key_of(engine)
        yield
    finally:
        os.environ.pop(KEY_VARIABLE, None)
        await engine.close()


@asynccontextmanager
async def refreshing(engine: ServerEngine, run: RunningRun, policy: PolicyId) -> AsyncIterator[None]:
    """Loads the newest version of a run into the server while the block runs.

    A version stays for an evaluation only if the trainer cannot pass it meanwhile: set `max_staleness = 0`, with which
    it waits for tokens of its version, that is, for this server.
    """
    task = asyncio.create_task(_refresh(engine, run, policy))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled() and (problem := task.exception()) is not None:
        raise problem


async def _refresh(engine: ServerEngine, run: RunningRun, policy: PolicyId) -> None:
    await run.report()  # waits until the run has services
    async with connect_sources(run.facts()["weights"], PullConfig(), dial=partial(dial, token=run.token())) as sources:
        puller = Puller(sources, policy)
        while True:
            pulled = await puller.pull_newer()
            await engine.load(pulled.weights)
            puller.commit(pulled.weights)
