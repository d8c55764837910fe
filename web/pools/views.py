"""Pools page: the fleet service, the table of pools, and the state of each."""

from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.contract.fleet.instances import Cause, InstanceState
from astraflow.contract.fleet.pools import FleetStatus, KillScope, Pool
from astraflow.contract.fleet.recommendations import Mode
from web.components import formats
from web.components.downloads import Sheet
from web.components.texts import cause_counts
from web.live.followed_fleet import FollowedFleet
from web.process_settings import Settings
from web.state.fleet_state import FleetConnection

PENDING = (InstanceState.INTENDED, InstanceState.PENDING, InstanceState.RUNNING)
TERMINATING = (InstanceState.DRAINING, InstanceState.RETIRING)

MODE_TEXTS = {
    Mode.OFF: "changed by people only",
    Mode.ADVISE: "recommendations are shown, not applied",
    Mode.UP_ONLY: "raised to the rule's target, never lowered",
    Mode.ON: "follows the rule's target",
}
MODE_TONES = {Mode.OFF: "off", Mode.ADVISE: "busy", Mode.UP_ONLY: "good", Mode.ON: "good"}

KILL_TEXTS = {
    KillScope.NONE: "off",
    KillScope.AGENTS: "on for agents",
    KillScope.ALL: "on for all",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRow:
    """One line of the table of pools."""

    pool: Pool
    mode_tone: str
    mode_title: str
    """Meaning of the mode."""
    ready: int
    pending: int
    terminating: int
    state: str
    tone: str
    segments: tuple[tuple[str, float, float], ...]
    """Bar of the pool's size: kind, start and width in per cent of the widest value."""
    target_at: float

    @property
    def losses(self) -> str:
        """Nodes lost or preempted within the last hour, by cause; empty for none."""
        return cause_counts(self.pool.losses)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """Fleet service and its pools."""

    connection: str
    problem: str
    age: str
    is_stale: bool
    next_try_at: float | None
    """Time of the next connection attempt in Unix seconds; None while connected."""
    settings: Settings
    status: FleetStatus | None
    """None until the service has answered."""
    rows: tuple[PoolRow, ...]

    @property
    def kill_text(self) -> str:
        """State of the kill switch, in words."""
        return "" if self.status is None else KILL_TEXTS[self.status.kill]

    @property
    def insight(self) -> tuple[str, str]:
        """State of all pools as a sentence, with its tone."""
        if self.status is None:
            return "", ""
        return _insight(self.status, self.rows)


def fleet_view(fleet: FollowedFleet) -> FleetView:
    """Builds the view."""
    state, now = fleet.state, fleet.now
    status, age_s = state.status, state.age_s
    return FleetView(
        connection=state.connection.value,
        problem=state.problem,
        age="" if age_s is None else formats.duration(max(0.1, age_s)),
        is_stale=state.connection is not FleetConnection.ABSENT and state.is_stale,
        next_try_at=None if (next_s := state.next_try_s) is None else now + next_s,
        settings=fleet.settings,
        status=status,
        rows=tuple(pool_row(pool, now=now, kill=status.kill) for pool in status.pools) if status is not None else (),
    )


def pool_row(pool: Pool, *, now: float, kill: KillScope = KillScope.NONE) -> PoolRow:
    """Returns the table row of a pool. kill: scope of the kill switch."""
    counts = {
        "ready": pool.nodes.get(InstanceState.READY, 0),
        "pending": sum(pool.nodes.get(state, 0) for state in PENDING),
        "terminating": sum(pool.nodes.get(state, 0) for state in TERMINATING),
        "suspect": pool.nodes.get(InstanceState.SUSPECT, 0),
    }
    widest = max(1, pool.spec.max_nodes, pool.target, sum(counts.values()))
    segments, start = [], 0.0
    for kind, number in counts.items():
        segments.append((kind, start, 100 * number / widest))
        start += 100 * number / widest
    state, tone = pool_state(pool, now=now, kill=kill)
    return PoolRow(
        pool=pool,
        mode_title=MODE_TEXTS[pool.spec.mode],
        mode_tone="off" if kill is KillScope.ALL else MODE_TONES[pool.spec.mode],
        ready=counts["ready"],
        pending=counts["pending"],
        terminating=counts["terminating"],
        state=state,
        tone=tone,
        segments=tuple(segment for segment in segments if segment[2]),
        target_at=min(100.0, 100 * pool.target / widest),
    )


def pool_state(pool: Pool, *, now: float, kill: KillScope = KillScope.NONE) -> tuple[str, str]:
    """Returns the state of a pool in a few words, with its tone. kill: scope of the kill switch."""
    if kill is KillScope.ALL:
        return "stopped by the kill switch", "warn"
    current = sum(number for state, number in pool.nodes.items() if state not in TERMINATING)
    pending = sum(pool.nodes.get(state, 0) for state in PENDING)
    if pool.breaker_until is not None:
        return f"launches failing, retry in {formats.duration(max(0.0, pool.breaker_until - now))}", "bad"
    if pool.nodes.get(InstanceState.SUSPECT, 0):
        return f"{formats.several(pool.nodes[InstanceState.SUSPECT], 'instance')} unhealthy", "bad"
    if pool.hold_until_at is not None:
        return f"held for {formats.duration(max(0.0, pool.hold_until_at - now))}", "warn"
    if pending:
        return f"scaling up: {formats.count(pending)} pending", "busy"
    if current < pool.target:
        return f"{formats.several(pool.target - current, 'node')} below target", "warn"
    if any(pool.nodes.get(state, 0) for state in TERMINATING):
        unrequested: dict[Cause, int] = {**pool.terminating}
        unrequested.pop(Cause.REQUESTED, None)
        return f"draining: {cause_counts(unrequested)}" if unrequested else "draining", "warn"
    return ("at target", "good") if pool.target else ("scaled to zero", "off")


def pool_sheet(pools: Sequence[Pool], *, now: float) -> Sheet:
    """Returns the table of pools as a sheet for download."""
    return Sheet.of(
        "astraflow-pools",
        (pool_row(pool, now=now) for pool in pools),
        {
            "pool": lambda row: row.pool.spec.id,
            "mode": lambda row: row.pool.spec.mode.value,
            "ready": lambda row: row.ready,
            "pending": lambda row: row.pending,
            "terminating": lambda row: row.terminating,
            "target": lambda row: row.pool.target,
            "min_nodes": lambda row: row.pool.spec.min_nodes,
            "max_nodes": lambda row: row.pool.spec.max_nodes,
            "rule_target": lambda row: row.pool.rule_target,
            "usd_per_hour": lambda row: round(row.pool.usd_per_hour, 4),
            "usd_today": lambda row: round(row.pool.usd_today, 4),
            "launch_delay_s": lambda row: round(row.pool.launch_delay_s, 1),
            "state": lambda row: row.state,
        },
    )


def _insight(status: FleetStatus, rows: Sequence[PoolRow]) -> tuple[str, str]:
    if status.kill is not KillScope.NONE:
        return f"The kill switch is {KILL_TEXTS[status.kill]}", "bad"
    if status.problems:
        return "The fleet needs attention", "bad"
    bad = [row.pool.spec.id for row in rows if row.tone == "bad"]
    if bad:
        return f"Pool {bad[0]} needs attention", "bad"
    moving = [row.pool.spec.id for row in rows if row.tone in ("busy", "warn")]
    if moving:
        return f"Pool {moving[0]} is changing" if len(moving) == 1 else f"{len(moving)} pools are changing", "warn"
    return ("All pools are at target", "good") if rows else ("No pool yet", "warn")
