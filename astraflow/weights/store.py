"""Every policy's versions, in one directory that one process owns."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

from astraflow.contract.errors import InvalidInput, UnknownPolicy
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Manifest, SharedFile, Transfer, TransferPlan, VersionNotice
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.locks import held
from astraflow.runtime.logs import get_logger
from astraflow.weights.bits import Bits
from astraflow.weights.chunks import announced
from astraflow.weights.config import WeightsConfig
from astraflow.weights.direct import DirectDeltas
from astraflow.weights.gathering import Gathering
from astraflow.weights.history import History
from astraflow.weights.incoming import Incoming
from astraflow.weights.keeping import keeps
from astraflow.weights.keeping.base import Keep
from astraflow.weights.shared import sweep
from astraflow.weights.signing import VerifyingKey
from astraflow.weights.sources import Source
from astraflow.weights.tensors import Buffer, VerifiedWeights

log = get_logger()


class WeightStore:
    """The versions of all policies. Methods block; any thread may call them. Built by `opened`."""

    def __init__(
        self,
        keep: Keep,
        config: WeightsConfig,
        clock: Clock,
        directs: DirectDeltas,
        trusted: VerifyingKey | None,
        *,
        follows: bool,
    ) -> None:
        self._keep = keep
        self._config = config
        self._clock = clock
        self._trusted = trusted
        self._follows = follows
        self._directs = directs
        self._adding = threading.Lock()
        self._histories: dict[PolicyId, History] = {}
        for policy in keep.policies():
            history = self._history_of(policy)
            if history.records:
                self._histories[policy] = history
                log.info("versions_recovered", policy=policy, newest=history.records[-1].version)

    @property
    def is_durable(self) -> bool:
        """Whether versions outlast the machine's memory."""
        return self._keep.is_durable

    @property
    def policies(self) -> tuple[PolicyId, ...]:
        """Those with a version, sorted."""
        return tuple(sorted(policy for policy, history in self._histories.items() if history.records))

    def begin(self, manifest: Manifest, transfer: Transfer, *, shared: SharedFile | None = None) -> Incoming | None:
        """Start a publish; None when this very version is there already.

        shared: the version's full bits on this host, adopted without a copy.
        Raises: as `History.is_wanted`; NotTrusted for a version that the pinned key did not sign; UnknownVersion when
        the shared bits cannot be had.
        """
        history = self._wanting(manifest, transfer, is_adopted=shared is not None)
        if history is None:
            return None
        return Incoming(history, manifest, transfer, None if shared is None else Bits.adopted(shared))

    def begin_parts(self, manifest: Manifest) -> Gathering | None:
        """Start a version that comes in parts; None when this very version is there already.

        Raises: as `History.is_wanted`; NotTrusted for a version that the pinned key did not sign.
        """
        history = self._wanting(manifest, announced(manifest), is_adopted=True)
        return None if history is None else Gathering(history, manifest, workers=self._config.codec_threads)

    def begin_copy(self, weights: VerifiedWeights) -> tuple[Incoming, Transfer] | None:
        """Start to keep a version of another store, which is at hand; None when it is there already.

        Raises: as `begin`.
        """
        manifest = weights.manifest
        transfer = announced(manifest)
        history = self._wanting(manifest, transfer, is_adopted=True)
        if history is None:
            return None
        bits = Bits.made(manifest.size_bytes)
        bits.buffer[:] = weights.buffer
        return Incoming(history, manifest, transfer, bits), transfer

    def newest(self, policy: PolicyId) -> tuple[Manifest, Buffer] | None:
        """The newest version of a policy and its bits, read-only; None without any."""
        history = self._histories.get(policy)
        return history.newest if history else None

    def tidy(self, policy: PolicyId) -> None:
        """Keep the newest version in full if that is due, and forget versions beyond the bounds."""
        self._histories[policy].tidy()

    def let_go(self) -> None:
        """Free the bits of replaced versions that nobody has read for a while."""
        for history in list(self._histories.values()):
            history.let_go()

    def notices(self, policy: PolicyId, *, after: Version | None = None) -> tuple[VersionNotice, ...]:
        """Every version that is kept and newer than `after`, oldest first; empty for a policy without any."""
        history = self._histories.get(policy)
        records = history.records if history else ()
        newer = (record.notice for record in records if after is None or record.version > after)
        return tuple(replace(notice, is_durable=self.is_durable) for notice in newer)

    def shorten(self, policy: PolicyId, *, have: Version | None, want: Version | None) -> Future[None] | None:
        """Have one delta made where `plan` would name several; None when there is nothing to wait for.

        Raises: UnknownPolicy, UnknownVersion.
        """
        return self._history(policy).shorten(have=have, want=want)

    def plan(self, policy: PolicyId, *, have: Version | None, want: Version | None) -> TransferPlan:
        """The way with the fewest bytes. Raises: UnknownPolicy, UnknownVersion."""
        return self._history(policy).plan(have=have, want=want)

    def open(self, transfer: Transfer) -> Source:
        """The bytes of a transfer, to be closed. Raises: UnknownPolicy, UnknownVersion."""
        return self._history(transfer.policy).open(transfer)

    def _wanting(self, manifest: Manifest, transfer: Transfer, *, is_adopted: bool) -> History | None:
        """Whose version this is to be; None when it is there already."""
        if self._trusted is not None:
            self._trusted.check(manifest)
        with self._adding:
            history = self._histories.get(manifest.policy) or self._history_of(manifest.policy)
            if not history.is_wanted(manifest, transfer, is_adopted=is_adopted):
                return None
            self._histories[manifest.policy] = history
            return history

    def _history(self, policy: PolicyId) -> History:
        history = self._histories.get(policy)
        if history is None or not history.records:
            known = ", ".join(sorted(self._histories)) or "none yet"
            raise UnknownPolicy(f"nothing is published for policy {policy}; policies published: {known}")
        return history

    def _history_of(self, policy: PolicyId) -> History:
        return History(
            policy, self._keep.folder(policy), self._config, self._clock, self._directs, may_skip=self._follows
        )


@contextmanager
def opened(
    directory: Path,
    config: WeightsConfig,
    *,
    clock: Clock | None = None,
    trusted: VerifyingKey | None = None,
    follows: bool = False,
) -> Iterator[WeightStore]:
    """The store in `directory`, made when it is not there, recovered when it is; held until the block ends.

    trusted: the key that must have signed what is taken in; None in a run that does not sign. follows: a mirror's
    store, which may skip versions.
    Raises: InvalidInput when the directory, or the place of the files, cannot be used or another process holds it.
    """
    refusal = f"another weight store is using {directory}: stop it or choose another one"
    with ExitStack() as stack:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(held(directory / "lock", refusal=refusal))
        except OSError as problem:
            raise InvalidInput(f"weights cannot be kept in {directory}: {problem.strerror}") from problem
        sweep()
        keep = keeps.build(config.keep_in, directory)
        keep.claim()
        stack.enter_context(closing(keep))
        directs = DirectDeltas(count=config.direct_deltas, size_bytes=config.direct_bytes)
        stack.enter_context(closing(directs))
        yield WeightStore(keep, config, clock or SystemClock(), directs, trusted, follows=follows)
