"""The node's side: follows a policy's versions, and hands out only what was proven bit by bit."""

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import CorruptData, Unavailable, UnknownPolicy, UnknownVersion
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Manifest, Transfer, TransferKind, TransferPlan
from astraflow.runtime.aio import retry
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.tracing import span
from astraflow.weights.config import PullConfig
from astraflow.weights.download import Download, download
from astraflow.weights.signing import VerifyingKey
from astraflow.weights.staging import Staged, check_plan, stage
from astraflow.weights.tensors import Buffer, VerifiedWeights, verify

log = get_logger()

REPLAN_DELAY_S = 0.1
"""Pause before planning again, after the store has forgotten what was planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferStats:
    """What getting one version took."""

    version: Version
    base: Version | None
    """None after a full transfer."""
    transfers: int
    full_bytes: int
    """Fetched as full snapshots."""
    delta_bytes: int
    """Fetched as deltas."""
    version_bytes: int
    """Size of the version itself."""
    changed_elements: int | None
    """None after a full transfer."""
    fetch_s: float
    stage_s: float
    """Applying deltas onto a copy."""
    verify_s: float
    resumes: int
    """Breaks of the link that were got over."""
    fallbacks: int
    """1 when the deltas turned out bad and a full snapshot was fetched instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """A version ready to be loaded, and what getting it took."""

    weights: VerifiedWeights
    stats: TransferStats


class Puller:
    """Follows one policy: `newer` waits for, fetches, stages and proves the newest version; `commit` makes it the base.
    `exactly` does the same for one version.

        follow ──notice──► plan ──► fetch ──► stage ──► verify ──► (caller loads it) ──► commit
           ▲                 ▲ forgotten │        └─────────┴─ corrupt: once more, in full        │
           └─────────────────┴───────────┴─────────────────────────────────────────────────────────┘

    Until `commit`, the committed version stays whole and usable, and the next version is built on it. Versions in
    between are skipped: what is fetched is always the newest. One caller at a time.
    """

    def __init__(
        self,
        client: WeightPlaneClient,
        policy: PolicyId,
        *,
        config: PullConfig | None = None,
        trusted: VerifyingKey | None = None,
        clock: Clock | None = None,
    ) -> None:
        """trusted: the key that must have signed every version; None in a run that does not sign."""
        self._client = client
        self._policy = policy
        self._config = config or PullConfig()
        self._trusted = trusted
        self._clock = clock or SystemClock()
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
            await self._until_newer(self.committed)
            try:
                return await self._pull(want=None)
            except (UnknownVersion, UnknownPolicy) as problem:
                log.info("planning_again", policy=self._policy, problem=str(problem))
                await self._clock.sleep(REPLAN_DELAY_S)

    async def exactly(self, version: Version) -> Pulled:
        """One version, whatever newer ones there are; waits until it is published, retries and resumes for ever.

        Raises: UnknownVersion when it is not kept any more; otherwise as `newer`.
        """
        await self._until_newer(Version(version - 1) if version else None)
        return await self._pull(want=version)

    async def _until_newer(self, than: Version | None) -> None:
        async def first_notice() -> None:
            async with aclosing(self._client.watch(self._policy, after=than)) as notices:
                async for _ in notices:
                    return
            raise Unavailable("the weight store ended the stream of versions")

        await retry(first_notice, what=f"watching the versions of {self._policy}", clock=self._clock)

    async def _pull(self, *, want: Version | None) -> Pulled:
        base = None if want is not None and want == self.committed else self._committed  # nothing leads to itself
        plan = await self._plan(have=base[0].version if base else None, want=want)
        try:
            return await self._carry_out(plan, base=base, fallbacks=0)
        except CorruptData as problem:
            log.warning("fetching_in_full", policy=self._policy, version=plan.manifest.version, problem=str(problem))
        return await self._carry_out(await self._plan(have=None, want=want), base=None, fallbacks=1)

    async def _plan(self, *, have: Version | None, want: Version | None) -> TransferPlan:
        return await retry(
            lambda: self._client.plan(self._policy, have=have, want=want),
            what=f"planning the way to {'the newest version' if want is None else f'version {want}'} of {self._policy}",
            clock=self._clock,
        )

    async def _carry_out(self, plan: TransferPlan, *, base: tuple[Manifest, Buffer] | None, fallbacks: int) -> Pulled:
        config = self._config
        if self._trusted is not None:
            self._trusted.check(plan.manifest)
        check_plan(plan, base=base[0] if base else None, max_bytes=config.max_version_bytes)
        began = time.perf_counter()
        version = f"{self._policy}:{plan.manifest.version}"
        with span("rl.weights.fetch", version=version, transfers=len(plan.transfers), bytes=plan.size_bytes):
            downloads = [await self._download(transfer) for transfer in plan.transfers]
        fetched = time.perf_counter()
        files = [download.data for download in downloads]
        staged = await asyncio.to_thread(stage, plan, files, base=base, workers=config.codec_threads)
        staged_at = time.perf_counter()
        with span("rl.weights.verify", version=version):
            await asyncio.to_thread(verify, plan.manifest, staged.buffer, workers=config.codec_threads)
        stats = _stats(
            plan,
            downloads,
            staged,
            fetch_s=fetched - began,
            stage_s=staged_at - fetched,
            verify_s=time.perf_counter() - staged_at,
            fallbacks=fallbacks,
        )
        log.debug("pulled", policy=self._policy, version=stats.version, base=stats.base, bytes=plan.size_bytes)
        weights = VerifiedWeights(manifest=plan.manifest, buffer=staged.buffer, base=stats.base, changes=staged.changes)
        return Pulled(weights=weights, stats=stats)

    async def _download(self, transfer: Transfer) -> Download:
        return await download(self._client, transfer, stall_s=self._config.stall_s, clock=self._clock)


def _stats(
    plan: TransferPlan,
    downloads: list[Download],
    staged: Staged,
    *,
    fetch_s: float,
    stage_s: float,
    verify_s: float,
    fallbacks: int,
) -> TransferStats:
    full_bytes = sum(transfer.size_bytes for transfer in plan.transfers if transfer.kind is TransferKind.FULL)
    return TransferStats(
        version=plan.manifest.version,
        base=None if staged.changed_elements is None else plan.transfers[0].base,
        transfers=len(plan.transfers),
        full_bytes=full_bytes,
        delta_bytes=plan.size_bytes - full_bytes,
        version_bytes=plan.manifest.size_bytes,
        changed_elements=staged.changed_elements,
        fetch_s=fetch_s,
        stage_s=stage_s,
        verify_s=verify_s,
        resumes=sum(download.resumes for download in downloads),
        fallbacks=fallbacks,
    )
