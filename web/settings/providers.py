"""Providers on the settings page, with the result of their preflight checks."""

from dataclasses import dataclass

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet.preflight import CheckKind, PreflightResult, ProviderFacts
from web.components import formats
from web.live.followed_fleet import FollowedFleet
from web.process_settings import Settings
from web.state.fleet_state import FleetConnection

_STATES = {FleetConnection.ABSENT: "absent", FleetConnection.CONNECTING: "connecting"}

QUESTIONS = {
    CheckKind.LIST: "Can instances be listed",
    CheckKind.LAUNCH: "Can an instance be started",
    CheckKind.PRICE: "Is the price known",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvidersView:
    """All providers, or the reason why none are listed."""

    state: str
    """`recorded`, `absent`, `connecting`, `unreachable`, `failed` or `connected`."""
    settings: Settings
    problem: str = ""
    """Reason why the providers are unknown; empty if they are known."""
    rows: tuple[ProviderFacts, ...] = ()

    @property
    def is_refreshing(self) -> bool:
        """Whether the page reloads by itself."""
        return self.state in ("connecting", "unreachable", "failed")


async def providers_view(fleet: FollowedFleet) -> ProvidersView:
    """Queries the providers. Only a live fleet service is asked: a page does not wait for an unreachable one. A failure
    is part of the result, never raised."""
    settings, connection = fleet.settings, fleet.state.connection
    if settings.is_read_only:
        return ProvidersView(state="recorded", settings=settings)
    if fleet.client is None or connection is not FleetConnection.LIVE:
        return ProvidersView(
            state=_STATES.get(connection, "unreachable"), settings=settings, problem=fleet.state.problem
        )
    try:
        return ProvidersView(state="connected", settings=settings, rows=await fleet.client.providers())
    except AstraFlowError as problem:
        return ProvidersView(state="failed", settings=settings, problem=str(problem))


def outcome(preflight_result: PreflightResult) -> str:
    """Returns a preflight check in a few words: `all 3 checks passed`, `1 of 3 checks failed`."""
    failed, total = sum(1 for check in preflight_result.checks if not check.is_ok), len(preflight_result.checks)
    return f"{failed} of {formats.several(total, 'check')} failed" if failed else f"all {total} checks passed"
