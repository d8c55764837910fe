"""Providers on the settings page, with the result of their preflight checks."""

from dataclasses import dataclass

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet.preflight import CheckKind, PreflightCheck, PreflightResult, ProviderFacts
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
class CheckRow:
    """One check of a preflight check."""

    kind: str
    """`list`, `launch` or `price`."""
    question: str
    pool: str
    tone: str
    answer: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRow:
    """A provider with the result of its latest preflight check."""

    name: str
    kind: str
    pools: tuple[str, ...]
    simulated: tuple[str, ...]
    has_spot: bool
    state: str
    tone: str
    tested_at: float | None = None
    tested_by: str = ""
    duration: str = ""
    checks: tuple[CheckRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvidersView:
    """All providers, or the reason why none are listed."""

    state: str
    """`recorded`, `absent`, `asking`, `away`, `failed` or `there`."""
    address: str
    problem: str
    start_command: str
    web_command: str
    rows: tuple[ProviderRow, ...]

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
        rows=tuple(provider_row(provider) for provider in look.providers),
    )


def provider_row(provider: ProviderFacts) -> ProviderRow:
    """Returns the row of a provider."""
    preflight = provider.last_preflight
    untested = ProviderRow(
        name=provider.name,
        kind=provider.kind,
        pools=tuple(str(pool) for pool in provider.pools),
        simulated=provider.simulated,
        has_spot=provider.has_spot,
        state="not checked yet",
        tone="off",
    )
    return untested if preflight is None else _tested(untested, preflight)


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


def _tested(provider_row: ProviderRow, last: PreflightResult) -> ProviderRow:
    return ProviderRow(
        name=provider_row.name,
        kind=provider_row.kind,
        pools=provider_row.pools,
        simulated=provider_row.simulated,
        has_spot=provider_row.has_spot,
        state=outcome(last),
        tone="good" if last.is_ok else "bad",
        tested_at=last.began_at + last.duration_s,
        tested_by=last.requested_by,
        duration=formats.duration(max(0.1, last.duration_s)),
        checks=tuple(_check_row(check) for check in last.checks),
    )


def _check_row(check: PreflightCheck) -> CheckRow:
    return CheckRow(
        kind=check.kind.value,
        question=QUESTIONS[check.kind],
        pool=str(check.pool or ""),
        tone="good" if check.is_ok else "bad",
        answer="Yes" if check.is_ok else "No",
        message=check.message,
        remedy=check.remedy,
    )


async def look(fleet: FollowedFleet) -> ProvidersSnapshot:
    """Queries the providers. A failure is part of the result, never raised."""
    connection = fleet.state.connection
    if fleet.client is None or connection is not FleetConnection.LIVE:
        return ProvidersSnapshot(feed=connection, problem=fleet.state.problem)
    try:
        return ProvidersSnapshot(feed=connection, providers=await fleet.client.providers())
    except AstraFlowError as problem:
        return ProvidersSnapshot(feed=connection, problem=str(problem))
