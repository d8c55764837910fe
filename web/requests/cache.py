"""Cache of the process, for minutes: shown plans, pool specs before a change, answers by idempotency key.

A restart loses it at the cost of planning again; the services themselves ensure that nothing is done twice.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from astraflow.contract.fleet.plans import Plan, PlanId
from astraflow.contract.fleet.pools import PoolSpec
from web.history.run_summary import RunSummary

K = TypeVar("K")
V = TypeVar("V")

MAX_ENTRIES = 2000


class BoundedCache(Generic[K, V]):
    """Latest `MAX_ENTRIES` values by key."""

    def __init__(self) -> None:
        self._values: OrderedDict[K, V] = OrderedDict()

    def put(self, key: K, value: V) -> None:
        """Stores a value; drops the oldest beyond the limit."""
        self._values[key] = value
        while len(self._values) > MAX_ENTRIES:
            self._values.popitem(last=False)

    def get(self, key: K) -> V | None:
        """Value of the key; None if it is unknown or was dropped."""
        return self._values.get(key)


class KeyLocks(Generic[K]):
    """One lock per key. A lock is dropped when no request holds it or waits for it, which bounds the memory."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[K, asyncio.Lock] = WeakValueDictionary()

    def __len__(self) -> int:
        """Number of keys in use."""
        return len(self._locks)

    def lock_of(self, key: K) -> asyncio.Lock:
        """Lock of the key; the caller keeps a reference while it holds it or waits for it."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchReply:
    """Reply to a launch, stop or resume request."""

    request: str
    """Request, as JSON."""
    run: str
    """Name of the run."""


class ProcessCache:
    """Caches of one process."""

    def __init__(self) -> None:
        self.plans: BoundedCache[tuple[str, PlanId], Plan] = BoundedCache()
        """Plan by run and plan id."""
        self.previous_specs: BoundedCache[tuple[str, str, int], PoolSpec] = BoundedCache()
        """Spec before the change, by run, pool and new version; restored by undo."""
        self.answers: BoundedCache[tuple[str, str], tuple[str, str]] = BoundedCache()
        """Request text and answer, by run and idempotency key."""
        self.answer_locks: KeyLocks[tuple[str, str]] = KeyLocks()
        """Lock by run and idempotency key, so that concurrent requests with one key act once."""
        self.launches: BoundedCache[str, LaunchReply] = BoundedCache()
        """Reply by idempotency key. The database also stores the key of a launch."""
        self.summaries: BoundedCache[tuple[int, int], RunSummary] = BoundedCache()
        """Summary by run record and sequence of its last report."""
        self.launch_lock = asyncio.Lock()
        """Serializes launching, stopping and resuming runs, so that two requests with one key act once."""
