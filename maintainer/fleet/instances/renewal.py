"""Replacement of instances that near their maximum age: a few at a time, with jitter, the replacement first."""

import hashlib

from astraflow.contract.fleet.instances import Cause, InstanceState, LaunchId
from astraflow.contract.fleet.instances import Instance as FleetInstance
from maintainer.fleet.guard.guard import AUTOMATIC_MODES
from maintainer.fleet.ledger.lifecycle import STARTING_STATES, TERMINATING_STATES, InstanceEvent
from maintainer.fleet.ledger.records import PoolRecord
from maintainer.fleet.state.fleet import FleetState
from maintainer.fleet.state.fleet_records import FleetRecords

RENEWED_SHARE = 0.1
"""Share of a pool's nodes, at least one node, that are replaced at a time because of their age."""
FIRST_RENEWAL, LAST_RENEWAL = 0.6, 0.9
"""Shares of an instance's maximum age between which its replacement begins, spread by its launch id."""


async def renew(fleet: FleetState, pool: PoolRecord) -> None:
    """Drains a few of the pool's ready instances that near their maximum age, unless launches are pending or fail.

    The actuator lets them work until their replacements are ready. An instance that cannot wait any longer drains.
    """
    records = fleet.ledger.alive(pool.spec.id)
    ready = [record for record in records if record.instance.state is InstanceState.READY]
    old = sorted(
        (record for record in ready if _age_share(fleet, record.instance) >= renewal_share(record.id)),
        key=lambda record: (record.instance.expires_at, record.id),
    )
    is_changing = pool.failures > 0 or any(record.instance.state in STARTING_STATES for record in records)
    leaving = sum(
        record.instance.cause is Cause.EXPIRED and record.instance.state in TERMINATING_STATES for record in records
    )
    renewed = max(0, max(1, int(RENEWED_SHARE * len(ready))) - leaving)
    if is_changing and pool.spec.mode in AUTOMATIC_MODES:
        renewed = 0
    for rank, record in enumerate(old):
        max_age_s = record.instance.expires_at - record.instance.intended_at
        last_share = max(LAST_RENEWAL, 1.0 - pool.spec.drain_s / max_age_s)
        if rank < renewed or _age_share(fleet, record.instance) >= last_share:
            message = "the instance nears its maximum age"
            await FleetRecords(fleet).record_event(record.id, InstanceEvent.DRAIN, cause=Cause.EXPIRED, message=message)


def renewal_share(launch_id: LaunchId) -> float:
    """Returns the share of its maximum age at which an instance is to be replaced."""
    number = int.from_bytes(hashlib.blake2b(launch_id.encode(), digest_size=4).digest())
    return FIRST_RENEWAL + (LAST_RENEWAL - FIRST_RENEWAL) * number / 2**32


def _age_share(fleet: FleetState, instance: FleetInstance) -> float:
    """Returns the age of an instance as a share of its maximum age."""
    return fleet.stored_times.age_s(instance.intended_at) / (instance.expires_at - instance.intended_at)
