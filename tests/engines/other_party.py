"""A server that another party runs and refreshes, for nodes with the engine `openai_tokens`."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.reports.evaluations import EvaluationState
from astraflow.contract.reports.report import Report
from astraflow.raas.engines.server.dialect import MODEL_NAME
from astraflow.raas.engines.server.engine import ServerEngine
from astraflow.weights.config import PullConfig
from astraflow.weights.transfer.puller import Puller
from astraflow.weights.transfer.weight_sources import connect_sources
from astraflow.wire.channel import dial
from tests.system.processes import RunningRun

KEY_VARIABLE = "ASTRAFLOW_ENGINE_KEY"
_KEPT_S = 15.0
"""Longest time for which a version waits for the node, which may not have asked for it. Seconds."""


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
async def refreshing(
    engine: ServerEngine, run: RunningRun, policy: PolicyId, *, every_versions: int
) -> AsyncIterator[None]:
    """Loads every version of a run into the server, in order, while the block runs; keeps each until a node serves it,
    and each `every_versions`-th until its evaluation has ended: rounds begin once a second, and versions may follow
    each other faster."""
    task = asyncio.create_task(_refresh(engine, run, policy, every_versions))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled() and (problem := task.exception()) is not None:
        raise problem


async def _refresh(engine: ServerEngine, run: RunningRun, policy: PolicyId, every_versions: int) -> None:
    await run.report()  # waits until the run has services
    async with connect_sources(run.facts()["weights"], PullConfig(), dial=partial(dial, token=run.token())) as sources:
        while True:
            report = await run.report()
            version = engine.version
            following = Version(0 if version is None else version + 1)
            if following <= _last_allowed(report, policy, version, every_versions):
                pulled = await Puller(sources, policy).pull_exact(following)
                await engine.load(pulled.weights)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_KEPT_S):
                        await run.until(partial(_is_served, policy, following))
            await asyncio.sleep(0.2)


def _is_served(policy: PolicyId, version: Version, report: Report) -> bool:
    return any(node.versions.get(policy) == version for node in report.nodes)


def _last_allowed(report: Report, policy: PolicyId, served: Version | None, every_versions: int) -> Version:
    """Returns the newest version to which the server may be refreshed now."""
    (newest,) = (stream.version for stream in report.streams if stream.policy == policy)
    if served is None or served % every_versions:
        return newest
    is_evaluated = any(
        part.versions[policy] > served
        or (part.versions[policy] == served and part.state in (EvaluationState.DONE, EvaluationState.STOPPED))
        for part in report.evaluations
    )
    return newest if is_evaluated else served
