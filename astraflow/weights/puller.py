"""The node's side: follows a policy's versions, and hands out only what was proven bit by bit."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TypeVar

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
from astraflow.runtime.aio import TRANSIENT, retry
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.tracing import span
from astraflow.weights.assembly import Assembly
from astraflow.weights.buffers import Buffers
from astraflow.weights.config import PullConfig
from astraflow.weights.download import Download, Patience
from astraflow.weights.origins import Origin, Origins
from astraflow.weights.shared import attach, is_here
from astraflow.weights.signing import VerifyingKey
from astraflow.weights.staging import Staged, check_plan, mapped, stage
from astraflow.weights.tensors import Buffer, VerifiedWeights, verify

log = get_logger()

REPLAN_DELAY_S = 0.1
"""Pause before planning again, after the store has forgotten what was planned."""

GIVE_UP_S = 5.0
"""A place that does not answer for this long is left, where there is another one."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferStats:
    """What getting one version took, phase by phase."""

    version: Version
    base: Version | None
    """None after a full transfer."""
    origin: str
    """Whence it came."""
    transfers: int
    full_bytes: int
    """Fetched as full snapshots."""
    delta_bytes: int
    """Fetched as deltas."""
    shared_bytes: int
    """Mapped from shared memory: then nothing was fetched."""
    version_bytes: int
    """Size of the version itself."""
    changed_elements: int | None
    """None after a full transfer."""
    elements: int
    """Of the version."""
    fetch_s: float
    """From the first request to the last byte."""
    decode_s: float
    """Turning deltas into bits."""
    stage_s: float
    """Getting the base beside itself."""
    verify_s: float
    """Hashing: files, and the version."""
    resumes: int
    """Breaks of the link that were got over."""
    behind: int
    """Versions that the node was behind; 0 for its first."""
    fallbacks: int
    """1 when the deltas turned out bad and a full snapshot was fetched instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """A version ready to be loaded, and what getting it took."""

    weights: VerifiedWeights
    stats: TransferStats


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """Getting one version from one place."""

    origin: Origin
    want: Version | None
    """None for the newest."""
    gives_up: bool
    """There are other places."""
    fallbacks: int = 0
    resumes: int = 0
    fetch_s: float = 0.0
    verify_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class _Begun:
    """A file that is not whole yet, and who brought of it: whoever comes next goes on with it."""

    assembly: Assembly
    by: set[str] = field(default_factory=set)


class Puller:
    """Follows one policy: `newer` waits for, fetches, stages and proves the newest version; `commit` makes it the base.
    `exactly` does the same for one version.

        follow ──notice──► plan ─┬─► fetch ──► stage ──┬─► verify ──► (caller loads it) ──► commit
           ▲                 ▲   └─► map, same host ───┘     │                                 │
           │                 ├── forgotten ◄──┴── corrupt: once more, in full                  │
           │                 └── the place fails, lies or stalls: the next one                 │
           └───────────────────────────────────────────────────────────────────────────────────┘

    Until `commit`, the committed version stays whole and usable, and the next version is built on it. Versions in
    between are skipped: what is fetched is always the newest. What had arrived of a file is kept, and another place
    that has the same file brings only the rest. One caller at a time.
    """

    def __init__(
        self,
        origins: Origins,
        policy: PolicyId,
        *,
        config: PullConfig | None = None,
        trusted: VerifyingKey | None = None,
        clock: Clock | None = None,
    ) -> None:
        """trusted: the key that must have signed every version; None in a run that does not sign."""
        self._origins = origins
        self._policy = policy
        self._config = config or PullConfig()
        self._trusted = trusted
        self._clock = clock or SystemClock()
        self._buffers = Buffers()
        self._begun: _Begun | None = None
        self._committed: tuple[Manifest, Buffer] | None = None

    @property
    def committed(self) -> Version | None:
        """The version that was committed last."""
        return None if self._committed is None else self._committed[0].version

    def commit(self, weights: VerifiedWeights) -> None:
        """The engine serves these weights now: build the next version on them."""
        self._committed = (weights.manifest, weights.buffer)

    async def newer(self) -> Pulled:
        """The newest version, once there is one newer than the committed one. Waits, retries and resumes for ever.

        Raises: CorruptData when even a full snapshot does not match its hashes; NotTrusted when the pinned key did not
        sign the version; errors that no retry helps.
        """
        while True:
            among = await self._having_newer(self.committed)
            try:
                return await self._pull(among, want=None)
            except (UnknownVersion, UnknownPolicy) as problem:
                log.info("planning_again", policy=self._policy, problem=str(problem))
                await self._clock.sleep(REPLAN_DELAY_S)

    async def exactly(self, version: Version) -> Pulled:
        """One version, whatever newer ones there are; waits until it is published, retries and resumes for ever.

        Raises: UnknownVersion when it is not kept any more; otherwise as `newer`.
        """
        among = await self._having_newer(Version(version - 1) if version else None)
        return await self._pull(among, want=version)

    async def _having_newer(self, than: Version | None) -> Sequence[Origin]:
        """Wait for a newer version; returns the places to try, in order.

        Those that have it come first. Where one does, those preferred to it get `patience_s` to have one too, and are
        set aside if they have not: a mirror that is stuck is passed over.
        """
        while True:
            usable = self._origins.usable()
            watches = {
                asyncio.create_task(self._first_notice(origin, than, gives_up=len(self._origins.all) > 1)): origin
                for origin in usable
            }
            try:
                having = await self._first_having(watches)
            except TRANSIENT as problem:
                log.debug("no_origin_answers", policy=self._policy, problem=str(problem))
                continue
            finally:
                for watch in watches:
                    watch.cancel()
                await asyncio.gather(*watches, return_exceptions=True)
            for origin in usable[: usable.index(having[0])]:
                self._origins.set_aside(origin, Unavailable("it has no newer version, or does not answer"))
            return [*having, *(origin for origin in usable if origin not in having)]

    async def _first_having(self, watches: Mapping[asyncio.Task[None], Origin]) -> list[Origin]:
        pending = set(watches)
        while pending and not any(watch.done() and watch.exception() is None for watch in watches):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if not (preferred := next(iter(watches))).done():
            patience = asyncio.create_task(self._clock.sleep(self._config.patience_s))
            await asyncio.wait({preferred, patience}, return_when=asyncio.FIRST_COMPLETED)
            patience.cancel()
        having = [origin for watch, origin in watches.items() if watch.done() and watch.exception() is None]
        if not having:
            preferred.result()
        return having

    async def _first_notice(self, origin: Origin, than: Version | None, *, gives_up: bool) -> None:
        async def first_notice() -> None:
            async with aclosing(origin.client.watch(self._policy, after=than)) as notices:
                async for _ in notices:
                    return
            raise Unavailable("the weight store ended the stream of versions")

        await retry(
            first_notice,
            what=f"watching the versions of {self._policy} at {origin.name}",
            give_up_after_s=GIVE_UP_S if gives_up else None,
            clock=self._clock,
        )

    async def _pull(self, among: Sequence[Origin], *, want: Version | None) -> Pulled:
        """From the first place that brings it. Raises: as `newer`, and UnknownVersion, when no place can."""
        while True:
            problem: AstraFlowError | None = None
            for origin in among:
                attempt = _Attempt(origin=origin, want=want, gives_up=len(among) > 1)
                try:
                    pulled = await self._pull_from(attempt)
                except (UnknownVersion, UnknownPolicy) as found:
                    problem = found  # it need not be at fault
                except AstraFlowError as found:
                    self._origins.set_aside(origin, found)
                    problem = found
                else:
                    origin.served()
                    return pulled
            if problem is not None and not isinstance(problem, TRANSIENT):
                raise problem
            among = self._origins.usable()

    async def _pull_from(self, attempt: _Attempt) -> Pulled:
        have = self._committed
        base = None if attempt.want is not None and attempt.want == self.committed else have  # nothing leads to itself
        plan = await self._plan(attempt, base=base)
        try:
            return await self._carry_out(attempt, plan, base=base)
        except CorruptData as problem:
            log.warning("fetching_in_full", policy=self._policy, version=plan.manifest.version, problem=str(problem))
        attempt.fallbacks += 1
        return await self._carry_out(attempt, await self._plan(attempt, base=None), base=None)

    async def _plan(self, attempt: _Attempt, *, base: tuple[Manifest, Buffer] | None) -> TransferPlan:
        """Ask for the way, and prove that it is one. Raises: CorruptData."""
        want, have = attempt.want, base[0].version if base else None
        plan = await retry(
            lambda: attempt.origin.client.plan(self._policy, have=have, want=want),
            what=f"planning the way to {'the newest version' if want is None else f'version {want}'} of {self._policy}",
            give_up_after_s=GIVE_UP_S if attempt.gives_up else None,
            clock=self._clock,
        )
        if self._trusted is not None:
            self._trusted.check(plan.manifest)
        check_plan(plan, base=base[0] if base else None, max_bytes=self._config.max_version_bytes)
        found, committed = plan.manifest.version, self.committed
        is_wanted = found == want if want is not None else committed is None or found > committed
        if plan.manifest.policy != self._policy or not is_wanted:
            raise CorruptData(f"{attempt.origin.name} offers {plan.manifest.policy}:{found} instead of what was asked")
        return plan

    async def _carry_out(
        self, attempt: _Attempt, plan: TransferPlan, *, base: tuple[Manifest, Buffer] | None
    ) -> Pulled:
        if plan.shared is not None and self._config.maps_shared and is_here(plan.shared):
            try:
                return await self._map(attempt, plan, plan.shared, base=base)
            except (UnknownVersion, InvalidInput, CorruptData) as problem:
                log.info("not_mapped", policy=self._policy, version=plan.manifest.version, problem=str(problem))
        return await self._fetch_all(attempt, plan, base=base)

    async def _map(
        self, attempt: _Attempt, plan: TransferPlan, shared: SharedFile, *, base: tuple[Manifest, Buffer] | None
    ) -> Pulled:
        """The bits in the store's own memory. Raises: UnknownVersion, InvalidInput, CorruptData."""
        manifest = plan.manifest
        version = f"{self._policy}:{manifest.version}"
        with span("rl.weights.fetch", version=version, transfers=0, bytes=0):
            buffer = attach(shared)
        with span("rl.weights.verify", version=version):
            _, verify_s = await _timed(lambda: verify(manifest, buffer, workers=self._config.codec_threads))
        staged, decode_s = await _timed(lambda: mapped(manifest, buffer, base=base))
        unfetched = replace(plan, transfers=())
        return self._pulled(
            attempt, unfetched, staged, shared_bytes=manifest.size_bytes, decode_s=decode_s, verify_s=verify_s
        )

    async def _fetch_all(
        self, attempt: _Attempt, plan: TransferPlan, *, base: tuple[Manifest, Buffer] | None
    ) -> Pulled:
        workers, manifest = self._config.codec_threads, plan.manifest
        version = f"{self._policy}:{manifest.version}"
        with span("rl.weights.fetch", version=version, transfers=len(plan.transfers), bytes=plan.size_bytes):
            files = [await self._fetch(attempt, transfer) for transfer in plan.transfers]
        into = None if _is_one_snapshot(plan) else self._buffers.lend(manifest.size_bytes)
        staged, staging_s = await _timed(lambda: stage(plan, files, base=base, into=into, workers=workers))
        with span("rl.weights.verify", version=version):
            _, verify_s = await _timed(lambda: verify(manifest, staged.buffer, workers=workers))
        decode_s = staging_s - staged.copy_s
        return self._pulled(attempt, plan, staged, stage_s=staged.copy_s, decode_s=decode_s, verify_s=verify_s)

    async def _fetch(self, attempt: _Attempt, transfer: Transfer) -> Buffer:
        """One file, proven. Raises: CorruptData when it is wrong and this place brought all of it."""
        while True:
            began, begun, name = time.perf_counter(), self._resumed(transfer), attempt.origin.name
            received = begun.assembly.received
            download = Download(
                attempt.origin,
                begun.assembly,
                pace=self._origins.pace,
                patience=self._patience_with(attempt.origin),
                gives_up=attempt.gives_up,
                clock=self._clock,
            )
            try:
                await download.run()
            finally:
                attempt.fetch_s += time.perf_counter() - began
                attempt.resumes += download.resumes
                if begun.assembly.received > received:
                    begun.by.add(name)
            self._begun = None
            try:
                data, verify_s = await _timed(begun.assembly.finish)
                attempt.verify_s += verify_s
                return data
            except CorruptData:
                if begun.by <= {name}:
                    raise
                log.warning("fetching_again", version=transfer.target, by=sorted(begun.by))

    def _patience_with(self, origin: Origin) -> Patience:
        """Too slow is what is far below another source, or below the floor; our own bound on the rate is no fault."""
        config = self._config
        compared = config.slow_share * self._origins.pace.bounded(self._origins.best_besides(origin))
        floor = self._origins.pace.bounded(max(compared, config.min_bytes_per_s))
        if config.max_bytes_per_s is not None:
            floor = min(floor, config.slow_share * config.max_bytes_per_s)
        return Patience(stall_s=config.stall_s, slow_s=config.slow_s, floor_bytes_per_s=floor)

    def _resumed(self, transfer: Transfer) -> _Begun:
        """What there is of this very file, whoever brought it; nothing at first."""
        if self._begun is None or self._begun.assembly.transfer != transfer:
            is_full = transfer.kind is TransferKind.FULL
            buffer = self._buffers.lend(transfer.size_bytes) if is_full else None  # it is the version itself
            self._begun = _Begun(assembly=Assembly(transfer, buffer, ways=self._config.connections))
        return self._begun

    def _pulled(
        self,
        attempt: _Attempt,
        plan: TransferPlan,
        staged: Staged,
        *,
        shared_bytes: int = 0,
        stage_s: float = 0.0,
        decode_s: float,
        verify_s: float,
    ) -> Pulled:
        """plan: with the transfers that were fetched."""
        full_bytes = sum(transfer.size_bytes for transfer in plan.transfers if transfer.kind is TransferKind.FULL)
        base = self.committed if staged.changed_elements is not None else None
        stats = TransferStats(
            version=plan.manifest.version,
            base=base,
            origin=attempt.origin.name,
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
            behind=max(0, plan.manifest.version - self.committed) if self.committed is not None else 0,
            fallbacks=attempt.fallbacks,
        )
        log.debug("pulled", policy=self._policy, version=stats.version, origin=stats.origin, bytes=plan.size_bytes)
        weights = VerifiedWeights(manifest=plan.manifest, buffer=staged.buffer, base=base, changes=staged.changes)
        return Pulled(weights=weights, stats=stats)


def _is_one_snapshot(plan: TransferPlan) -> bool:
    """Then what is fetched is the version."""
    return len(plan.transfers) == 1 and plan.transfers[0].kind is TransferKind.FULL


async def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Work in a thread, with the seconds it took."""
    began = time.perf_counter()
    result = await asyncio.to_thread(work)
    return result, time.perf_counter() - began
