"""A real server evaluates a pinned version without a second server, and follows the newest version afterwards."""

import asyncio

import numpy as np
import pytest

from astraflow.contract.ids import Version
from astraflow.raas.counters import NodeCounters
from astraflow.raas.policies.evaluation_engines import ReservedEngines
from astraflow.raas.policies.pinned_versions import PinnedVersions
from astraflow.raas.policies.transfer_totals import TransferTotals
from astraflow.raas.policies.verification import MismatchGauges
from astraflow.raas.policies.weight_loop import WeightLoop
from astraflow.runtime.clock import SystemClock
from astraflow.runtime.folders.run_folders import home
from tests import make_torch
from tests.engines.real import MODEL, server, version
from tests.raas.parts import SOLVER, serving
from tests.raas.policies.test_evaluation_engines import PublishedVersions

pytestmark = [pytest.mark.engines, pytest.mark.anyio, pytest.mark.timeout(900)]

INSTALLED = home() / "engines"
"""Environments of this machine; tests have a home of their own."""

TOKENS = np.array([2, 34, 32, 18, 31, 100, 5, 6], dtype=np.int32)
IDLE_S = 0.5


async def test_a_server_holds_the_pinned_version_and_then_loads_the_newest_one() -> None:
    (home() / "engines").symlink_to(INSTALLED)
    engine = server("sglang")
    policies = serving(engine, is_ready=False)
    counters, clock, published = NodeCounters(), SystemClock(), PublishedVersions(version)
    loop = WeightLoop(
        policies[SOLVER],
        published.source,
        policies,
        counters=counters,
        gauges=MismatchGauges(counters),
        transfers=TransferTotals(),
        clock=clock,
    )
    held = ReservedEngines(policies, {SOLVER: loop})
    pinned = PinnedVersions(held, counters=counters, clock=clock, idle_s=IDLE_S)

    async def check(number: int) -> None:
        served = await engine.score(TOKENS, 1)
        np.testing.assert_allclose(served, make_torch.logprobs(make_torch.model(number, MODEL), TOKENS, 1), atol=1e-3)

    async def until_served(number: int) -> None:
        while policies.versions() != {SOLVER: number}:  # noqa: ASYNC110 (the policies have no event for a version)
            await asyncio.sleep(0.05)

    published.publish(1)
    try:
        await engine.start()
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(loop.run()), tasks.create_task(pinned.run())]
            await until_served(1)
            async with pinned.use_versions({SOLVER: Version(1)}):
                published.publish(2)
                await asyncio.sleep(2 * IDLE_S)
                assert policies.versions() == {SOLVER: 1}
                await check(1)
            await until_served(2)
            async with pinned.use_versions({SOLVER: Version(0)}):
                await check(0)
                assert len(engine.servers) == 1
                assert held.engines == {}
            await until_served(2)
            await check(2)
            for task in running:
                task.cancel()
        assert engine.gauges().restarts == 0
        assert counters.counters()["evaluation_loads"] == 1
    finally:
        await engine.close()
