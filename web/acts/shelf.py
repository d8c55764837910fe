"""What this process remembers for minutes: plans that were shown, pools before a change, keys of what was asked.

A restart forgets it, and costs no more than planning again: what must not be done twice, the services themselves know.
"""

import asyncio
from collections import OrderedDict
from typing import Generic, TypeVar

from astraflow.contract.fleet import Plan, PlanId, PoolSpec
from web.reading.run_summary import RunSummary

K = TypeVar("K")
V = TypeVar("V")

MOST = 2000


class Remembered(Generic[K, V]):
    """The latest `MOST` values by key."""

    def __init__(self) -> None:
        self._values: OrderedDict[K, V] = OrderedDict()

    def put(self, key: K, value: V) -> None:
        """Keep it; the oldest goes."""
        self._values[key] = value
        while len(self._values) > MOST:
            self._values.popitem(last=False)

    def get(self, key: K) -> V | None:
        """None for what is not kept, or not any more."""
        return self._values.get(key)


class Shelf:
    """One for the process."""

    def __init__(self) -> None:
        self.plans: Remembered[tuple[str, PlanId], Plan] = Remembered()
        """Run and plan -> the plan."""
        self.specs: Remembered[tuple[str, str, int], PoolSpec] = Remembered()
        """Run, pool and version -> the spec before the change that made this version: what undoing goes back to."""
        self.answers: Remembered[tuple[str, str], tuple[str, str]] = Remembered()
        """Run and idempotency key -> what was asked, and the answer."""
        self.launches: Remembered[str, tuple[list[str], str]] = Remembered()
        """Idempotency key -> what was asked of a launched run, and its name."""
        self.summaries: Remembered[tuple[int, int], RunSummary] = Remembered()
        """Record of a run, and the sequence of its last report -> what that says."""
        self.launching = asyncio.Lock()
        """Whoever launches, stops or resumes a run: one after the other, so that two of one key do it once."""
