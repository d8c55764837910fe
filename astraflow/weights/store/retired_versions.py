"""Retired versions: bits that readers of full snapshots still need after a newer version has replaced them."""

import threading
import weakref
from dataclasses import dataclass, field

from astraflow.contract.weights import Transfer
from astraflow.runtime.clock import Clock
from astraflow.weights.shared_memory import VersionBuffer
from astraflow.weights.store.file_readers import VersionBufferReader

MAX_RETIRED_VERSIONS = 2
"""Versions besides the newest; each takes as much memory as a model."""


@dataclass(slots=True)
class _OpenVersion:
    bits: VersionBuffer
    last_read_at: float
    """Time at which it was last known to be read."""
    readers: "weakref.WeakSet[VersionBufferReader]" = field(default_factory=weakref.WeakSet)
    """Weak references, because a reader opened for a cancelled call is never closed."""


class RetiredVersions:
    """Tracks the readers of versions in memory. Any thread may call it.

    A reader opens a file again for each range of it and after each interruption. A version read within the last
    `retired_version_s` can therefore be opened again, even if the store has a newer version by then.
    """

    def __init__(self, retired_version_s: float, clock: Clock) -> None:
        self._retention_s = retired_version_s
        self._clock = clock
        self._open_versions: dict[Transfer, _OpenVersion] = {}
        self._lock = threading.Lock()

    def open(self, transfer: Transfer, bits: VersionBuffer | None = None) -> VersionBufferReader | None:
        """Opens a version: `bits`, or the retired version of the transfer; None when there is none."""
        self.prune(newest=transfer if bits else None)
        with self._lock:
            entry = self._open_versions.get(transfer)
            if entry is None and bits is not None:
                entry = self._open_versions[transfer] = _OpenVersion(bits=bits, last_read_at=self._clock.now())
            if entry is None:
                return None
            reader = VersionBufferReader(entry.bits, on_close=lambda: self._close(transfer))
            entry.readers.add(reader)
            return reader

    def prune(self, *, newest: Transfer | None) -> None:
        """Releases versions that are not read and not expected to be; the store itself holds the newest one."""
        now = self._clock.now()
        with self._lock:
            for transfer, entry in list(self._open_versions.items()):
                if any(reader.is_open for reader in entry.readers):
                    entry.last_read_at = now
                elif now - entry.last_read_at >= self._retention_s:
                    del self._open_versions[transfer]
            older = [transfer for transfer in self._open_versions if transfer != newest]
            for transfer in older[: max(len(older) - MAX_RETIRED_VERSIONS, 0)]:
                del self._open_versions[transfer]

    def _close(self, transfer: Transfer) -> None:
        with self._lock:
            if transfer in self._open_versions:
                self._open_versions[transfer].last_read_at = self._clock.now()
        if not self._retention_s:
            self.prune(newest=None)
