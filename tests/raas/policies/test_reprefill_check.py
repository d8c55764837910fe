import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import numpy as np
import pytest

from astraflow.contract.ids import Version
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling, VersionSpan
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array
from astraflow.raas.counters import NodeCounters
from astraflow.raas.engines.base import ROUNDED
from astraflow.raas.policies.recorder import RolloutRecorder
from astraflow.raas.policies.reprefill_check import MIN_ROUNDED_TOKENS, ReprefillCheck
from astraflow.raas.policies.served_policies import ServedPolicies
from astraflow.raas.policies.transfer_totals import TransferTotals
from astraflow.raas.policies.verification import MismatchGauges
from astraflow.raas.policies.weight_loop import WeightLoop
from tests import make
from tests.fakes.clock import ManualClock, settle
from tests.fakes.engine import FakeEngine
from tests.raas.parts import SOLVER, serving
from tests.raas.policies.test_weight_loop import FakeSource

pytestmark = pytest.mark.anyio

PROMPT = np.arange(5, dtype=np.int32)
PLAIN = Sampling(max_new_tokens=200, stop_tokens=(1,))


class CacheEngine(FakeEngine):
    """Scores -1 for every token. Generations begin on the version before; with a stale cache the logprobs of the tokens
    after the swap are those of no version."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stale = False
        self.scored: list[tuple[int, int]] = []

    async def generate(self, request_id: str, prompt: Int32Array, sampling: Sampling) -> Generation:
        assert self.version is not None
        return crossed(self.version, -3.5 if self.is_stale else -1.0)

    async def score(self, tokens: Int32Array, scored_from: int) -> Float32Array:
        self.scored.append((len(tokens), scored_from))
        return await super().score(tokens, scored_from)


def crossed(version: int, logprob: float, *, after: int = 6) -> Generation:
    """Returns four tokens of the version before and `after` tokens of this one."""
    spans = (VersionSpan(version=Version(version - 1), length=4), VersionSpan(version=Version(version), length=after))
    return Generation(
        tokens=np.arange(4 + after, dtype=np.int32),
        logprobs=np.array([-0.25] * 4 + [logprob] * after, dtype=np.float32),
        spans=spans if version else spans[1:],
        finish=Finish.LENGTH,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    engine: CacheEngine
    source: FakeSource
    policies: ServedPolicies
    counters: NodeCounters

    async def publish(self, version: int) -> None:
        self.source.publish(version, probe=None)
        await settle()

    async def generate(self) -> None:
        """Runs one request of a task and the check that it causes."""
        client = self.policies.for_task(make.task(), RolloutRecorder(), self.counters)[SOLVER]
        await client.generate(PROMPT, PLAIN)
        await settle()


@asynccontextmanager
async def following() -> AsyncIterator[Following]:
    engine, source, counters = CacheEngine(), FakeSource(), NodeCounters()
    policies = serving(engine, is_ready=False)
    loop = WeightLoop(
        policies[SOLVER],
        source.make,
        policies,
        counters=counters,
        gauges=MismatchGauges(counters),
        transfers=TransferTotals(),
        clock=ManualClock(),
    )
    running = asyncio.create_task(loop.run())
    try:
        yield Following(engine=engine, source=source, policies=policies, counters=counters)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_request_across_a_weight_update_is_rescored_once_per_version() -> None:
    async with following() as node:
        await node.publish(1)
        await node.generate()
        await node.generate()
        assert node.engine.scored == [(15, 9)], "prompt of 5, 4 tokens before the swap, 6 after it"
        await node.publish(2)
        await node.generate()

    assert len(node.engine.scored) == 2
    assert node.counters.gauges()["reprefill_mismatch"] == 0
    assert node.counters.counters()["reprefill_mismatch_failures"] == 0
    assert node.policies.versions() == {SOLVER: 2}


async def test_a_stale_cache_makes_the_policy_unready_until_the_next_version() -> None:
    async with following() as node:
        await node.publish(1)
        node.engine.is_stale = True
        await node.generate()
        assert node.policies.versions() == {}
        assert node.engine.is_paused
        assert node.counters.counters()["reprefill_mismatch_failures"] == 1
        assert node.counters.gauges()["reprefill_mismatch"] == pytest.approx(2.5)
        assert "key-value cache" in node.counters.errors()[-1]
        node.engine.is_stale = False
        await node.publish(2)
        await node.generate()

    assert node.policies.versions() == {SOLVER: 2}
    assert not node.engine.is_paused
    assert node.counters.gauges()["reprefill_mismatch"] == 0


async def test_a_failed_score_is_reported_and_leaves_the_policy_ready() -> None:
    async with following() as node:
        await node.publish(1)
        node.engine.score_error = lambda engine: 1 / 0
        await node.generate()
        assert node.policies.versions() == {SOLVER: 1}
        assert "ZeroDivisionError" in node.counters.errors()[-1]
        node.engine.score_error = lambda engine: 0.0
        await node.generate()
        assert node.counters.gauges()["reprefill_mismatch"] == 0


@pytest.mark.parametrize(
    ("sampling", "generation"),
    [
        (replace(PLAIN, temperature=0.7), crossed(3, -1.0)),
        (replace(PLAIN, top_p=0.9), crossed(3, -1.0)),
        (replace(PLAIN, top_k=10), crossed(3, -1.0)),
        (replace(PLAIN, min_p=0.1), crossed(3, -1.0)),
        (PLAIN, replace(crossed(3, -1.0, after=10), spans=(VersionSpan(version=Version(3), length=14),))),
        (PLAIN, crossed(2, -1.0)),
    ],
    ids=["temperature", "top_p", "top_k", "min_p", "one version", "version no longer in service"],
)
async def test_incomparable_generations_are_not_rescored(sampling: Sampling, generation: Generation) -> None:
    engine = CacheEngine()
    engine.version = Version(3)
    check = ReprefillCheck(engine)
    check.offer(PROMPT, sampling, generation)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(check.next_sample(), 0.01)


async def test_a_sample_of_a_replaced_version_is_dropped() -> None:
    engine = CacheEngine()
    engine.version = Version(3)
    check = ReprefillCheck(engine)
    check.offer(PROMPT, PLAIN, crossed(3, -1.0))
    sample = await check.next_sample()
    engine.version = Version(4)
    assert await check.measure(sample) is None
    assert engine.scored == []


async def test_few_rounded_logprobs_are_not_compared() -> None:
    engine = CacheEngine()
    engine.logprob_tolerance = ROUNDED
    engine.version = Version(3)
    check = ReprefillCheck(engine)
    check.offer(PROMPT, PLAIN, crossed(3, -1.0, after=MIN_ROUNDED_TOKENS - 1))
    check.offer(PROMPT, PLAIN, crossed(3, -1.0, after=MIN_ROUNDED_TOKENS))
    assert (await check.next_sample()).scored_from == len(PROMPT) + 4
