"""Cache of direct deltas, which span several versions and are encoded on request."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from astraflow.contract.errors import AstraFlowError, UnknownVersion
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Transfer
from astraflow.runtime.logs import get_logger
from astraflow.weights.store.file_readers import FileReader, MemoryFileReader
from astraflow.weights.store.reconstruction import DamagedFileError
from astraflow.weights.store.records import RouteSegment

log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectDelta:
    """An encoded delta and its description."""

    transfer: Transfer
    data: bytes


EXPECTED_ERRORS = (AstraFlowError, DamagedFileError)

Key = tuple[PolicyId, Version, Version]
"""Policy, base version, target version. Versions are immutable, so a delta between two versions is immutable too."""


class DirectDeltaCache:
    """Direct deltas of all policies, in memory; the least recently planned are evicted first.

        requested ──► being made (once for all requests) ──► cached ──► evicted: readers plan again
                               └── not smaller than the full snapshot, or a file is gone: not tried again

    Deltas are made one at a time in a separate thread, so that they delay neither readers nor publishers.
    """

    def __init__(self, *, count: int, size_bytes: int) -> None:
        self._count = count
        self._size_bytes = size_bytes
        self._entries: OrderedDict[Key, DirectDelta] = OrderedDict()
        self._rejected: set[Key] = set()
        self._pending: dict[Key, Future[None]] = {}
        self._lock = threading.Lock()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="direct-delta")

    def segments(self, policy: PolicyId) -> list[RouteSegment]:
        """Returns the route segments that are available immediately."""
        with self._lock:
            transfers = [direct.transfer for key, direct in self._entries.items() if key[0] == policy]
        return [RouteSegment(target=file.target, base=file.base, size_bytes=file.size_bytes) for file in transfers]

    def transfer(self, policy: PolicyId, base: Version, target: Version) -> Transfer | None:
        """Returns a cached delta's transfer and marks it as recently used; None when it is not cached."""
        with self._lock:
            key = (policy, base, target)
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key].transfer

    def open(self, transfer: Transfer) -> FileReader | None:
        """Returns a reader of a cached delta; None when it is not cached."""
        if transfer.base is None:
            return None
        with self._lock:
            direct = self._entries.get((transfer.policy, transfer.base, transfer.target))
        return MemoryFileReader(direct.data) if direct and direct.transfer == transfer else None

    def make(
        self, policy: PolicyId, base: Version, target: Version, work: Callable[[], DirectDelta | None]
    ) -> Future[None]:
        """Schedules `work` unless it is scheduled already; the future is done when the delta is cached or rejected."""
        key = (policy, base, target)
        with self._lock:
            if key in self._entries or key in self._rejected or not self._count:
                done: Future[None] = Future()
                done.set_result(None)
                return done
            if key not in self._pending:
                self._pending[key] = self._executor.submit(self._encode, key, work)
            return self._pending[key]

    def close(self) -> None:
        """Waits for the delta in progress; pending deltas are dropped."""
        self._executor.shutdown(cancel_futures=True)

    def _encode(self, key: Key, work: Callable[[], DirectDelta | None]) -> None:
        direct = None
        try:
            direct = work()
        except Exception as problem:  # the caller does not await the result, and the existing deltas still work
            is_gone = isinstance(problem, UnknownVersion)
            log_failure = (
                log.info if is_gone else log.warning if isinstance(problem, EXPECTED_ERRORS) else log.exception
            )
            log_failure("direct_delta_failed", policy=key[0], base=key[1], target=key[2], problem=str(problem))
        finally:
            with self._lock:
                del self._pending[key]
                self._store(key, direct)

    def _store(self, key: Key, direct: DirectDelta | None) -> None:
        if direct is None:
            newest = {other for other in self._rejected if other[0] != key[0] or other[2] == key[2]}
            self._rejected = newest | {key}  # older targets are no longer requested
            return
        self._entries[key] = direct
        while len(self._entries) > 1 and (len(self._entries) > self._count or self._stored_bytes() > self._size_bytes):
            self._entries.popitem(last=False)

    def _stored_bytes(self) -> int:
        return sum(len(direct.data) for direct in self._entries.values())
