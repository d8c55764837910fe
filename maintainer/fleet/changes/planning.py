"""Translates a requested size into launches and victims. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.instances import Instance, InstanceState, LaunchId
from astraflow.contract.fleet.plans import PlanRequest
from maintainer.fleet.ledger.lifecycle import COUNTED_STATES, TERMINATING_STATES

_ORDER = (
    InstanceState.INTENDED,
    InstanceState.PENDING,
    InstanceState.SUSPECT,
    InstanceState.RUNNING,
    InstanceState.READY,
)
"""Order of retirement by state: instances that are not ready yet first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeChange:
    """Launches and victims of a plan."""

    nodes: int
    """Present plus requested nodes, including manually started ones."""
    target: int
    launches: int
    victims: tuple[Instance, ...]


def plan_size_change(
    request: PlanRequest,
    instances: Sequence[Instance],
    *,
    preferred_victims: Sequence[str] = (),
    speeds: Mapping[LaunchId, float],
    unmanaged: int = 0,
) -> SizeChange:
    """Returns the launches and victims of a request for a pool of `instances`.

    Victims are instances that the rule names, then those not ready yet, then by price per unit of work, then the
    slowest, then the youngest.
    unmanaged: manually started nodes, which count towards the size but are no victims. preferred_victims: names that
    the rule would retire. speeds: episodes a second of ready nodes.
    Raises: InvalidInput for an instance that is not in the pool.
    """
    counted = [instance for instance in instances if instance.state in COUNTED_STATES]
    nodes = unmanaged + len(counted)
    if request.retire:
        victims = tuple(_named(request, instances))
        staying = len(counted) - sum(1 for victim in victims if victim.state in COUNTED_STATES)
        return SizeChange(nodes=nodes, target=unmanaged + staying, launches=0, victims=victims)
    target = request.target or 0
    surplus = max(0, nodes - target)
    victims_by_rank = sorted(
        counted, key=lambda instance: _rank(instance, instance.id in preferred_victims, speeds.get(instance.id, 0.0))
    )[:surplus]
    return SizeChange(nodes=nodes, target=target, launches=max(0, target - nodes), victims=tuple(victims_by_rank))


def _named(request: PlanRequest, instances: Sequence[Instance]) -> list[Instance]:
    instance_by_id = {instance.id: instance for instance in instances}
    movable = COUNTED_STATES + TERMINATING_STATES if request.is_kill else COUNTED_STATES
    victims = []
    for name in dict.fromkeys(request.retire):
        if name not in instance_by_id or instance_by_id[name].state not in movable:
            raise InvalidInput(
                f"cannot retire {name!r}: it is no instance of pool {request.pool} that can be retired; list them",
                code="fleet.instance_not_found",
            )
        victims.append(instance_by_id[name])
    return victims


def _rank(instance: Instance, is_named: bool, speed: float) -> tuple[bool, int, float, float, float, str]:
    """Returns a sort key; the smallest is retired first."""
    price = instance.usd_per_hour / speed if speed > 0 else 0.0
    return (not is_named, _ORDER.index(instance.state), -price, speed, -instance.intended_at, instance.id)
