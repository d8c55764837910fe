"""Why instances go: what each thing that is seen says of the cause, and how many each cause has made go."""

from collections import Counter
from collections.abc import Iterable, Mapping

from astraflow.contract.causes import Cause
from astraflow.contract.fleet import Instance
from maintainer.fleet.lifecycle import COUNTED, LEAVING, Sight, after
from maintainer.fleet.records import Record

LOSSES_S = 3600.0
"""Losses are counted for so long."""

_CAUSES = {Sight.GOING: Cause.TAKEN, Sight.DRAIN: Cause.ORDERED, Sight.STOP: Cause.ORDERED, Sight.RETIRE: Cause.FAILED}
"""Of the sights that say by themselves what it is. Retired without a drain is what is given up before it works."""


def cause_after(instance: Instance, sight: Sight, told: Cause | None = None) -> Cause | None:
    """What made it go, once something was seen of it; None while it stays. The first cause counts.

    told: what whoever saw it knows of the cause. Only what was lost, as far as anybody knew, and turns out to be taken
    away is said anew: a node leaves on its notice before its provider is looked at. What was on its way out before
    causes were kept has none to the end.
    """
    found = told or _CAUSES.get(sight, Cause.FAILED if instance.ready_at is None else Cause.LOST)
    if instance.cause is Cause.LOST and found is Cause.TAKEN:
        return found
    begins = instance.state in COUNTED and after(instance.state, sight) not in COUNTED
    return found if begins else instance.cause


def leaving(records: Iterable[Record]) -> Mapping[Cause, int]:
    """How many drain or are retired, by what made them go."""
    return _counted(one.instance for one in records if one.instance.state in LEAVING)


def losses(records: Iterable[Record], *, now: float) -> Mapping[Cause, int]:
    """How many nodes that worked went lately without having been asked, by cause."""
    instances = (one.instance for one in records if one.instance.was_lost)
    return _counted(one for one in instances if now - (one.left_at or 0.0) <= LOSSES_S)


def _counted(instances: Iterable[Instance]) -> Mapping[Cause, int]:
    found = Counter(one.cause for one in instances if one.cause is not None)
    return {cause: found[cause] for cause in Cause if cause in found}
