"""What this process remembers for minutes: plans that were shown, pools as they were before a change, keys of drains.

A restart forgets it, and costs no more than planning again: what must not be done twice, the services themselves know.
"""

from collections import OrderedDict
from typing import Generic, TypeVar

from astraflow.contract.fleet import Actor, Plan, PlanId, PoolSpec, Role

K = TypeVar("K")
V = TypeVar("V")

MOST = 2000

_RANK = (Role.AGENT, Role.RULE, Role.OPERATOR, Role.ADMIN)


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
        self.plans: Remembered[PlanId, Plan] = Remembered()
        self.specs: Remembered[tuple[str, int], PoolSpec] = Remembered()
        """A pool's spec before the change that made this version of it: what undoing goes back to."""
        self.drains: Remembered[str, tuple[str, str]] = Remembered()
        """Idempotency key -> what was asked, and the answer."""


def may_apply(plan: Plan | None, actor: Actor) -> bool:
    """Whether somebody may carry a plan out: their own, or one that nobody of a higher role made.

    Otherwise a plan that only an admin may make would be applied by whoever learns its id. A plan that is not known
    here (it was made over the plane, or before a restart) is for admins.
    """
    if plan is None:
        return actor.role is Role.ADMIN
    planner = plan.request.actor
    is_own = planner == actor
    return is_own or (actor.role is not Role.AGENT and _RANK.index(actor.role) >= _RANK.index(planner.role))
