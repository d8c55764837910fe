"""What the bar above every page says about the fleet: who may act on it, what it costs, and whether it is stopped."""

from dataclasses import dataclass

from astraflow.contract.advice import Mode
from astraflow.contract.fleet import FleetStatus, KillScope
from astraflow.contract.reports import Report
from web.feed.capacity import fleet_point
from web.feed.fleet_state import FleetState
from web.present import formats
from web.present.cells import Cell

MODES = {
    Mode.OFF: "Nothing is suggested: people alone change the size of pools",
    Mode.ADVISE: "Sizes are suggested; nothing acts on them by itself",
    Mode.UP_ONLY: "Targets are followed upwards; nothing is taken away by itself",
    Mode.ON: "Targets are followed",
}
"""What each mode means, for people."""

MIXED = "Pools have different modes"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopBar:
    """The fleet's part of the bar."""

    cluster: str
    """Its tag; empty without a fleet service."""
    mode: str
    """Empty while no pool is known."""
    mode_title: str
    cost: str
    kill: str
    """Scope of the kill switch: `agents` or `all`; empty while it is off."""
    kill_reason: str
    has_fleet: bool
    waiting: str
    """How many proposals wait for a person; empty for none."""


def top_bar(report: Report | None, fleet: FleetState) -> TopBar:
    """The bar as of the newest report and status. Without a fleet service, modes are those of dataflow's advice."""
    status = fleet.status
    mode, title = _mode(report, status)
    dollars = (status.usd_per_hour if status else 0.0) or (fleet_point(report).dollars if report else None)
    kill = status.kill if status else KillScope.NONE
    return TopBar(
        cluster=status.cluster if status else "",
        mode=mode,
        mode_title=title,
        cost=f"{formats.dollars(dollars)}/h" if dollars else formats.MISSING,
        kill="" if kill is KillScope.NONE else kill.value,
        kill_reason=status.kill_reason if status else "",
        has_fleet=status is not None,
        waiting=_waiting(status.waiting) if status is not None and status.waiting else "",
    )


def top_cells(top: TopBar) -> dict[str, Cell]:
    """The same as live texts."""
    return {
        "frame/mode": Cell(text=top.mode or formats.MISSING),
        "frame/cost": Cell(text=top.cost),
        "frame/waiting": Cell(text=top.waiting),
    }


def _waiting(proposals: int) -> str:
    return f"{proposals} {'waits' if proposals == 1 else 'wait'}"


def _mode(report: Report | None, status: FleetStatus | None) -> tuple[str, str]:
    if status is not None:
        modes = {pool.spec.mode for pool in status.pools}
    else:
        modes = {advised.mode for advised in report.advice} if report else set()
    if not modes:
        return "", "No pool is known yet"
    if len(modes) > 1:
        return "mixed", MIXED
    (mode,) = modes
    return mode.value, MODES[mode]
