"""Weight loop of a node: follows the versions of one policy."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from astraflow.contract.errors import CorruptData, InternalError, InvalidInput, NotTrusted, Unavailable
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.nodes import EvaluationMode
from astraflow.contract.weights import Manifest
from astraflow.raas.counters import NodeCounters
from astraflow.raas.engines.base import PauseMode
from astraflow.raas.engines.logprob_mismatch import (
    JUMP_FACTOR,
    MismatchHistory,
    measure_logprob_mismatch,
    mismatch_message,
)
from astraflow.raas.engines.merged_adapters import MAX_LOST
from astraflow.raas.policies.adapter_bases import AdapterBases
from astraflow.raas.policies.reprefill_check import ReprefillSample
from astraflow.raas.policies.second_engines import CommittedSource
from astraflow.raas.policies.served_policies import ServedPolicies, ServedPolicy
from astraflow.raas.policies.transfer_totals import TransferTotals
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import Backoff
from astraflow.runtime.tracing import span
from astraflow.weights.tensors import VerifiedWeights
from astraflow.weights.transfer.puller import PulledVersion, TransferStats

log = get_logger()

FIRST_BACKOFF_S = 2.0
MAX_BACKOFF_S = 60.0
"""Delay after a version that could not be fetched or loaded; doubles with each failure."""


class NewestSource(CommittedSource, Protocol):
    """Version source that follows the newest version."""

    async def pull_newer(self) -> PulledVersion:
        """Returns the newest version once it is newer than the committed one."""


class WeightLoop:
    """Keeps one engine on the newest version, verified twice: its bits by hashes, its effect by the probe.

        wait for a newer version ──► pull, verify ──► load ──► measure the mismatch ──► serve
                                                        ▲            │ too large
                                                        └─full, once─┤
                                                                     └─► withhold until a later probe passes

    The previous version serves while the next one is fetched and staged. During the swap, requests in flight wait and
    then continue with the new version. One of these requests per version is scored again (`ReprefillCheck`): if the
    engine continued on the cache of the old weights, the policy is withheld until the next version.

    `hold` keeps the engine at one version for an evaluation; newer versions are loaded after `release`.
    """

    def __init__(
        self,
        served: ServedPolicy,
        source: Callable[[PolicyId], NewestSource],
        policies: ServedPolicies,
        *,
        counters: NodeCounters,
        mismatches: "MismatchGauges",
        transfers: TransferTotals,
        clock: Clock,
    ) -> None:
        """source: factory of a source without a committed version."""
        self._served = served
        self._new_source = source
        self._source = source(served.policy)
        self._adapter_bases = AdapterBases(source)
        self._policies = policies
        self._counters = counters
        self._mismatches = mismatches
        self._clock = clock
        self._transfers = transfers
        self._transfer_source = ""
        self._is_withheld = False
        self._has_warned_of_rounding = False
        self._is_mismatch_too_large = False
        """True after a failed probe; a version without a probe does not reset it."""
        self._mismatch_history = MismatchHistory()
        self._swap_lock = asyncio.Lock()
        """Held while a version is loaded, withheld after a failed check, or kept for an evaluation."""
        self._pull: asyncio.Future[PulledVersion] | None = None
        """Wait for a newer version."""
        self._manifest: Manifest | None = None
        """Manifest of the version that was loaded last."""
        self._is_held = False
        self._backoff = Backoff(clock, first_s=FIRST_BACKOFF_S, max_s=MAX_BACKOFF_S)

    async def run(self) -> None:
        """Runs until cancelled. Raises: errors that a retry does not cure (NotAuthenticated, ...)."""
        checks = asyncio.create_task(self._check_reprefills())
        try:
            await self._follow_versions()
        finally:
            checks.cancel()
            await asyncio.wait({checks})

    async def hold(self, version: Version) -> None:
        """Serves this version and no other one until `release`; also when another one is held.

        Raises: UnknownVersion; Unavailable when the engine does not load weights and serves another version;
        InternalError when the version cannot be served. The policy is released then.
        """
        if not self._is_held:
            await self._swap_lock.acquire()
            self._is_held = True
        try:
            await self._serve_held(version)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Follows the newest version again."""
        self._is_held = False
        self._swap_lock.release()

    async def hold_problem(self) -> str:
        """Returns why the held version is not served any more; empty while it is."""
        if not self._served.is_serving:
            return f"cannot hold a version of {self._served.policy!r}: it is not served; see the errors of the node"
        if self._served.engine.evaluation_mode is not EvaluationMode.SERVED_VERSION:
            return ""
        assert self._manifest is not None  # noqa: S101 (a served version was loaded)
        mismatch = await measure_logprob_mismatch(self._served.engine, self._manifest)
        excess = "" if mismatch is None else mismatch.excess(self._served.engine.logprob_tolerance)
        if not excess:
            return ""
        return (
            f"cannot hold version {self._manifest.version} of {self._served.policy!r}: its logprobs now differ by "
            f"{excess}, so the server was refreshed; keep its weights while an evaluation runs"
        )

    async def _serve_held(self, version: Version) -> None:
        """Loads the version unless the engine serves it."""
        policy, engine = self._served.policy, self._served.engine
        if engine.version != version or not self._served.is_serving:
            if engine.evaluation_mode is EvaluationMode.SERVED_VERSION:
                raise Unavailable(
                    f"cannot hold version {version} of {policy!r}: the server serves version {engine.version}; "
                    "evaluate the newest version",
                    code="weights.other_version_served",
                )
            source = self._new_source(policy)
            pulled = await source.pull_exact(version)
            self._counters.add("evaluation_bytes", pulled.stats.full_bytes + pulled.stats.delta_bytes)
            self._source = source
            if self._pull is not None:
                self._pull.cancel()  # its version is newer than that of the former source
            began_at = self._clock.now()
            await self._serve_or_withhold(pulled.weights)
            self._counters.add("evaluation_loads")
            self._counters.add("evaluation_load_s", self._clock.now() - began_at)
        if problem := await self.hold_problem():
            raise InternalError(problem, code="weights.version_not_held")

    async def _pull_newer(self, source: NewestSource) -> PulledVersion | None:
        """Returns the next version; None when a hold has replaced the source."""
        pull = self._pull = asyncio.ensure_future(source.pull_newer())
        try:
            await asyncio.wait({pull})
        finally:
            pull.cancel()
        return None if pull.cancelled() else pull.result()

    async def _follow_versions(self) -> None:
        while True:
            source = self._source
            try:
                pulled = await self._pull_newer(source)
            except (CorruptData, InternalError, InvalidInput, NotTrusted) as problem:
                self._note_failure("cannot fetch a version", problem)
                await self._backoff.wait()
                continue
            if pulled is None:
                continue
            self._count_transfer(pulled.stats)
            async with self._swap_lock:
                if source is not self._source:
                    continue
                is_loaded = await self._serve_or_withhold(pulled.weights)
            if not is_loaded:
                await self._backoff.wait()

    async def _check_reprefills(self) -> None:
        check = self._served.reprefill
        while True:
            sample = await check.next_sample()
            try:
                mismatch = await check.measure(sample)
            except Exception as problem:
                self._counters.note_error(
                    f"{self._served.policy}: cannot check a request after a swap: {type(problem).__name__}: {problem}"
                )
                log.warning("reprefill_check_failed", policy=self._served.policy, problem=str(problem))
                continue
            if mismatch is not None:
                self._mismatches.record_reprefill(self._served.policy, mismatch.max)
                excess = mismatch.excess(self._served.engine.logprob_tolerance)
                if excess:
                    await self._withhold_stale(sample, excess)

    async def _withhold_stale(self, sample: ReprefillSample, excess: str) -> None:
        """Withholds a version on which requests in flight continued with the cache of the version before."""
        policy = self._served.policy
        message = (
            f"cannot trust requests of {policy!r} that were in flight when version {sample.version} was loaded: scored "
            f"again, their logprobs differ by {excess}; the engine continued on the key-value cache of the old "
            "weights: use an engine that computes it again at each load (docs/how-to/engines.md)"
        )
        self._counters.add("reprefill_mismatch_failures")
        self._counters.note_error(message)
        log.error("reprefill_mismatch_exceeded", policy=policy, version=sample.version, message=message)
        async with self._swap_lock:
            if self._served.is_serving and self._served.engine.version == sample.version:
                await self._withhold()

    async def _serve_or_withhold(self, weights: VerifiedWeights) -> bool:
        """Serves these weights, or withholds the policy; returns False when they could not be loaded."""
        try:
            is_accepted = await self._load(weights if self._served.is_serving else _without_base(weights))
            # A server of another party gets no weights: a second load would only wait again.
            loads_weights = self._served.engine.evaluation_mode is not EvaluationMode.SERVED_VERSION
            if not is_accepted and weights.manifest.probe is not None and loads_weights:
                is_accepted = await self._load(_without_base(weights))
        except Exception as problem:
            self._note_failure("cannot load a version", problem)
            await self._withhold()
            self._source = self._new_source(self._served.policy)
            return False
        self._backoff.reset()
        self._source.commit(weights)
        self._manifest = weights.manifest
        if is_accepted:
            self._policies.set_version(self._served.policy, weights.manifest.version)
            log.info("version_served", policy=self._served.policy, version=weights.manifest.version)
        else:
            await self._withhold()
        return True

    async def _load(self, weights: VerifiedWeights) -> bool:
        """Swaps the weights; returns whether engine and trainer agree."""
        engine = self._served.engine
        weights = await self._adapter_bases.attach_base(weights)
        with span("rl.weights.apply", version=f"{self._served.policy}:{weights.manifest.version}"):
            loaded = await engine.load(weights)
        self._transfers.record_load(self._transfer_source, loaded)
        if loaded.rounded_away > MAX_LOST:
            self._note_rounding(loaded.rounded_away)
        if self._served.is_serving:
            self._counters.add("weight_pause_s", loaded.stopped_s)
        if self._is_withheld:
            await engine.resume()
            self._is_withheld = False
        return await self._is_mismatch_accepted(weights.manifest, is_patch=weights.changes is not None)

    def _note_rounding(self, share: float) -> None:
        """Warns once that the served policy lacks most of what was trained."""
        if self._has_warned_of_rounding:
            return
        self._has_warned_of_rounding = True
        self._counters.note_error(
            f"{self._served.policy}: {share:.0%} of the adapters' change is lost by rounding its sum with the base; "
            "serve adapters unmerged (docs/how-to/adapters.md)"
        )
        log.warning("adapters_rounded_away", policy=self._served.policy, share=round(share, 3))

    async def _is_mismatch_accepted(self, manifest: Manifest, *, is_patch: bool) -> bool:
        """Measures the mismatch; a jump after a patch is not accepted, so that the whole version is loaded."""
        engine = self._served.engine
        mismatch = await measure_logprob_mismatch(engine, manifest)
        if mismatch is None:
            return not self._is_mismatch_too_large
        self._mismatches.record(manifest.policy, mismatch.max)
        excess = mismatch.excess(engine.logprob_tolerance)
        self._is_mismatch_too_large = bool(excess)
        if excess:
            self._counters.add("logprob_mismatch_failures")
            message = mismatch_message(manifest, excess)
            self._counters.note_error(message)
            log.error(
                "logprob_mismatch_exceeded",
                policy=manifest.policy,
                version=manifest.version,
                mismatch=mismatch.max,
                message=message,
            )
            return False
        if self._mismatch_history.is_jump(mismatch) and is_patch:
            log.warning(
                "logprob_mismatch_jumped", policy=manifest.policy, version=manifest.version, mismatch=mismatch.mean
            )
            return False  # loads the whole version and measures again
        if self._mismatch_history.is_jump(mismatch):
            self._counters.add("logprob_mismatch_jumps")
            self._counters.note_error(
                f"{manifest.policy}: the mean logprob mismatch of version {manifest.version} is {mismatch.mean:.3g} nats, "
                f"more than {JUMP_FACTOR:g} times the usual one"
            )
        self._mismatch_history.add(mismatch)
        return True

    async def _withhold(self) -> None:
        """Aborts requests on unverified weights and accepts none until a version passes."""
        self._policies.set_version(self._served.policy, None)
        self._is_withheld = True
        await self._served.engine.pause(PauseMode.ABORT)

    def _note_failure(self, what: str, problem: Exception) -> None:
        self._counters.add("weight_failures")
        self._counters.note_error(f"{self._served.policy}: {what}: {type(problem).__name__}: {problem}")
        log.error("weight_load_failed", policy=self._served.policy, what=what, exc_info=problem)

    def _count_transfer(self, stats: TransferStats) -> None:
        self._transfers.record_transfer(stats)
        self._transfer_source = stats.source
        kind = "shared" if stats.shared_bytes else "full" if stats.base is None else "delta"
        self._counters.add(f"weight_updates_{kind}")
        self._counters.add("weight_bytes_shared", stats.shared_bytes)
        self._counters.add("weight_bytes_full", stats.full_bytes)
        self._counters.add("weight_bytes_delta", stats.delta_bytes)
        self._counters.add("weight_fetch_s", stats.fetch_s)
        self._counters.add("weight_verify_s", stats.decode_s + stats.stage_s + stats.verify_s)
        self._counters.add("weight_failures", stats.fallbacks)


class MismatchGauges:
    """Logprob mismatches of all policies as the two gauges of the node."""

    def __init__(self, counters: NodeCounters) -> None:
        self._counters = counters
        self._latest: dict[str, float] = {}
        self._largest = 0.0
        self._reprefills: dict[str, float] = {}

    def record(self, policy: str, mismatch: float) -> None:
        """Records the measured mismatch of a policy, in nats."""
        self._latest[policy] = mismatch
        self._largest = max(self._largest, mismatch)
        self._counters.set_gauge("logprob_mismatch", max(self._latest.values()))
        self._counters.set_gauge("logprob_mismatch_max", self._largest)

    def record_reprefill(self, policy: str, mismatch: float) -> None:
        """Records the mismatch of a request that was in flight during a swap, in nats."""
        self._reprefills[policy] = mismatch
        self._counters.set_gauge("reprefill_mismatch", max(self._reprefills.values()))


def _without_base(weights: VerifiedWeights) -> VerifiedWeights:
    """Returns the same weights, for a full load instead of a patch."""
    return replace(weights, base=None, changes=None)
