"""Puller of a node: follows a policy's versions and returns only versions verified bit by bit."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from astraflow.contract.errors import (
    AstraFlowError,
    CorruptData,
    InvalidInput,
    Unavailable,
    UnknownPolicy,
    UnknownVersion,
)
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Manifest, SharedFile, Transfer, TransferKind, TransferPlan
from astraflow.runtime.clock import Clock, SystemClock, timed
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import TRANSIENT, retry
from astraflow.runtime.tracing import span
from astraflow.weights.config import PullConfig
from astraflow.weights.shared_memory import BufferPool, is_on_this_host, map_read_only
from astraflow.weights.signing import VerifyingKey
from astraflow.weights.tensors import Buffer, VerifiedWeights, verify
from astraflow.weights.transfer.assembly import Assembly
from astraflow.weights.transfer.download import Download, SlownessLimits
from astraflow.weights.transfer.transfer_application import (
    AppliedTransfers,
    apply_transfers,
    check_plan,
    compare_mapped,
)
from astraflow.weights.transfer.weight_sources import WeightSource, WeightSources

log = get_logger()

REPLAN_DELAY_S = 0.1
"""Pause before planning again, after the store has removed a planned file."""

GIVE_UP_S = 5.0
"""Time without an answer after which a source is replaced by another one, if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferStats:
    """Sizes and durations of fetching one version."""

    version: Version
    base: Version | None
    """Version that the deltas started from; None after a full transfer."""
    source: str
    """Name of the source."""
    transfers: int
    full_bytes: int
    """Bytes fetched as full snapshots."""
    delta_bytes: int
    """Bytes fetched as deltas."""
    shared_bytes: int
    """Bytes mapped from shared memory, in which case nothing was fetched."""
    version_bytes: int
    """Size of the version. Bytes."""
    changed_elements: int | None
    """Elements that differ from the base; None after a full transfer."""
    elements: int
    """Elements of the version."""
    fetch_s: float
    """Time from the first request to the last byte."""
    decode_s: float
    """Time for decoding and applying deltas."""
    stage_s: float
    """Time for copying the base."""
    verify_s: float
    """Time for hashing files and the version."""
    resumes: int
    """Interruptions after which the download was resumed. Count."""
    versions_behind: int
    """Versions that the node was behind; 0 for its first version."""
    fallbacks: int
    """1 when the deltas were corrupt and a full snapshot was fetched instead, else 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledVersion:
    """A version ready to be loaded, with its transfer statistics."""

    weights: VerifiedWeights
    stats: TransferStats


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """Attempt to get one version from one source."""

    source: WeightSource
    want: Version | None
    """Requested version; None for the newest."""
    has_alternative: bool
    """True when there are other sources."""
    fallbacks: int = 0
    resumes: int = 0
    fetch_s: float = 0.0
    verify_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class _PartialDownload:
    """An incomplete file and the sources that contributed to it; the next source continues it."""

    assembly: Assembly
    source_names: set[str] = field(default_factory=set)


class Puller:
    """Follows one policy: `pull_newer` waits for, fetches, stages and verifies the newest version; `commit` makes it
    the base. `pull_exact` does the same for one version.

        watch ──notice──► plan ─┬─► fetch ──► stage ──┬─► verify ──► (caller loads it) ──► commit
           ▲                │   └─► map, same host ───┘     │                                 │
           │                ├── removed ◄────┴── corrupt: once more, in full                  │
           │                └── source fails, is corrupt or stalls: the next source           │
           └──────────────────────────────────────────────────────────────────────────────────┘

    Until `commit`, the committed version stays complete and usable, and the next version is built on it. Intermediate
    versions are skipped: each fetch is of the newest version. Received bytes of a file are kept, and another source
    with the same file sends only the rest. Supports one caller at a time.
    """

    def __init__(
        self,
        sources: WeightSources,
        policy: PolicyId,
        *,
        config: PullConfig | None = None,
        trusted: VerifyingKey | None = None,
        clock: Clock | None = None,
    ) -> None:
        """trusted: the key that must have signed every version; None in a run without signatures."""
        self._sources = sources
        self._policy = policy
        self._config = config or PullConfig()
        self._trusted = trusted
        self._clock = clock or SystemClock()
        self._buffers = BufferPool()
        self._partial: _PartialDownload | None = None
        self._committed: tuple[Manifest, Buffer] | None = None

    @property
    def committed(self) -> Version | None:
        """The last committed version; None before the first."""
        return None if self._committed is None else self._committed[0].version

    def commit(self, weights: VerifiedWeights) -> None:
        """Makes these weights the base of the next version; call it once the engine serves them."""
        self._committed = (weights.manifest, weights.buffer)

    async def pull_newer(self) -> PulledVersion:
        """Returns the newest version once it is newer than the committed one. Waits, retries and resumes without limit.

        Raises: CorruptData when even a full snapshot does not match its hashes; NotTrusted when the pinned key did not
        sign the version; errors that retries cannot fix.
        """
        while True:
            sources = await self._sources_with_newer(self.committed)
            try:
                return await self._pull(sources, want=None)
            except (UnknownVersion, UnknownPolicy) as problem:
                log.info("plan_discarded", policy=self._policy, problem=str(problem))
                await self._clock.sleep(REPLAN_DELAY_S)

    async def pull_exact(self, version: Version) -> PulledVersion:
        """Returns one version, even if there are newer ones; waits until it is published, retries and resumes.

        Raises: UnknownVersion when it is no longer stored; the other errors of `pull_newer`.
        """
        sources = await self._sources_with_newer(Version(version - 1) if version else None)
        return await self._pull(sources, want=version)

    async def _sources_with_newer(self, newer_than: Version | None) -> Sequence[WeightSource]:
        """Waits for a newer version; returns the sources to try, in order.

        Sources with the version come first. Once a source has it, more preferred sources have
        `preferred_source_wait_s` to get it too; then they are backed off, so that a stuck mirror is skipped.
        """
        while True:
            usable = self._sources.available()
            watches = {
                asyncio.create_task(
                    self._first_notice(source, newer_than, has_alternative=len(self._sources.all) > 1)
                ): source
                for source in usable
            }
            try:
                ready = await self._first_sources_with_newer(watches)
            except TRANSIENT as problem:
                log.debug("sources_unreachable", policy=self._policy, problem=str(problem))
                continue
            finally:
                for watch in watches:
                    watch.cancel()
                await asyncio.gather(*watches, return_exceptions=True)
            for source in usable[: usable.index(ready[0])]:
                self._sources.back_off(
                    source,
                    Unavailable(
                        "cannot use this source: it has no newer version, or does not answer; another source is used",
                        code="weights.source_behind",
                    ),
                )
            return [*ready, *(source for source in usable if source not in ready)]

    async def _first_sources_with_newer(self, watches: Mapping[asyncio.Task[None], WeightSource]) -> list[WeightSource]:
        pending = set(watches)
        while pending and not any(watch.done() and watch.exception() is None for watch in watches):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if not (preferred := next(iter(watches))).done():
            wait_limit = asyncio.create_task(self._clock.sleep(self._config.preferred_source_wait_s))
            await asyncio.wait({preferred, wait_limit}, return_when=asyncio.FIRST_COMPLETED)
            wait_limit.cancel()
        ready = [source for watch, source in watches.items() if watch.done() and watch.exception() is None]
        if not ready:
            preferred.result()
        return ready

    async def _first_notice(self, source: WeightSource, newer_than: Version | None, *, has_alternative: bool) -> None:
        async def first_notice() -> None:
            async with aclosing(source.client.watch(self._policy, after=newer_than)) as notices:
                async for _ in notices:
                    return
            raise Unavailable(
                "cannot watch versions: the weight store ended the stream; it is opened again",
                code="weights.watch_ended",
            )

        await retry(
            first_notice,
            what=f"watching the versions of {self._policy} at {source.name}",
            give_up_after_s=GIVE_UP_S if has_alternative else None,
            clock=self._clock,
        )

    async def _pull(self, sources: Sequence[WeightSource], *, want: Version | None) -> PulledVersion:
        """Pulls from the first source that succeeds. Raises: as `pull_newer`, and UnknownVersion, when none does."""
        while True:
            problem: AstraFlowError | None = None
            for source in sources:
                attempt = _Attempt(source=source, want=want, has_alternative=len(sources) > 1)
                try:
                    pulled = await self._pull_from(attempt)
                except (UnknownVersion, UnknownPolicy) as error:
                    problem = error  # the source may still be healthy
                except AstraFlowError as error:
                    self._sources.back_off(source, error)
                    problem = error
                else:
                    source.mark_succeeded()
                    return pulled
            if problem is not None and not isinstance(problem, TRANSIENT):
                raise problem
            sources = self._sources.available()

    async def _pull_from(self, attempt: _Attempt) -> PulledVersion:
        have = self._committed
        base = None if attempt.want is not None and attempt.want == self.committed else have  # no delta from itself
        plan = await self._plan(attempt, base=base)
        try:
            return await self._execute(attempt, plan, base=base)
        except CorruptData as problem:
            log.warning("full_fetch_started", policy=self._policy, version=plan.manifest.version, problem=str(problem))
        attempt.fallbacks += 1
        return await self._execute(attempt, await self._plan(attempt, base=None), base=None)

    async def _plan(self, attempt: _Attempt, *, base: tuple[Manifest, Buffer] | None) -> TransferPlan:
        """Requests a transfer plan and validates it. Raises: CorruptData."""
        want, have = attempt.want, base[0].version if base else None
        plan = await retry(
            lambda: attempt.source.client.plan(self._policy, have=have, want=want),
            what=f"planning a route to {'the newest version' if want is None else f'version {want}'} of {self._policy}",
            give_up_after_s=GIVE_UP_S if attempt.has_alternative else None,
            clock=self._clock,
        )
        if self._trusted is not None:
            self._trusted.check(plan.manifest)
        check_plan(plan, base=base[0] if base else None, max_bytes=self._config.max_version_bytes)
        offered, committed = plan.manifest.version, self.committed
        is_wanted = offered == want if want is not None else committed is None or offered > committed
        if plan.manifest.policy != self._policy or not is_wanted:
            raise CorruptData(
                f"cannot use the plan of {attempt.source.name}: it is for version {offered} of "
                f"{plan.manifest.policy!r}, which was not requested; use another source",
                code="weights.unexpected_plan",
            )
        return plan

    async def _execute(
        self, attempt: _Attempt, plan: TransferPlan, *, base: tuple[Manifest, Buffer] | None
    ) -> PulledVersion:
        if plan.shared is not None and self._config.use_shared_memory and is_on_this_host(plan.shared):
            try:
                return await self._map(attempt, plan, plan.shared, base=base)
            except (UnknownVersion, InvalidInput, CorruptData) as problem:
                log.info(
                    "shared_memory_not_mapped", policy=self._policy, version=plan.manifest.version, problem=str(problem)
                )
        return await self._fetch_all(attempt, plan, base=base)

    async def _map(
        self, attempt: _Attempt, plan: TransferPlan, shared: SharedFile, *, base: tuple[Manifest, Buffer] | None
    ) -> PulledVersion:
        """Maps the bits in the store's shared memory. Raises: UnknownVersion, InvalidInput, CorruptData."""
        manifest = plan.manifest
        version = f"{self._policy}:{manifest.version}"
        with span("rl.weights.fetch", version=version, transfers=0, bytes=0):
            buffer = map_read_only(shared)
        with span("rl.weights.verify", version=version):
            _, verify_s = await timed(lambda: verify(manifest, buffer, workers=self._config.codec_threads))
        staged, decode_s = await timed(lambda: compare_mapped(manifest, buffer, base=base))
        plan_without_transfers = replace(plan, transfers=())
        return self._build_result(
            attempt,
            plan_without_transfers,
            staged,
            shared_bytes=manifest.size_bytes,
            decode_s=decode_s,
            verify_s=verify_s,
        )

    async def _fetch_all(
        self, attempt: _Attempt, plan: TransferPlan, *, base: tuple[Manifest, Buffer] | None
    ) -> PulledVersion:
        workers, manifest = self._config.codec_threads, plan.manifest
        version = f"{self._policy}:{manifest.version}"
        with span("rl.weights.fetch", version=version, transfers=len(plan.transfers), bytes=plan.size_bytes):
            files = [await self._fetch(attempt, transfer) for transfer in plan.transfers]
        into = None if _is_single_snapshot(plan) else self._buffers.acquire(manifest.size_bytes)
        staged, staging_s = await timed(lambda: apply_transfers(plan, files, base=base, into=into, workers=workers))
        with span("rl.weights.verify", version=version):
            _, verify_s = await timed(lambda: verify(manifest, staged.buffer, workers=workers))
        decode_s = staging_s - staged.copy_s
        return self._build_result(attempt, plan, staged, stage_s=staged.copy_s, decode_s=decode_s, verify_s=verify_s)

    async def _fetch(self, attempt: _Attempt, transfer: Transfer) -> Buffer:
        """Fetches and verifies one file. Raises: CorruptData when it is wrong and came from this source alone."""
        while True:
            began, partial, name = time.perf_counter(), self._resume_or_start(transfer), attempt.source.name
            received = partial.assembly.received
            download = Download(
                attempt.source,
                partial.assembly,
                rate_limiter=self._sources.rate_limiter,
                limits=self._slowness_limits(attempt.source),
                has_alternative=attempt.has_alternative,
                clock=self._clock,
            )
            try:
                await download.run()
            finally:
                attempt.fetch_s += time.perf_counter() - began
                attempt.resumes += download.resumes
                if partial.assembly.received > received:
                    partial.source_names.add(name)
            self._partial = None
            try:
                data, verify_s = await timed(partial.assembly.finish)
                attempt.verify_s += verify_s
                return data
            except CorruptData:
                if partial.source_names <= {name}:
                    raise
                log.warning("file_refetch_started", version=transfer.target, source_names=sorted(partial.source_names))

    def _slowness_limits(self, source: WeightSource) -> SlownessLimits:
        """Returns limits from other sources' rates and the configured minimum, within this node's rate limit."""
        config = self._config
        compared = config.slow_share * self._sources.rate_limiter.limited_rate(self._sources.best_other_rate(source))
        min_rate = self._sources.rate_limiter.limited_rate(max(compared, config.min_bytes_per_s))
        if config.max_bytes_per_s is not None:
            min_rate = min(min_rate, config.slow_share * config.max_bytes_per_s)
        return SlownessLimits(
            stall_timeout_s=config.stall_timeout_s,
            slow_window_s=config.slow_window_s,
            min_bytes_per_s_required=min_rate,
        )

    def _resume_or_start(self, transfer: Transfer) -> _PartialDownload:
        """Returns the partial download of this file, from any source; a new one if there is none."""
        if self._partial is None or self._partial.assembly.transfer != transfer:
            is_full = transfer.kind is TransferKind.FULL
            buffer = self._buffers.acquire(transfer.size_bytes) if is_full else None  # a snapshot is the version itself
            self._partial = _PartialDownload(assembly=Assembly(transfer, buffer, max_ranges=self._config.connections))
        return self._partial

    def _build_result(
        self,
        attempt: _Attempt,
        plan: TransferPlan,
        staged: AppliedTransfers,
        *,
        shared_bytes: int = 0,
        stage_s: float = 0.0,
        decode_s: float,
        verify_s: float,
    ) -> PulledVersion:
        """plan: the plan whose transfers were fetched."""
        full_bytes = sum(transfer.size_bytes for transfer in plan.transfers if transfer.kind is TransferKind.FULL)
        base = self.committed if staged.changed_elements is not None else None
        stats = TransferStats(
            version=plan.manifest.version,
            base=base,
            source=attempt.source.name,
            transfers=len(plan.transfers),
            full_bytes=full_bytes,
            delta_bytes=plan.size_bytes - full_bytes,
            shared_bytes=shared_bytes,
            version_bytes=plan.manifest.size_bytes,
            changed_elements=staged.changed_elements,
            elements=sum(tensor.elements for tensor in plan.manifest.tensors),
            fetch_s=attempt.fetch_s,
            decode_s=decode_s,
            stage_s=stage_s,
            verify_s=attempt.verify_s + verify_s,
            resumes=attempt.resumes,
            versions_behind=max(0, plan.manifest.version - self.committed) if self.committed is not None else 0,
            fallbacks=attempt.fallbacks,
        )
        log.debug(
            "version_pulled", policy=self._policy, version=stats.version, source=stats.source, bytes=plan.size_bytes
        )
        weights = VerifiedWeights(manifest=plan.manifest, buffer=staged.buffer, base=base, changes=staged.changes)
        return PulledVersion(weights=weights, stats=stats)


def _is_single_snapshot(plan: TransferPlan) -> bool:
    """Returns whether the fetched file is the version itself."""
    return len(plan.transfers) == 1 and plan.transfers[0].kind is TransferKind.FULL
