"""The fleet service, its pools, and one of them, as pages show them."""

from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.contract.advice import Mode
from astraflow.contract.causes import Cause
from astraflow.contract.fleet import InstanceState, KillScope, Pool
from web.feed.fleet_state import FleetFeed, FleetState
from web.present import formats
from web.present.causes import counted
from web.present.fleet import show_command, start_command
from web.reading.exports import Sheet
from web.settings import Settings

PENDING = (InstanceState.INTENDED, InstanceState.PENDING, InstanceState.RUNNING)
LEAVING = (InstanceState.DRAINING, InstanceState.RETIRING)

MODE_TEXTS = {
    Mode.OFF: "only people change it",
    Mode.ADVISE: "the rule's target is shown; people act",
    Mode.UP_ONLY: "the rule is followed upwards",
    Mode.ON: "the rule is followed",
}
MODE_TONES = {Mode.OFF: "off", Mode.ADVISE: "busy", Mode.UP_ONLY: "good", Mode.ON: "good"}

KILL_TEXTS = {
    KillScope.NONE: "off",
    KillScope.AGENTS: "on for programs",
    KillScope.ALL: "on for everybody",
}

COLUMNS = (
    "pool",
    "mode",
    "ready",
    "pending",
    "leaving",
    "target",
    "min_nodes",
    "max_nodes",
    "rule_target",
    "usd_per_hour",
    "usd_today",
    "launch_delay_s",
    "state",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRow:
    """One line of the table of pools."""

    id: str
    mode: str
    mode_tone: str
    ready: int
    pending: int
    leaving: int
    target: int
    bounds: str
    rule: str
    usd_per_hour: str
    usd_today: str
    delay: str
    state: str
    tone: str
    simulated: tuple[str, ...]
    losses: str
    """Nodes that went within the last hour without having been asked; empty for none."""
    segments: tuple[tuple[str, float, float], ...]
    """Bar of the pool's size: kind, start and width in per cent of `max_nodes`."""
    target_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """The fleet service as a whole."""

    feed: str
    problem: str
    age: str
    is_stale: bool
    next_try_at: float | None
    """Unix seconds at which a service that did not answer is asked again."""
    address: str
    start_command: str
    show_command: str
    cluster: str = ""
    usd_per_hour: str = formats.MISSING
    usd_today: str = formats.MISSING
    kill: str = ""
    kill_text: str = ""
    kill_reason: str = ""
    swept_at: float | None = None
    orphans: int = 0
    troubles: tuple[str, ...] = ()
    rows: tuple[PoolRow, ...] = ()
    nodes: str = ""
    finding: str = ""
    finding_tone: str = ""

    @property
    def has_status(self) -> bool:
        """Whether the service was heard."""
        return bool(self.cluster)


def fleet_view(state: FleetState, settings: Settings, *, now: float) -> FleetView:
    """The service, its figures and its pools. now: Unix seconds."""
    status, age_s = state.status, state.age_s
    known = FleetView(
        feed=state.feed.value,
        problem=state.problem,
        age="" if age_s is None else formats.duration(max(0.1, age_s)),
        is_stale=state.feed is not FleetFeed.ABSENT and state.is_stale,
        next_try_at=None if (next_s := state.next_try_s) is None else now + next_s,
        address=settings.fleet,
        start_command=start_command(settings),
        show_command=show_command(settings),
    )
    if status is None:
        return known
    rows = tuple(pool_row(pool, now=now) for pool in status.pools)
    finding, tone = _finding(status.kill, rows, status.troubles)
    return FleetView(
        feed=known.feed,
        problem=known.problem,
        age=known.age,
        is_stale=known.is_stale,
        next_try_at=known.next_try_at,
        address=known.address,
        start_command=known.start_command,
        show_command=known.show_command,
        cluster=status.cluster,
        usd_per_hour=usd(status.usd_per_hour),
        usd_today=usd(status.usd_today),
        kill=status.kill.value,
        kill_text=KILL_TEXTS[status.kill],
        kill_reason=status.kill_reason,
        swept_at=status.last_sweep_at,
        orphans=status.orphans,
        troubles=status.troubles,
        rows=rows,
        nodes=f"{sum(row.ready for row in rows)} of {sum(row.target for row in rows)}",
        finding=finding,
        finding_tone=tone,
    )


def pool_row(pool: Pool, *, now: float) -> PoolRow:
    """A pool for the table."""
    counts = {
        "ready": pool.nodes.get(InstanceState.READY, 0),
        "pending": sum(pool.nodes.get(state, 0) for state in PENDING),
        "leaving": sum(pool.nodes.get(state, 0) for state in LEAVING),
        "suspect": pool.nodes.get(InstanceState.SUSPECT, 0),
    }
    widest = max(1, pool.spec.max_nodes, pool.target, sum(counts.values()))
    segments, start = [], 0.0
    for kind, number in counts.items():
        segments.append((kind, start, 100 * number / widest))
        start += 100 * number / widest
    state, tone = pool_state(pool, now=now)
    return PoolRow(
        id=pool.spec.id,
        mode=pool.spec.mode.value,
        mode_tone=MODE_TONES[pool.spec.mode],
        ready=counts["ready"],
        pending=counts["pending"],
        leaving=counts["leaving"],
        target=pool.target,
        bounds=f"{pool.spec.min_nodes} to {pool.spec.max_nodes}",
        rule=formats.count(pool.rule_target),
        usd_per_hour=usd(pool.usd_per_hour),
        usd_today=usd(pool.usd_today),
        delay=formats.duration(pool.launch_delay_s),
        state=state,
        tone=tone,
        simulated=pool.simulated,
        losses=counted(pool.losses),
        segments=tuple(segment for segment in segments if segment[2]),
        target_at=min(100.0, 100 * pool.target / widest),
    )


def pool_state(pool: Pool, *, now: float) -> tuple[str, str]:
    """How a pool stands, in a few words, and how good that is."""
    there = sum(number for state, number in pool.nodes.items() if state not in LEAVING)
    pending = sum(pool.nodes.get(state, 0) for state in PENDING)
    if pool.breaker_until is not None:
        return f"launches fail: next try in {formats.duration(max(0.0, pool.breaker_until - now))}", "bad"
    if pool.nodes.get(InstanceState.SUSPECT, 0):
        return f"{formats.several(pool.nodes[InstanceState.SUSPECT], 'machine')} to look at", "bad"
    if pool.hold_until is not None:
        return f"held for {formats.duration(max(0.0, pool.hold_until - now))}", "warn"
    if pending:
        return f"{formats.several(pending, 'machine')} on the way", "busy"
    if there < pool.target:
        return f"{formats.several(pool.target - there, 'machine')} missing", "warn"
    if any(pool.nodes.get(state, 0) for state in LEAVING):
        unasked: dict[Cause, int] = {**pool.leaving}
        unasked.pop(Cause.ORDERED, None)
        return f"draining: {counted(unasked)}" if unasked else "draining", "warn"
    return ("as it should be", "good") if pool.target else ("empty, as planned", "off")


def pool_sheet(pools: Sequence[Pool], *, now: float) -> Sheet:
    """What the table shows, to take away."""
    rows = []
    for pool in pools:
        row = pool_row(pool, now=now)
        rows.append(
            (
                row.id,
                row.mode,
                row.ready,
                row.pending,
                row.leaving,
                row.target,
                pool.spec.min_nodes,
                pool.spec.max_nodes,
                pool.rule_target,
                round(pool.usd_per_hour, 4),
                round(pool.usd_today, 4),
                round(pool.launch_delay_s, 1),
                row.state,
            )
        )
    return Sheet(name="astraflow-pools", columns=COLUMNS, rows=rows)


def usd(value: float | None) -> str:
    """US dollars.

    >>> usd(0), usd(0.004), usd(2.5), usd(1234.5)
    ('$0', '$0.0040', '$2.50', '$1,234')
    """
    if value is None:
        return formats.MISSING
    if value == 0:
        return "$0"
    digits = 0 if abs(value) >= 1000 else 2 if abs(value) >= 0.01 else 4
    return f"${value:,.{digits}f}".replace("$-", "\N{MINUS SIGN}$")


def _finding(kill: KillScope, rows: Sequence[PoolRow], troubles: Sequence[str]) -> tuple[str, str]:
    if kill is not KillScope.NONE:
        return f"The kill switch is {KILL_TEXTS[kill]}", "bad"
    if troubles:
        return "Something needs a person", "bad"
    bad = [row.id for row in rows if row.tone == "bad"]
    if bad:
        return f"Pool {bad[0]} needs a look", "bad"
    moving = [row.id for row in rows if row.tone in ("busy", "warn")]
    if moving:
        return f"Pool {moving[0]} is changing" if len(moving) == 1 else f"{len(moving)} pools are changing", "warn"
    return ("Every pool is as it should be", "good") if rows else ("No pool was made yet", "warn")
