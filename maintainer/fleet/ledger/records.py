"""Records of the ledger: pools, launches and their cost, launch ids, orphans, settings and replies."""

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from astraflow.contract.fleet.instances import Instance, LaunchId
from astraflow.contract.fleet.maintainer import MaintainerMode
from astraflow.contract.fleet.pools import KillScope, PoolSpec
from maintainer.fleet.providers.base import LaunchSpec

_ULID_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_DAY_S = 86400.0
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRecord:
    """A pool: its spec and its state."""

    spec: PoolSpec
    version: int
    target: int
    hold_until_at: float | None = None
    hold_reason: str = ""
    failures: int = 0
    """Consecutive failed launches."""
    breaker_until: float | None = None
    changed_at: tuple[float, ...] = ()
    """Unix seconds of the latest applied plans, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRecord:
    """A launch, from the intent on."""

    instance: Instance
    launch: LaunchSpec
    """Request to the provider, equal at every attempt; without the token."""
    tries: int = 0
    """Attempts of the current step: launch, drain or retire."""
    next_try_at: float = 0.0
    missed: int = 0
    """Consecutive provider lists without the instance."""
    is_drain_requested: bool = False
    """Dataflow was asked to drain the node."""
    suspect_at: float | None = None
    """Unix seconds since when the instance is SUSPECT; None while it is not."""

    @property
    def id(self) -> LaunchId:
        """Launch id."""
        return self.instance.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """An instance with the cluster's tag and without a live launch in the ledger."""

    provider: str
    handle: str
    launch_id: str
    seen_at: float
    """Unix seconds at which the orphan was first seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillSwitch:
    """State of the kill switch."""

    scope: KillScope = KillScope.NONE
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainerSetting:
    """Mode of the maintainer, as an operator set it last."""

    mode: MaintainerMode
    by: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Stored reply to a change, for its idempotency key."""

    key: str
    request_hash: str
    """Hash of the request under the key."""
    reply_json: str
    at: float


class LaunchIds:
    """Generates increasing ids, even when the clock goes back. Source: the ULID specification."""

    def __init__(self, bits: Callable[[int], int] = secrets.randbits) -> None:
        """bits: returns a number with this many random bits."""
        self._bits = bits
        self._last = 0

    def next(self, now: float) -> LaunchId:
        """Returns the next id. now: Unix seconds."""
        fresh = (int(now * 1000) << 80) | self._bits(80)
        self._last = max(fresh, self._last + 1)
        return LaunchId("".join(_ULID_ALPHABET[(self._last >> shift) & 31] for shift in range(125, -1, -5)))


def spending_rate(records: Iterable[LaunchRecord]) -> float:
    """Returns the cost of launches. US dollars an hour."""
    return sum(record.instance.usd_per_hour for record in records)


def spent_today(records: Iterable[LaunchRecord], *, now: float) -> float:
    """Returns the cost since midnight UTC. US dollars. now: Unix seconds.

    An intent counts from its record on, because the provider may have started it.
    """
    midnight = now - now % _DAY_S
    return sum(record.instance.usd_per_hour * _hours(record, midnight, now) for record in records)


def _hours(record: LaunchRecord, since: float, now: float) -> float:
    instance = record.instance
    end = now if instance.gone_at is None else min(instance.gone_at, now)
    return max(0.0, end - max(instance.intended_at, since)) / _HOUR_S
