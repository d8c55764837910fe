"""Where machines come from, and whether each would give one: what the settings page shows of providers."""

from dataclasses import dataclass

from astraflow.contract.rehearsals import Check, CheckKind, ProviderFacts, Rehearsal
from web.acts.providers import ProvidersLook
from web.feed.fleet_state import FleetFeed
from web.present import formats
from web.present.fleet import show_command, start_command
from web.settings import Settings

QUESTIONS = {
    CheckKind.LIST: "Can its machines be listed",
    CheckKind.LAUNCH: "Would a machine be started",
    CheckKind.PRICE: "Is the price known",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """One check of a test."""

    question: str
    pool: str
    tone: str
    answer: str
    message: str
    to_do: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRow:
    """A provider, and what its latest test found."""

    name: str
    kind: str
    pools: tuple[str, ...]
    simulated: tuple[str, ...]
    has_spot: bool
    state: str
    tone: str
    tested_at: float | None = None
    tested_by: str = ""
    took: str = ""
    checks: tuple[CheckRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvidersView:
    """All of them, or why there are none."""

    state: str
    """`recorded`, `absent`, `asking`, `away`, `failed` or `there`."""
    address: str
    problem: str
    start_command: str
    show_command: str
    rows: tuple[ProviderRow, ...]

    @property
    def is_asked_again(self) -> bool:
        """Whether the page looks again by itself."""
        return self.state in ("asking", "away", "failed")


def providers_view(look: ProvidersLook, settings: Settings) -> ProvidersView:
    """What was seen."""
    return ProvidersView(
        state="recorded" if settings.is_read_only else _state(look),
        address=settings.fleet,
        problem=look.problem,
        start_command=start_command(settings),
        show_command=show_command(settings),
        rows=tuple(provider_row(provider) for provider in look.providers),
    )


def provider_row(provider: ProviderFacts) -> ProviderRow:
    """One of them."""
    last = provider.last
    known = ProviderRow(
        name=provider.name,
        kind=provider.kind,
        pools=tuple(str(pool) for pool in provider.pools),
        simulated=provider.simulated,
        has_spot=provider.has_spot,
        state="not tested yet",
        tone="off",
    )
    return known if last is None else _tested(known, last)


def outcome(rehearsal: Rehearsal) -> str:
    """A test in a few words: `all 3 checks passed`, `1 of 3 checks failed`."""
    failed, of_all = sum(1 for check in rehearsal.checks if not check.is_ok), len(rehearsal.checks)
    return f"{failed} of {formats.several(of_all, 'check')} failed" if failed else f"all {of_all} checks passed"


def _state(look: ProvidersLook) -> str:
    if look.feed is FleetFeed.ABSENT:
        return "absent"
    if look.feed is not FleetFeed.LIVE:
        return "asking" if look.feed is FleetFeed.CONNECTING else "away"
    return "failed" if look.problem else "there"


def _tested(known: ProviderRow, last: Rehearsal) -> ProviderRow:
    return ProviderRow(
        name=known.name,
        kind=known.kind,
        pools=known.pools,
        simulated=known.simulated,
        has_spot=known.has_spot,
        state=outcome(last),
        tone="good" if last.is_ok else "bad",
        tested_at=last.began_at + last.took_s,
        tested_by=last.by,
        took=formats.duration(max(0.1, last.took_s)),
        checks=tuple(_check_row(check) for check in last.checks),
    )


def _check_row(check: Check) -> CheckRow:
    return CheckRow(
        question=QUESTIONS[check.kind],
        pool=str(check.pool or ""),
        tone="good" if check.is_ok else "bad",
        answer="Yes" if check.is_ok else "No",
        message=check.message,
        to_do=check.to_do,
    )
