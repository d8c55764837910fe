"""Providers on the settings page, with the result of their preflight checks."""

from dataclasses import dataclass

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet.preflight import CheckKind, PreflightResult, ProviderFacts
from web.components import formats
from web.live.followed_fleet import FollowedFleet
from web.process_settings import Settings, start_command, web_command
from web.state.fleet_state import FleetConnection


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvidersSnapshot:
    """Providers at one time."""

    feed: FleetConnection
    """Connection to the fleet service, which is queried only while live: a page does not wait for an unreachable
    one."""
    providers: tuple[ProviderFacts, ...] = ()
    problem: str = ""
    """Reason why the providers are unknown; empty if they are known."""


QUESTIONS = {
    CheckKind.LIST: "Can instances be listed",
    CheckKind.LAUNCH: "Can an instance be started",
    CheckKind.PRICE: "Is the price known",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvidersView:
    """All providers, or the reason why none are listed."""

    state: str
    """`recorded`, `absent`, `asking`, `away`, `failed` or `there`."""
    address: str
    problem: str
    start_command: str
    web_command: str
    rows: tuple[ProviderFacts, ...]

    @property
    def is_refreshing(self) -> bool:
        """Whether the page reloads by itself."""
        return self.state in ("connecting", "unreachable", "failed")


def providers_view(look: ProvidersSnapshot, settings: Settings) -> ProvidersView:
    """Builds the view from a snapshot."""
    return ProvidersView(
        state="recorded" if settings.is_read_only else _state(look),
        address=settings.fleet,
        problem=look.problem,
        start_command=start_command(settings),
        web_command=web_command(settings),
        rows=look.providers,
    )


def outcome(preflight_result: PreflightResult) -> str:
    """Returns a preflight check in a few words: `all 3 checks passed`, `1 of 3 checks failed`."""
    failed, total = sum(1 for check in preflight_result.checks if not check.is_ok), len(preflight_result.checks)
    return f"{failed} of {formats.several(total, 'check')} failed" if failed else f"all {total} checks passed"


def _state(look: ProvidersSnapshot) -> str:
    if look.feed is FleetConnection.ABSENT:
        return "absent"
    if look.feed is not FleetConnection.LIVE:
        return "connecting" if look.feed is FleetConnection.CONNECTING else "unreachable"
    return "failed" if look.problem else "connected"


async def look(fleet: FollowedFleet) -> ProvidersSnapshot:
    """Queries the providers. A failure is part of the result, never raised."""
    connection = fleet.state.connection
    if fleet.client is None or connection is not FleetConnection.LIVE:
        return ProvidersSnapshot(feed=connection, problem=fleet.state.problem)
    try:
        return ProvidersSnapshot(feed=connection, providers=await fleet.client.providers())
    except AstraFlowError as problem:
        return ProvidersSnapshot(feed=connection, problem=str(problem))
