"""What machines cost, from the ledger alone: price times the time from launch to end."""

from collections.abc import Iterable

from maintainer.fleet.records import Record

DAY_S = 86400.0
HOUR_S = 3600.0


def rate(records: Iterable[Record]) -> float:
    """US dollars an hour of what is there or ordered."""
    return sum(record.instance.usd_per_hour for record in records if record.instance.gone_at is None)


def today(records: Iterable[Record], *, now: float) -> float:
    """US dollars since midnight UTC. now: Unix seconds.

    An intent counts from when it was written down: the provider may have it.
    """
    midnight = now - now % DAY_S
    return sum(record.instance.usd_per_hour * _hours(record, midnight, now) for record in records)


def _hours(record: Record, since: float, now: float) -> float:
    instance = record.instance
    end = now if instance.gone_at is None else min(instance.gone_at, now)
    return max(0.0, end - max(instance.intended_at, since)) / HOUR_S
