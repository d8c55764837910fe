"""Follow a policy's versions: a node's second loop, one for each policy."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from astraflow.contract.errors import CorruptData, InternalError, InvalidInput, NotTrusted
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Manifest
from astraflow.raas.bases import Bases
from astraflow.raas.counters import NodeCounters
from astraflow.raas.engines.base import PauseMode
from astraflow.raas.gap import disagreement, too_far
from astraflow.raas.links import Links
from astraflow.raas.serving import ServedPolicies, ServedPolicy
from astraflow.runtime.aio import Rests
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.tracing import span
from astraflow.weights.puller import Pulled, TransferStats
from astraflow.weights.tensors import VerifiedWeights

log = get_logger()

FIRST_REST_S = 2.0
MAX_REST_S = 60.0
"""After a version that could not be had or loaded, the next try comes this much later, doubling each time."""


class Source(Protocol):
    """Where versions come from; see `astraflow.weights.puller.Puller`."""

    async def newer(self) -> Pulled:
        """The newest version, once there is one newer than the committed one."""

    async def exactly(self, version: Version) -> Pulled:
        """One version, for adapters to be added to."""

    def commit(self, weights: VerifiedWeights) -> None:
        """The engine serves these weights now."""


class WeightLoop:
    """Keeps one engine on the newest version that is proven twice: its bits by hashes, its effect by the probe.

        wait for a newer one ──► pull, verify ──► load ──► measure the gap ──► serve
                                                    ▲            │ too large
                                                    └─whole, once┤
                                                                 └─► withhold until the probe of a later one passes

    While a version is fetched and staged the one before serves on; while it is swapped in, requests in flight wait, and
    go on with it.
    """

    def __init__(
        self,
        served: ServedPolicy,
        source: Callable[[PolicyId], Source],
        policies: ServedPolicies,
        *,
        counters: NodeCounters,
        gaps: "Gaps",
        links: Links,
        clock: Clock,
    ) -> None:
        """source: makes a source that has nothing committed yet."""
        self._served = served
        self._new_source = source
        self._source = source(served.policy)
        self._bases = Bases(source)
        self._policies = policies
        self._counters = counters
        self._gaps = gaps
        self._links = links
        self._origin = ""
        self._is_withheld = False
        self._is_doubted = False
        """The latest probe failed: a version that has none does not end that."""
        self._rests = Rests(clock, first_s=FIRST_REST_S, most_s=MAX_REST_S)

    async def run(self) -> None:
        """Follow until cancelled. Raises: what no retry helps (NotAuthenticated, ...)."""
        while True:
            try:
                pulled = await self._source.newer()
            except (CorruptData, InternalError, InvalidInput, NotTrusted) as problem:
                self._note_failure("no version could be had", problem)
                await self._rests.take()
                continue
            self._count(pulled.stats)
            await self._take_over(pulled.weights)

    async def _take_over(self, weights: VerifiedWeights) -> None:
        """Serve these weights, or withhold the policy."""
        try:
            is_good = await self._load(weights if self._served.is_serving else _whole(weights))
            if not is_good and weights.manifest.probe is not None:
                is_good = await self._load(_whole(weights))
        except Exception as problem:
            self._note_failure("a version could not be loaded", problem)
            await self._withhold()
            self._source = self._new_source(self._served.policy)
            await self._rests.take()
            return
        self._rests.are_over()
        self._source.commit(weights)
        if is_good:
            self._policies.set_serving(self._served.policy, True)
            log.info("version_served", policy=self._served.policy, version=weights.manifest.version)
        else:
            await self._withhold()

    async def _load(self, weights: VerifiedWeights) -> bool:
        """Swap; returns whether engine and trainer agree."""
        engine = self._served.engine
        weights = await self._bases.completed(weights)
        with span("rl.weights.apply", version=f"{self._served.policy}:{weights.manifest.version}"):
            loaded = await engine.load(weights)
        self._links.loaded(self._origin, loaded)
        if self._served.is_serving:
            self._counters.add("weight_pause_s", loaded.stopped_s)
        if self._is_withheld:
            await engine.resume()
            self._is_withheld = False
        return await self._agrees(weights.manifest)

    async def _agrees(self, manifest: Manifest) -> bool:
        engine = self._served.engine
        gap = await disagreement(engine, manifest)
        if gap is None:
            return not self._is_doubted
        self._gaps.measured(manifest.policy, gap)
        self._is_doubted = gap > engine.logprob_tolerance
        if not self._is_doubted:
            return True
        self._counters.add("logprob_gap_failures")
        message = too_far(manifest, gap, engine.logprob_tolerance)
        self._counters.note_error(message)
        log.error("logprob_gap", policy=manifest.policy, version=manifest.version, gap=gap, message=message)
        return False

    async def _withhold(self) -> None:
        """End what was begun with doubtful weights, and begin nothing before a version passes."""
        self._policies.set_serving(self._served.policy, False)
        self._is_withheld = True
        await self._served.engine.pause(PauseMode.ABORT)

    def _note_failure(self, what: str, problem: Exception) -> None:
        self._counters.add("weight_failures")
        self._counters.note_error(f"{self._served.policy}: {what}: {type(problem).__name__}: {problem}")
        log.error("weights_failed", policy=self._served.policy, what=what, exc_info=problem)

    def _count(self, stats: TransferStats) -> None:
        self._links.pulled(stats)
        self._origin = stats.origin
        kind = "shared" if stats.shared_bytes else "full" if stats.base is None else "delta"
        self._counters.add(f"weight_updates_{kind}")
        self._counters.add("weight_bytes_shared", stats.shared_bytes)
        self._counters.add("weight_bytes_full", stats.full_bytes)
        self._counters.add("weight_bytes_delta", stats.delta_bytes)
        self._counters.add("weight_fetch_s", stats.fetch_s)
        self._counters.add("weight_verify_s", stats.decode_s + stats.stage_s + stats.verify_s)
        self._counters.add("weight_failures", stats.fallbacks)


class Gaps:
    """The gaps of all policies as the node's two gauges."""

    def __init__(self, counters: NodeCounters) -> None:
        self._counters = counters
        self._latest: dict[str, float] = {}
        self._largest = 0.0

    def measured(self, policy: str, gap: float) -> None:
        """A policy's engine was compared with its trainer."""
        self._latest[policy] = gap
        self._largest = max(self._largest, gap)
        self._counters.set_gauge("logprob_gap", max(self._latest.values()))
        self._counters.set_gauge("logprob_gap_max", self._largest)


def _whole(weights: VerifiedWeights) -> VerifiedWeights:
    """The same bits, to be loaded without relying on what the engine has."""
    return replace(weights, base=None, changes=None)
