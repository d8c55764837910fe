"""What a request is about: which run, which of its pools. The guard asks, before the route runs.

What cannot be found (a node that left, a plan that this process does not know) is the whole run's: a role on one pool
is not enough for it.
"""

from collections.abc import Iterable, Sequence

from starlette.requests import HTTPConnection
from starlette.types import Scope

from astraflow.contract.fleet import PlanId
from astraflow.contract.ids import NodeId
from web.door.bodies import Fields
from web.door.places import EVERYWHERE, Place
from web.door.roles import Asked, On
from web.feed.following import Following
from web.feed.state import RunState
from web.parts import House, following_of

NODE_FIELD = "node"


class Subjects:
    """Finds it. One for the process."""

    def __init__(self, house: House) -> None:
        self._house = house

    async def places_of(self, scope: Scope, asked: Asked, fields: Fields) -> Sequence[Place]:
        """All of what it is about; one place at least. fields: of its form."""
        if asked.on is On.EVERYTHING:
            return (EVERYWHERE,)
        if asked.on is On.LAUNCH:
            return (Place(run=asked.params["name"]),)
        connection = HTTPConnection(scope)
        _, one = following_of(self._house, connection)
        match asked.on:
            case On.POOL:
                pools = [asked.params["pool"]]
            case On.PLAN:
                pools = [await self._pool_of_plan(one, asked.params["plan"])]
            case On.NODE if NODE_FIELD in asked.params:
                pools = pools_of_nodes(one.state, [asked.params[NODE_FIELD]])
            case On.NODE:
                named = (*connection.query_params.getlist(NODE_FIELD), *fields.get(NODE_FIELD, ()))
                pools = pools_of_nodes(one.state, named)
            case _:
                pools = [""]
        return [Place(run=one.name, pool=pool) for pool in pools or [""]]

    async def _pool_of_plan(self, one: Following, plan: str) -> str:
        """As the fleet service said when it was made or proposed; empty for one that is not known."""
        known = self._house.shelf.plans.get((one.name, PlanId.known(plan)))
        if known is None:
            proposal = (await one.maintainer.look()).proposal(PlanId.known(plan))
            known = proposal.plan if proposal is not None else None
        return known.request.pool if known is not None else ""


def pools_of_nodes(state: RunState, nodes: Iterable[str]) -> list[str]:
    """The pool of each node, as the newest report has it; empty for one that is not in the run."""
    known = {node.id: node.facts.pool for node in (state.report.nodes if state.report else ())}
    return [known.get(NodeId.known(node), "") for node in nodes]
