"""From a wanted size to what would be launched and who would go. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet import Instance, InstanceState, LaunchId, PlanRequest
from maintainer.fleet.lifecycle import COUNTED, LEAVING

_ORDER = (
    InstanceState.INTENDED,
    InstanceState.PENDING,
    InstanceState.SUSPECT,
    InstanceState.RUNNING,
    InstanceState.READY,
)
"""Who goes first: what does not work yet is no loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a plan comes down to."""

    nodes: int
    """There now, or ordered; those that joined by hand included."""
    target: int
    launches: int
    victims: tuple[Instance, ...]


def shape(
    request: PlanRequest,
    instances: Sequence[Instance],
    *,
    first: Sequence[str] = (),
    speeds: Mapping[LaunchId, float],
    unmanaged: int = 0,
) -> Shape:
    """What `request` comes down to for a pool of `instances`.

    Victims are those that the rule names, then those that do not work yet, then by price for what they do, then the
    slowest, then the youngest.
    unmanaged: nodes of the pool that joined by hand: they are part of its size, and only instances are victims.
    first: names that the rule would let go. speeds: episodes a second of nodes that are known to work.
    Raises: InvalidInput for one that is not in the pool.
    """
    counted = [instance for instance in instances if instance.state in COUNTED]
    nodes = unmanaged + len(counted)
    if request.retire:
        victims = tuple(_named(request, instances))
        staying = len(counted) - sum(1 for victim in victims if victim.state in COUNTED)
        return Shape(nodes=nodes, target=unmanaged + staying, launches=0, victims=victims)
    target = request.target or 0
    surplus = max(0, nodes - target)
    doomed = sorted(counted, key=lambda instance: _rank(instance, instance.id in first, speeds.get(instance.id, 0.0)))[
        :surplus
    ]
    return Shape(nodes=nodes, target=target, launches=max(0, target - nodes), victims=tuple(doomed))


def _named(request: PlanRequest, instances: Sequence[Instance]) -> list[Instance]:
    known = {instance.id: instance for instance in instances}
    movable = COUNTED + LEAVING if request.is_kill else COUNTED
    found = []
    for name in dict.fromkeys(request.retire):
        if name not in known or known[name].state not in movable:
            raise InvalidInput(f"{name} is no instance of pool {request.pool} that could be retired")
        found.append(known[name])
    return found


def _rank(instance: Instance, is_named: bool, speed: float) -> tuple[bool, int, float, float, float, str]:
    """The smaller goes first."""
    price = instance.usd_per_hour / speed if speed > 0 else 0.0
    return (not is_named, _ORDER.index(instance.state), -price, speed, -instance.intended_at, instance.id)
