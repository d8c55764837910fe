"""Fleet part of the page header: mode, cost, kill switch and waiting proposals."""

from dataclasses import dataclass

from astraflow.contract.fleet.pools import FleetStatus, KillScope
from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.reports.report import Report
from web.components import formats
from web.components.live_texts import LiveText
from web.history.capacity import fleet_point
from web.state.fleet_state import FleetState

MODE_TEXTS = {
    Mode.OFF: "No recommendations: people alone change the size of pools",
    Mode.ADVISE: "Recommendations are shown, not applied",
    Mode.UP_ONLY: "Targets are raised automatically, never lowered",
    Mode.ON: "Targets are applied automatically",
}
"""Meaning of each mode."""

MIXED_MODES = "Pools have different modes"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderView:
    """Fleet part of the header."""

    cluster: str
    """Cluster tag; empty without a fleet service."""
    mode: str
    """Mode of all pools; empty while no pool is known."""
    mode_title: str
    cost: str
    kill: str
    """Scope of the kill switch: `agents` or `all`; empty while it is off."""
    kill_reason: str
    has_fleet: bool
    waiting: str
    """Number of proposals that wait for approval, in words; empty for none."""


def header_view(report: Report | None, fleet: FleetState) -> HeaderView:
    """Builds the header from the newest report and status. Without a fleet service, modes are those of the sizer."""
    status = fleet.status
    mode, title = _mode(report, status)
    dollars = (status.usd_per_hour if status else 0.0) or (fleet_point(report).dollars if report else None)
    kill = status.kill if status else KillScope.NONE
    return HeaderView(
        cluster=status.cluster if status else "",
        mode=mode,
        mode_title=title,
        cost=f"{formats.dollars(dollars)}/h" if dollars else formats.MISSING,
        kill="" if kill is KillScope.NONE else kill.value,
        kill_reason=status.kill_reason if status else "",
        has_fleet=status is not None,
        waiting=_waiting(status.waiting) if status is not None and status.waiting else "",
    )


def header_texts(top: HeaderView) -> dict[str, LiveText]:
    """Returns the header as live texts."""
    return {
        "frame/mode": LiveText(text=top.mode or formats.MISSING),
        "frame/cost": LiveText(text=top.cost),
        "frame/waiting": LiveText(text=top.waiting),
    }


def _waiting(proposals: int) -> str:
    return f"{proposals} {'waits' if proposals == 1 else 'wait'}"


def _mode(report: Report | None, status: FleetStatus | None) -> tuple[str, str]:
    if status is not None:
        modes = {pool.spec.mode for pool in status.pools}
    else:
        modes = {recommendation.mode for recommendation in report.recommendations} if report else set()
    if not modes:
        return "", "No pool yet"
    if len(modes) > 1:
        return "mixed", MIXED_MODES
    (mode,) = modes
    return mode.value, MODE_TEXTS[mode]
