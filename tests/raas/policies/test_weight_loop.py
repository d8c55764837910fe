import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import numpy as np
import pytest

from astraflow.contract.errors import AstraFlowError, CorruptData, NotAuthenticated, NotTrusted
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Probe
from astraflow.raas.counters import NodeCounters
from astraflow.raas.policies.recorder import RolloutRecorder
from astraflow.raas.policies.served_policies import ServedPolicies
from astraflow.raas.policies.transfer_totals import TransferTotals
from astraflow.raas.policies.verification import MismatchGauges
from astraflow.raas.policies.weight_loop import WeightLoop
from astraflow.weights.adapters import AdapterBinding
from astraflow.weights.tensors import VerifiedWeights
from astraflow.weights.transfer.puller import PulledVersion, TransferStats
from tests import make
from tests.fakes.clock import ManualClock, settle
from tests.fakes.engine import FakeEngine
from tests.raas.parts import SOLVER, serving

pytestmark = pytest.mark.anyio

PROBE = Probe(
    tokens=np.arange(7, dtype="<i4").tobytes(),
    lengths=(4, 3),
    scored_from=(2, 1),
    logprobs=np.full(4, -1.0, dtype="<f4").tobytes(),
)


class FakeSource:
    """Serves versions in the order of their publication."""

    def __init__(self) -> None:
        self.published: asyncio.Queue[PulledVersion | Exception] = asyncio.Queue()
        self.committed: list[Version] = []
        self.bases: dict[Version, VerifiedWeights] = {}
        """Base versions of adapters."""
        self.made = 0

    def make(self, policy: PolicyId) -> "FakeSource":
        self.made += 1
        return self

    def publish(
        self,
        version: int,
        *,
        base: int | None = None,
        metadata: Mapping[str, str] | None = None,
        probe: Probe | None = PROBE,
    ) -> None:
        verified = make.verified_weights(version, probe=probe)
        weights = replace(
            verified,
            manifest=replace(verified.manifest, metadata=metadata or {}),
            base=None if base is None else Version(base),
            changes=None if base is None else {},
        )
        self.published.put_nowait(PulledVersion(weights=weights, stats=stats(version, base)))

    async def pull_newer(self) -> PulledVersion:
        pulled = await self.published.get()
        if isinstance(pulled, Exception):
            raise pulled
        return pulled

    async def pull_exact(self, version: Version) -> PulledVersion:
        return PulledVersion(weights=self.bases[version], stats=stats(version, None))

    def commit(self, weights: VerifiedWeights) -> None:
        self.committed.append(weights.manifest.version)


def stats(version: int, base: int | None) -> TransferStats:
    return TransferStats(
        version=Version(version),
        base=None if base is None else Version(base),
        source="store",
        transfers=1,
        full_bytes=100 if base is None else 0,
        delta_bytes=0 if base is None else 10,
        shared_bytes=0,
        version_bytes=100,
        changed_elements=None,
        elements=50,
        fetch_s=1.0,
        decode_s=0.125,
        stage_s=0.5,
        verify_s=0.25,
        resumes=0,
        versions_behind=0,
        fallbacks=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    engine: FakeEngine
    source: FakeSource
    policies: ServedPolicies
    counters: NodeCounters
    links: TransferTotals
    clock: ManualClock
    running: asyncio.Task[None]

    @property
    def is_ready(self) -> bool:
        return self.policies.ready.is_set()


@asynccontextmanager
async def following() -> AsyncIterator[Following]:
    engine, source, counters, clock = FakeEngine(), FakeSource(), NodeCounters(), ManualClock()
    policies = serving(engine, is_ready=False)
    links = TransferTotals()
    loop = WeightLoop(
        policies[SOLVER],
        source.make,
        policies,
        counters=counters,
        gauges=MismatchGauges(counters),
        transfers=links,
        clock=clock,
    )
    running = asyncio.create_task(loop.run())
    try:
        yield Following(
            engine=engine,
            source=source,
            policies=policies,
            counters=counters,
            links=links,
            clock=clock,
            running=running,
        )
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_versions_are_loaded_measured_and_served() -> None:
    async with following() as node:
        await settle()
        assert not node.is_ready
        node.source.publish(0)
        await settle()
        assert node.policies.versions() == {SOLVER: 0}
        node.engine.score_error = lambda engine: 5e-4
        node.source.publish(3, base=0)
        await settle()

    assert node.policies.versions() == {SOLVER: 3}
    assert [weights.base for weights in node.engine.loads] == [None, 0]
    assert node.source.committed == [0, 3]
    counter_values = node.counters.counters()
    assert (counter_values["weight_updates_full"], counter_values["weight_updates_delta"]) == (1, 1)
    assert (counter_values["weight_bytes_full"], counter_values["weight_bytes_delta"]) == (100, 10)
    assert (counter_values["weight_fetch_s"], counter_values["weight_verify_s"]) == (2.0, 1.75)
    assert counter_values["weight_pause_s"] == 0.25, "the first load pauses no request"
    assert node.counters.gauges()["logprob_mismatch"] == pytest.approx(5e-4, rel=1e-3)


async def test_the_old_version_counts_as_served_while_the_next_one_is_loaded() -> None:
    async with following() as node:
        node.source.publish(0)
        await settle()
        node.engine.load_gate.clear()
        node.source.publish(1, base=0)
        await settle()
        assert node.engine.version is None
        assert node.policies.versions() == {SOLVER: 0}
        assert node.is_ready
        node.engine.load_gate.set()
        await settle()

    assert node.policies.versions() == {SOLVER: 1}


async def test_a_mismatch_that_a_full_load_repairs_is_counted_and_the_version_served() -> None:
    async with following() as node:
        node.source.publish(0)
        await settle()
        node.engine.score_error = lambda engine: 0.5 if engine.loads[-1].base is not None else 0.0
        node.source.publish(1, base=0)
        await settle()

    assert node.policies.versions() == {SOLVER: 1}
    assert [weights.base for weights in node.engine.loads] == [None, 0, None]
    assert node.counters.counters()["logprob_mismatch_failures"] == 1
    assert node.counters.gauges()["logprob_mismatch_max"] == pytest.approx(0.5)


async def test_a_lasting_mismatch_makes_the_policy_unready_until_a_version_passes() -> None:
    async with following() as node:
        node.source.publish(0)
        await settle()
        node.engine.score_error = lambda engine: 0.5 if engine.version == 1 else 0.0
        node.source.publish(1, base=0)
        await settle()
        assert not node.is_ready
        assert node.policies.versions() == {}
        assert node.engine.is_paused
        assert node.counters.counters()["logprob_mismatch_failures"] == 2
        assert "0.5 nats" in node.counters.errors()[-1]
        node.source.publish(2, base=1)
        await settle()

    assert node.is_ready
    assert not node.engine.is_paused
    assert node.engine.loads[-1].base is None, "an unready version is never patched"


async def test_a_mismatch_jump_causes_a_full_load_and_is_reported_if_it_stays() -> None:
    async with following() as node:
        node.engine.score_error = lambda engine: 5e-4 if engine.version == 6 else 1e-4
        node.source.publish(0)
        for version in range(1, 8):
            node.source.publish(version, base=version - 1)
            await settle()

    assert node.policies.versions() == {SOLVER: 7}, "a jump below the tolerance is served"
    assert [weights.manifest.version for weights in node.engine.loads if weights.base is None] == [0, 6]
    counters = node.counters.counters()
    assert (counters["logprob_mismatch_jumps"], counters["logprob_mismatch_failures"]) == (1, 0)
    assert any("version 6" in error for error in node.counters.errors())


async def test_a_version_without_a_probe_does_not_make_it_ready() -> None:
    async with following() as node:
        node.source.publish(0)
        node.source.publish(1, base=0, probe=None)
        await settle()
        assert node.is_ready
        assert node.policies.versions() == {SOLVER: 1}
        node.engine.score_error = lambda engine: 0.5 if engine.version == 2 else 0.0
        node.source.publish(2, base=1)
        node.source.publish(3, base=2, probe=None)
        await settle()
        assert not node.is_ready
        assert node.engine.version == 3
        node.source.publish(4, base=3)
        await settle()
        assert node.is_ready


async def test_running_requests_end_when_their_version_fails_the_check() -> None:
    async with following() as node:
        node.source.publish(0)
        await settle()
        node.engine.gate.clear()
        (port,) = node.policies.for_task(make.task(), RolloutRecorder(), node.counters).values()
        prompt = port.tokenizer.encode("hi")
        asking = asyncio.create_task(port.generate(prompt, make.sampling()))
        await node.engine.until_requested(1)
        node.engine.score_error = lambda engine: float("nan")
        node.source.publish(1, base=0)
        await settle()

    assert "aborted" in str(asking.exception())


async def test_a_version_that_fails_to_load_is_fetched_again() -> None:
    async with following() as node:
        node.engine.load_problem = lambda weights: ValueError("tensor")
        node.source.publish(0)
        await settle()
        assert not node.is_ready
        assert node.source.made == 2
        assert node.counters.counters()["weight_failures"] == 1
        assert "ValueError: tensor" in node.counters.errors()[-1]
        node.engine.load_problem = lambda weights: None
        node.source.publish(0)
        await node.clock.pass_time(2.0)

    assert node.policies.versions() == {SOLVER: 0}
    assert not node.engine.is_paused


@pytest.mark.parametrize("problem", [CorruptData("even the full one"), NotTrusted("version 1 is not signed")])
async def test_the_old_version_is_served_while_no_other_can_be_fetched(problem: AstraFlowError) -> None:
    async with following() as node:
        node.source.publish(0)
        await settle()
        node.source.published.put_nowait(problem)
        await settle()
        assert node.policies.versions() == {SOLVER: 0}
        assert any(str(problem) in error for error in node.counters.errors())
        assert node.counters.counters()["weight_failures"] == 1
        node.source.publish(1, base=0)
        await settle()
        assert node.policies.versions() == {SOLVER: 0}
        await node.clock.pass_time(2.0)

    assert node.policies.versions() == {SOLVER: 1}


async def test_adapters_are_loaded_with_their_base_which_is_fetched_once() -> None:
    async with following() as node:
        base = make.verified_weights(7)
        facts = AdapterBinding.for_base(base.manifest, scale=0.5)
        for version in (0, 1):
            node.source.publish(version, metadata=facts.metadata())
        node.source.bases[Version(7)] = base
        await settle()
        assert node.policies.versions() == {SOLVER: 1}
        assert node.source.made == 2, "one version of the policy and one of its base"

    assert [weights.adapter_base for weights in node.engine.loads] == [base, base]
    assert node.source.committed == [0, 1]


async def test_adapters_of_other_weights_are_not_served() -> None:
    async with following() as node:
        facts = AdapterBinding.for_base(make.verified_weights(7).manifest, scale=0.5)
        node.source.bases[Version(7)] = make.verified_weights(8)
        node.source.publish(0, metadata={**facts.metadata(), "adapter.base_root": "00" * 32})
        await settle()
        assert not node.is_ready
        assert "CorruptData" in node.counters.errors()[-1]
        assert "version 7" in node.counters.errors()[-1]


async def test_errors_that_a_retry_cannot_fix_are_raised() -> None:
    async with following() as node:
        node.source.published.put_nowait(NotAuthenticated("wrong token"))

        with pytest.raises(NotAuthenticated):
            await node.running
