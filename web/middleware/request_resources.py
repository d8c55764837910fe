"""Resources of a request: its run and pools, for authorization before the route runs.

An unknown node or plan counts as the whole run's: a role on one pool is not sufficient.
"""

from collections.abc import Iterable, Sequence

from starlette.requests import HTTPConnection
from starlette.types import Scope

from astraflow.contract.fleet.plans import PlanId
from astraflow.contract.ids import NodeId
from web.database import run_records
from web.database.tables import MAX_ID
from web.live.followed_run import FollowedRun
from web.requests.dependencies import ProcessParts, get_followed_run
from web.security.request_bodies import Fields
from web.security.roles import EVERYWHERE, RequiredPermission, Resource, ResourceKind
from web.state.run_state import RunState

NODE_FIELD = "node"


class RequestResources:
    """Finds the resources of requests. One per process."""

    def __init__(self, parts: ProcessParts) -> None:
        self._parts = parts

    async def resources_of(self, scope: Scope, required: RequiredPermission, fields: Fields) -> Sequence[Resource]:
        """All resources of a request, at least one. fields: of its form."""
        if required.on is ResourceKind.EVERYTHING:
            return (EVERYWHERE,)
        if required.on is ResourceKind.LAUNCH:
            return (Resource(run=required.params["name"]),)
        if required.on is ResourceKind.RECORD:
            return (Resource(run=await self._run_of_record(required.params["run_id"])),)
        connection = HTTPConnection(scope)
        _, followed_run = get_followed_run(self._parts, connection)
        match required.on:
            case ResourceKind.POOL:
                pools = [required.params["pool"]]
            case ResourceKind.PLAN:
                pools = [await self._pool_of_plan(followed_run, required.params["plan"])]
            case ResourceKind.NODE if NODE_FIELD in required.params:
                pools = pools_of_nodes(followed_run.state, [required.params[NODE_FIELD]])
            case ResourceKind.NODE:
                nodes = (*connection.query_params.getlist(NODE_FIELD), *fields.get(NODE_FIELD, ()))
                pools = pools_of_nodes(followed_run.state, nodes)
            case _:
                pools = [""]
        return [Resource(run=followed_run.name, pool=pool) for pool in pools or [""]]

    async def _run_of_record(self, run_id: str) -> str:
        """Name of the run of a record; empty if the record is unknown, which requires a global role."""
        if not (str(run_id).isdecimal() and int(run_id) <= MAX_ID):
            return ""
        record = await self._parts.database.read(lambda session: run_records.run(session, int(run_id)))
        return record.name if record is not None else ""

    async def _pool_of_plan(self, followed_run: FollowedRun, plan: str) -> str:
        """Pool of a plan when it was made or proposed; empty if the plan is unknown."""
        known_plan = self._parts.cache.plans.get((followed_run.name, PlanId.unchecked(plan)))
        if known_plan is None:
            proposal = (await followed_run.maintainer.snapshot()).proposal(PlanId.unchecked(plan))
            known_plan = proposal.plan if proposal is not None else None
        return known_plan.request.pool if known_plan is not None else ""


def pools_of_nodes(state: RunState, nodes: Iterable[str]) -> list[str]:
    """Pool of each node in the newest report; empty for an unknown node."""
    pool_by_node = {node.id: node.facts.pool for node in (state.report.nodes if state.report else ())}
    return [pool_by_node.get(NodeId.unchecked(node), "") for node in nodes]
