"""Deltas over several versions at once, made when somebody asks and kept for a while."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from astraflow.contract.errors import AstraFlowError, UnknownVersion
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Transfer
from astraflow.runtime.logs import get_logger
from astraflow.weights.plan import Leg
from astraflow.weights.rebuilding import DamagedFileError
from astraflow.weights.sources import DataSource, Source

log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Direct:
    """One delta, encoded."""

    transfer: Transfer
    data: bytes


EXPECTED = (AstraFlowError, DamagedFileError)

Key = tuple[PolicyId, Version, Version]
"""Policy, from, to: versions never change, so neither does the delta between two."""


class DirectDeltas:
    """The direct deltas of all policies, in memory: the least recently planned go first.

        asked for ──► being made (once, whoever else asks) ──► kept ──► evicted: an asker plans again
                               └── not smaller than the full snapshot, or a file is gone: not tried again

    Made one at a time, in a thread of their own, so that they delay neither readers nor publishers.
    """

    def __init__(self, *, count: int, size_bytes: int) -> None:
        self._count = count
        self._size_bytes = size_bytes
        self._kept: OrderedDict[Key, Direct] = OrderedDict()
        self._hopeless: set[Key] = set()
        self._making: dict[Key, Future[None]] = {}
        self._changing = threading.Lock()
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="direct-delta")

    def legs(self, policy: PolicyId) -> list[Leg]:
        """Ways that can be taken at once."""
        with self._changing:
            found = [direct.transfer for key, direct in self._kept.items() if key[0] == policy]
        return [Leg(target=file.target, base=file.base, size_bytes=file.size_bytes) for file in found]

    def transfer(self, policy: PolicyId, base: Version, target: Version) -> Transfer | None:
        """One that is kept; it was just used, and stays longest from now on."""
        with self._changing:
            key = (policy, base, target)
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key].transfer

    def open(self, transfer: Transfer) -> Source | None:
        """The bytes of one that is kept."""
        if transfer.base is None:
            return None
        with self._changing:
            direct = self._kept.get((transfer.policy, transfer.base, transfer.target))
        return DataSource(direct.data) if direct and direct.transfer == transfer else None

    def make(self, policy: PolicyId, base: Version, target: Version, work: Callable[[], Direct | None]) -> Future[None]:
        """Have `work` make one, unless somebody asked for it before; done when it is kept, or cannot be."""
        key = (policy, base, target)
        with self._changing:
            if key in self._kept or key in self._hopeless or not self._count:
                done: Future[None] = Future()
                done.set_result(None)
                return done
            if key not in self._making:
                self._making[key] = self._maker.submit(self._make, key, work)
            return self._making[key]

    def close(self) -> None:
        """Wait for the one that is being made; those that wait their turn are dropped."""
        self._maker.shutdown(cancel_futures=True)

    def _make(self, key: Key, work: Callable[[], Direct | None]) -> None:
        direct = None
        try:
            direct = work()
        except Exception as problem:  # of any kind: nobody waits for its end, and there is another way to go
            is_gone = isinstance(problem, UnknownVersion)
            kind = log.info if is_gone else log.warning if isinstance(problem, EXPECTED) else log.exception
            kind("direct_delta_not_made", policy=key[0], base=key[1], target=key[2], problem=str(problem))
        finally:
            with self._changing:
                del self._making[key]
                self._keep(key, direct)

    def _keep(self, key: Key, direct: Direct | None) -> None:
        if direct is None:
            newest = {other for other in self._hopeless if other[0] != key[0] or other[2] == key[2]}
            self._hopeless = newest | {key}  # older targets are asked for no more
            return
        self._kept[key] = direct
        while len(self._kept) > 1 and (len(self._kept) > self._count or self._kept_bytes() > self._size_bytes):
            self._kept.popitem(last=False)

    def _kept_bytes(self) -> int:
        return sum(len(direct.data) for direct in self._kept.values())
