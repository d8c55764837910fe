"""The providers of a run's fleet service as a page asks for them: there, not there, or not answering."""

from dataclasses import dataclass

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.rehearsals import ProviderFacts
from web.feed.fleet_state import FleetFeed
from web.parts import Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvidersLook:
    """One look at them."""

    feed: FleetFeed
    """Of the fleet service, which is asked only while it is heard: a page does not wait for what is away."""
    providers: tuple[ProviderFacts, ...] = ()
    problem: str = ""
    """Why nothing is known of them; empty when they are."""


async def look(parts: Parts) -> ProvidersLook:
    """Ask for them. A failure is part of what is seen, never raised."""
    feed = parts.fleet_state.feed
    if parts.fleet is None or feed is not FleetFeed.LIVE:
        return ProvidersLook(feed=feed, problem=parts.fleet_state.problem)
    try:
        return ProvidersLook(feed=feed, providers=await parts.fleet.providers())
    except AstraFlowError as problem:
        return ProvidersLook(feed=feed, problem=str(problem))
