"""Frame of every page: navigation, run, age of the data, chosen policy and time range."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode

from astraflow.contract.fleet.pools import FleetStatus, KillScope
from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.ids import PolicyId
from astraflow.contract.records import Record
from astraflow.contract.reports.report import Report
from web.components import formats
from web.components.live_texts import LiveText
from web.history.capacity import fleet_point
from web.history.time_ranges import DEFAULT_RANGE, NAMED_RANGES_S, TimeRange, range_from
from web.process_settings import Settings
from web.security.roles import Permission
from web.state.fleet_state import FleetState
from web.state.run_state import ConnectionState, RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class NavItem:
    """Entry of the navigation bar. Its icon is the symbol of that name in `static/icons.svg`."""

    name: str
    label: str
    path: str
    key: str
    """Key that opens the page after g."""
    required_permission: Permission = Permission.READ
    """Permission that a viewer needs to see the entry."""


NAVIGATION = (
    NavItem(name="overview", label="Overview", path="/", key="o"),
    NavItem(name="runs", label="Runs", path="/runs", key="r"),
    NavItem(name="pools", label="Pools", path="/pools", key="p"),
    NavItem(name="nodes", label="Nodes", path="/nodes", key="n"),
    NavItem(name="dataflow", label="Dataflow", path="/dataflow", key="d"),
    NavItem(name="weights", label="Weights", path="/weights", key="w"),
    NavItem(name="decisions", label="Decisions", path="/decisions", key="c"),
    NavItem(name="alerts", label="Alerts", path="/alerts", key="t"),
    NavItem(name="maintainer", label="Maintainer", path="/maintainer", key="m"),
    NavItem(name="audit", label="Audit", path="/audit", key="a", required_permission=Permission.AUDIT),
    NavItem(name="settings", label="Settings", path="/settings", key="s", required_permission=Permission.OWN),
)
"""In this order: Overview, Runs, Pools, Nodes, Dataflow, Weights, Decisions, Alerts, Maintainer, Audit, Settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkChoice:
    """One of several links, of which one is chosen."""

    label: str
    href: str
    is_chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLayout:
    """View model of the page frame."""

    run: str
    recipe: str
    dataflow: str
    simulated: tuple[str, ...]
    problems: tuple[Record, ...]
    is_durable: bool
    sequence: int
    age_s: float | None
    age_text: str
    connection: ConnectionState
    problem: str
    next_try_s: float | None
    """Seconds until the next connection attempt; None while connected or connecting."""
    is_stale: bool
    has_data: bool
    ranges: Sequence[LinkChoice] = ()
    custom: "CustomRange | None" = None
    policies: Sequence[LinkChoice] = ()
    window_s: float | None = None
    """Length of the moving time range in seconds; None for a fixed range."""
    window_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomRange:
    """Form for a custom time range, filled with the shown range."""

    path: str
    policy: str
    begin: str
    """UTC, in the format of a date field."""
    end: str
    label: str
    """Label of the custom range; empty for a moving range."""
    moving_href: str
    """Link back to a moving range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSelection:
    """Selection from the address of a page."""

    policy: PolicyId | None
    """None while no policy is known."""
    span: TimeRange

    @property
    def range(self) -> str:
        """Name of the time range."""
        return self.span.name

    @property
    def range_s(self) -> float:
        """Length of the time range in seconds."""
        return self.span.duration_s

    @property
    def query(self) -> str:
        """Selection as a query string."""
        return urlencode({"policy": self.policy or "", **self.span.query})


def page_selection(state: RunState, parameters: Mapping[str, str]) -> PageSelection:
    """Returns the policy and range of an address; the first policy and the default range where it names none."""
    policy_names = [stream.policy for stream in state.report.streams] if state.report else []
    policy = parameters.get("policy", "")
    selected = next(
        (known_id for known_id in policy_names if known_id == policy), policy_names[0] if policy_names else None
    )
    return PageSelection(policy=selected, span=range_from(parameters))


def layout(state: RunState, settings: Settings, *, path: str = "", choice: PageSelection | None = None) -> PageLayout:
    """Builds the frame; with `path` and `choice` also links to the other ranges and policies of that page."""
    report = state.report
    age_s = state.age_s
    return PageLayout(
        run=report.run if report else "",
        recipe=settings.recipe,
        dataflow=settings.dataflow,
        simulated=report.simulated if report else (),
        problems=state.problems,
        is_durable=report.is_durable if report else True,
        sequence=report.sequence if report else 0,
        age_s=age_s,
        age_text="no data yet" if age_s is None else f"{formats.duration(max(0.1, age_s))} old",
        connection=state.connection.state,
        problem=state.connection.problem,
        next_try_s=state.next_try_s,
        is_stale=state.is_stale,
        has_data=report is not None,
        ranges=_ranges(path, choice) if choice else (),
        custom=_custom(state, path, choice) if choice else None,
        policies=_policies(state, path, choice) if choice else (),
        window_s=choice.range_s if choice and choice.span.is_moving else None,
        window_name=choice.range if choice else "",
    )


def _ranges(path: str, choice: PageSelection) -> list[LinkChoice]:
    return [
        LinkChoice(
            label=name,
            href=_href(path, {"policy": choice.policy or "", "range": name}),
            is_chosen=name == choice.range,
        )
        for name in NAMED_RANGES_S
    ]


def _custom(state: RunState, path: str, choice: PageSelection) -> CustomRange:
    span, report = choice.span, state.report
    end = span.end if span.end is not None else report.at if report else 0.0
    moving = span.name if span.is_moving else DEFAULT_RANGE
    begin_text, end_text = (datetime_field_text(at) for at in (end - span.duration_s, end))
    return CustomRange(
        path=path,
        policy=choice.policy or "",
        begin=begin_text,
        end=end_text,
        label="" if span.is_moving else f"{begin_text[5:16]} to {end_text[5:16]} UTC".replace("T", " "),
        moving_href=_href(path, {"policy": choice.policy or "", "range": moving}),
    )


def datetime_field_text(at: float) -> str:
    """Returns a time in UTC, in the format of a date field."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _policies(state: RunState, path: str, choice: PageSelection) -> list[LinkChoice]:
    streams = state.report.streams if state.report else ()
    if len(streams) < 2:
        return []
    return [
        LinkChoice(
            label=stream.policy,
            href=_href(path, {"policy": stream.policy, **choice.span.query}),
            is_chosen=stream.policy == choice.policy,
        )
        for stream in streams
    ]


def _href(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urlencode({key: value for key, value in query.items() if value})}"


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
    alerts: str
    """Number of alerts that fire, in words; empty for none."""


def header_view(report: Report | None, fleet: FleetState, *, alerts: int) -> HeaderView:
    """Builds the header from the newest report and status. Without a fleet service, modes are those of the sizer.

    alerts: number of alerts that fire, of all runs.
    """
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
        alerts=formats.several(alerts, "alert") if alerts else "",
    )


def header_texts(top: HeaderView) -> dict[str, LiveText]:
    """Returns the header as live texts."""
    return {
        "frame/mode": LiveText(text=top.mode or formats.MISSING),
        "frame/cost": LiveText(text=top.cost),
        "frame/waiting": LiveText(text=top.waiting),
        "frame/alerts": LiveText(text=top.alerts, tone="bad" if top.alerts else ""),
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
