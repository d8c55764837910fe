"""Cost of instances, from the ledger alone: price times the time from launch to end."""

from collections.abc import Iterable

from maintainer.fleet.records import LaunchRecord

DAY_S = 86400.0
HOUR_S = 3600.0


def rate(records: Iterable[LaunchRecord]) -> float:
    """Returns the current cost of present and requested instances. US dollars an hour."""
    return sum(record.instance.usd_per_hour for record in records if record.instance.gone_at is None)


def today(records: Iterable[LaunchRecord], *, now: float) -> float:
    """Returns the cost since midnight UTC. US dollars. now: Unix seconds.

    An intent counts from its record on, because the provider may have started it.
    """
    midnight = now - now % DAY_S
    return sum(record.instance.usd_per_hour * _hours(record, midnight, now) for record in records)


def _hours(record: LaunchRecord, since: float, now: float) -> float:
    instance = record.instance
    end = now if instance.gone_at is None else min(instance.gone_at, now)
    return max(0.0, end - max(instance.intended_at, since)) / HOUR_S
