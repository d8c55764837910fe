"""Weight store: the versions of all policies, in one directory that one process owns."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from astraflow.contract.errors import CorruptData, InvalidInput, UnknownPolicy
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Chunk, Manifest, SharedFile, Transfer, TransferKind, TransferPlan, VersionNotice
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.locks import exclusive_lock
from astraflow.runtime.logs import get_logger
from astraflow.weights.codec.chunks import check_chunk, unhashed_transfer
from astraflow.weights.config import WeightsConfig
from astraflow.weights.shared_memory import VersionBuffer, remove_unused_buffers
from astraflow.weights.signing import VerifyingKey
from astraflow.weights.store.direct_delta_cache import DirectDeltaCache
from astraflow.weights.store.file_readers import FileReader
from astraflow.weights.store.history import History
from astraflow.weights.store.multipart_upload import MultipartUpload
from astraflow.weights.store.storage import storages
from astraflow.weights.store.storage.base import WeightStorage
from astraflow.weights.store.upload_verification import ReceivedUpload
from astraflow.weights.tensors import Buffer, VerifiedWeights, frozen


class Upload:
    """Collects the data of a publisher in its final memory; `commit` verifies and stores it.

    Nothing is written to storage before verification, so an incomplete upload is freed with this object.
    """

    def __init__(
        self, history: History, manifest: Manifest, transfer: Transfer, full_bits: VersionBuffer | None = None
    ) -> None:
        """full_bits: the version's full bits, if they are already available."""
        self._history = history
        self._manifest = manifest
        self._transfer = transfer
        self._received = 0
        is_delta = transfer.kind is TransferKind.DELTA
        self._bits = full_bits
        self._delta = np.empty(transfer.size_bytes, dtype=np.uint8) if is_delta else None
        if self._bits is None and not is_delta:
            self._bits = VersionBuffer.allocate(transfer.size_bytes)
        elif self._bits is not None and not is_delta:
            self._received = transfer.size_bytes  # no chunks follow

    def add(self, chunk: Chunk) -> None:
        """Appends the next chunk. Raises: CorruptData."""
        check_chunk(chunk, expected_offset=self._received, end=self._transfer.size_bytes)
        into = self._delta if self._delta is not None or self._bits is None else self._bits.buffer
        if into is not None and len(chunk.data):
            end = self._received + len(chunk.data)
            into[self._received : end] = np.frombuffer(chunk.data, dtype=np.uint8)
            self._received = end

    def commit(self) -> bool:
        """Verifies and stores the version; returns False when it was stored already. Raises: as `History.commit`."""
        if self._received != self._transfer.size_bytes:
            raise CorruptData(
                f"cannot accept the upload: it ended at byte {self._received} of {self._transfer.size_bytes}; send it "
                "again",
                code="weights.incomplete_file",
            )
        if self._bits is not None:
            frozen(self._bits.buffer)
        return self._history.commit(self._manifest, self._transfer, ReceivedUpload(bits=self._bits, delta=self._delta))


log = get_logger()


class WeightStore:
    """Versions of all policies. Methods block; any thread may call them. Built by `open_store`."""

    def __init__(
        self,
        storage: WeightStorage,
        config: WeightsConfig,
        clock: Clock,
        direct_delta_cache: DirectDeltaCache,
        trusted: VerifyingKey | None,
        *,
        is_mirror: bool,
    ) -> None:
        self._storage = storage
        self._config = config
        self._clock = clock
        self._trusted = trusted
        self._is_mirror = is_mirror
        self._direct_delta_cache = direct_delta_cache
        self._histories_lock = threading.Lock()
        self._histories: dict[PolicyId, History] = {}
        for policy in storage.policies():
            history = self._load_history(policy)
            if history.records:
                self._histories[policy] = history
                log.info("versions_recovered", policy=policy, newest=history.records[-1].version)

    @property
    def is_durable(self) -> bool:
        """True when versions outlast the machine's memory."""
        return self._storage.is_durable

    @property
    def policies(self) -> tuple[PolicyId, ...]:
        """Policies with at least one version, sorted."""
        histories = self._histories.copy()  # other threads add policies meanwhile
        return tuple(sorted(policy for policy, history in histories.items() if history.records))

    def begin_upload(
        self, manifest: Manifest, transfer: Transfer, *, shared: SharedFile | None = None
    ) -> Upload | None:
        """Begins a publish; returns None when this version is stored already.

        shared: the version's full bits on this host, mapped without a copy.
        Raises: as `History.is_new`; NotTrusted for a version that the pinned key did not sign; UnknownVersion when
        the shared bits cannot be mapped.
        """
        history = self._history_accepting(manifest, transfer, has_full_bits=shared is not None)
        if history is None:
            return None
        return Upload(history, manifest, transfer, None if shared is None else VersionBuffer.from_shared_file(shared))

    def begin_multipart_upload(self, manifest: Manifest) -> MultipartUpload | None:
        """Begins a multipart publish; returns None when this version is stored already.

        Raises: as `History.is_new`; NotTrusted for a version that the pinned key did not sign.
        """
        history = self._history_accepting(manifest, unhashed_transfer(manifest), has_full_bits=True)
        return None if history is None else MultipartUpload(history, manifest, workers=self._config.codec_threads)

    def begin_copy(self, weights: VerifiedWeights) -> tuple[Upload, Transfer] | None:
        """Begins to store a version fetched from another store; returns None when it is stored already.

        Raises: as `begin_upload`.
        """
        manifest = weights.manifest
        transfer = unhashed_transfer(manifest)
        history = self._history_accepting(manifest, transfer, has_full_bits=True)
        if history is None:
            return None
        bits = VersionBuffer.allocate(manifest.size_bytes)
        bits.buffer[:] = weights.buffer
        return Upload(history, manifest, transfer, bits), transfer

    def newest(self, policy: PolicyId) -> tuple[Manifest, Buffer] | None:
        """Returns the newest version of a policy and its bits, read-only; None without any."""
        history = self._histories.get(policy)
        return history.newest if history else None

    def apply_retention(self, policy: PolicyId) -> None:
        """Writes a full snapshot of the newest version if one is due, and removes versions beyond the limits."""
        self._histories[policy].apply_retention()

    def release_retired(self) -> None:
        """Frees the bits of retired versions that were not read recently."""
        for history in list(self._histories.values()):
            history.release_retired()

    def notices(self, policy: PolicyId, *, after: Version | None = None) -> tuple[VersionNotice, ...]:
        """Returns notices of the stored versions newer than `after`, oldest first; empty for an unknown policy."""
        history = self._histories.get(policy)
        records = history.records if history else ()
        newer = (record.notice for record in records if after is None or record.version > after)
        return tuple(replace(notice, is_durable=self.is_durable) for notice in newer)

    def prepare_direct_delta(
        self, policy: PolicyId, *, have: Version | None, want: Version | None
    ) -> Future[None] | None:
        """Schedules a direct delta where `plan` would return several deltas; returns None where there is none to wait
        for.

        Raises: UnknownPolicy, UnknownVersion.
        """
        return self._history(policy).prepare_direct_delta(have=have, want=want)

    def plan(self, policy: PolicyId, *, have: Version | None, want: Version | None) -> TransferPlan:
        """Returns the route with the fewest bytes. Raises: UnknownPolicy, UnknownVersion."""
        return self._history(policy).plan(have=have, want=want)

    def open(self, transfer: Transfer) -> FileReader:
        """Returns a reader of a transfer's bytes, which the caller closes. Raises: UnknownPolicy, UnknownVersion."""
        return self._history(transfer.policy).open(transfer)

    def _history_accepting(self, manifest: Manifest, transfer: Transfer, *, has_full_bits: bool) -> History | None:
        """Returns the history that accepts this version; None when it is stored already."""
        if self._trusted is not None:
            self._trusted.check(manifest)
        with self._histories_lock:
            history = self._histories.get(manifest.policy) or self._load_history(manifest.policy)
            if not history.is_new(manifest, transfer, has_full_bits=has_full_bits):
                return None
            self._histories[manifest.policy] = history
            return history

    def _history(self, policy: PolicyId) -> History:
        history = self._histories.get(policy)
        if history is None or not history.records:
            policy_names = ", ".join(sorted(self._histories)) or "none yet"
            raise UnknownPolicy(
                f"cannot read policy {policy!r}: it has no published versions; published policies: {policy_names}",
                code="weights.policy_not_published",
            )
        return history

    def _load_history(self, policy: PolicyId) -> History:
        return History(
            policy,
            self._storage.folder(policy),
            self._config,
            self._clock,
            self._direct_delta_cache,
            may_skip_versions=self._is_mirror,
        )


@contextmanager
def open_store(
    directory: Path,
    config: WeightsConfig,
    *,
    clock: Clock | None = None,
    trusted: VerifyingKey | None = None,
    is_mirror: bool = False,
) -> Iterator[WeightStore]:
    """Opens the store in `directory`, created if needed and recovered otherwise; locked until the block ends.

    trusted: the key that must have signed uploads; None in a run without signatures. is_mirror: a mirror's store may
    skip versions.
    Raises: InvalidInput when directory or storage cannot be used, or another process holds the lock.
    """
    refusal = InvalidInput(
        f"cannot open the weight store in {str(directory)!r}: another weight store uses it; stop that store or choose "
        "another directory",
        code="storage.in_use",
    )
    with ExitStack() as stack:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(exclusive_lock(directory / "lock", refusal=refusal))
        except OSError as problem:
            raise InvalidInput(
                f"cannot store weights in {str(directory)!r}: {problem.strerror}; make it writable or choose another "
                "directory",
                code="storage.folder_unusable",
            ) from problem
        remove_unused_buffers()
        storage = storages.build(config.storage, directory)
        storage.acquire()
        stack.enter_context(closing(storage))
        direct_delta_cache = DirectDeltaCache(count=config.max_direct_deltas, size_bytes=config.max_direct_delta_bytes)
        stack.enter_context(closing(direct_delta_cache))
        yield WeightStore(storage, config, clock or SystemClock(), direct_delta_cache, trusted, is_mirror=is_mirror)
