"""Providers of a run's fleet service, with the state of the connection."""

from dataclasses import dataclass

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.preflight import ProviderFacts
from web.live.fleet_state import FleetConnection
from web.request_context import RequestContext


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvidersSnapshot:
    """Providers at one time."""

    feed: FleetConnection
    """Connection to the fleet service, which is queried only while live: a page does not wait for an unreachable
    one."""
    providers: tuple[ProviderFacts, ...] = ()
    problem: str = ""
    """Reason why the providers are unknown; empty if they are known."""


async def look(context: RequestContext) -> ProvidersSnapshot:
    """Queries the providers. A failure is part of the result, never raised."""
    connection = context.fleet_state.connection
    if context.fleet is None or connection is not FleetConnection.LIVE:
        return ProvidersSnapshot(feed=connection, problem=context.fleet_state.problem)
    try:
        return ProvidersSnapshot(feed=connection, providers=await context.fleet.providers())
    except AstraFlowError as problem:
        return ProvidersSnapshot(feed=connection, problem=str(problem))
