"""Actions of the command palette. None acts at once: each leads to a form, or to a page that asks first."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from astraflow.client.local_runs import LocalRun
from astraflow.contract.launching import RecipeCard
from astraflow.contract.reports.report import NodeState, Report
from astraflow.runtime.folders.run_metadata import RunMetadata
from web.accounts.viewer import Viewer
from web.components.live_texts import visible_nodes
from web.database.tables import RunRecord
from web.security.roles import Permission

ASKS = "asks first"
"""Hint of an action whose page asks before it acts."""

CHOSEN_FIRST = (("Drain a node", "/nodes"), ("Stop a run", "/runs"))
"""Actions on what a page lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaletteEntry:
    """Entry of the palette."""

    group: str
    label: str
    href: str
    hint: str = ""
    keys: str = ""
    """Keys with the same effect."""
    press: str = ""
    """`data-key` of a control that is pressed instead of following the link, on pages that have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaletteSources:
    """Entries of the palette besides pages."""

    report: Report | None
    """Newest report of the followed run; None before the first."""
    runs: Sequence[tuple[RunRecord, RunMetadata]]
    launches: Sequence[LocalRun] = ()
    recipes: Sequence[RecipeCard] = ()
    has_fleet: bool = False
    run_id: int | None = None
    """Record of the followed run; None before the first report."""


def actions(viewer: Viewer, sources: PaletteSources) -> list[PaletteEntry]:
    """Returns the actions that the viewer may do."""
    may_launch = viewer.may(Permission.OPERATE)
    may_operate = viewer.may(Permission.OPERATE, run=sources.report.run if sources.report else "")
    return [
        *([_action("New run", "/runs/new", hint="launch a recipe")] if may_launch else []),
        _action("Live or paused", "", keys="l", press="l"),
        _action("Export this view", "", keys="e", press="e", hint="CSV, JSON"),
        _action("Next theme", "/settings", keys="t", press="t", hint="light, dark"),
        _action("Keys", "/keys", keys="?", press="?", hint="keyboard shortcuts"),
        *([_action("New alert", "/alerts/new", hint="a rule on a metric or finding")] if may_operate else []),
        *(_run_actions(sources) if may_launch else ()),
        *(_flow_actions(sources.report) if may_operate else ()),
        *([_action(label, href, hint="choose it first") for label, href in CHOSEN_FIRST]
          if may_operate else []),
        *(_fleet_actions(viewer, sources) if sources.has_fleet else ()),
    ]  # fmt: skip


def node_actions(viewer: Viewer, report: Report | None) -> list[PaletteEntry]:
    """Returns the action of each node that the viewer may drain."""
    if report is None:
        return []
    return [
        PaletteEntry(
            group="Node action",
            label=f"Drain node {node.facts.name}",
            href=f"/nodes/{quote(node.id, safe='')}/drain",
            hint=f"{node.facts.pool}, {ASKS}",
        )
        for node in visible_nodes(report)
        if node.state is NodeState.READY and viewer.may(Permission.OPERATE, run=report.run, pool=node.facts.pool)
    ]


def _action(label: str, href: str, *, hint: str = ASKS, keys: str = "", press: str = "") -> PaletteEntry:
    return PaletteEntry(group="Action", label=label, href=href, hint=hint, keys=keys, press=press)


def _run_actions(sources: PaletteSources) -> list[PaletteEntry]:
    names = dict.fromkeys([*(launch.name for launch in sources.launches), *(run.name for run, _ in sources.runs)])
    known = {launch.name for launch in sources.launches} | {run.name for run, _ in sources.runs if run.folder}
    return [
        *(_action(f"Launch {card.name}", f"/runs/new?recipe={_part(card.name)}", hint=card.summary)
          for card in sources.recipes if not card.problem),
        *(_action(f"Stop run {launch.name}", f"/launches/{_part(launch.name)}/stop")
          for launch in sources.launches if launch.is_active),
        *(_action(f"Resume run {launch.name}", f"/launches/{_part(launch.name)}", hint="its page has the button")
          for launch in sources.launches if launch.can_resume),
        *(_action(f"Launch a copy of {name}", f"/runs/new?of={_part(name)}", hint="clone")
          for name in names if name in known),
        *(_action(f"Fork {name}", f"/runs/new?of={_part(name)}&fork=1", hint="from a kept checkpoint")
          for name in names if name in known),
    ]  # fmt: skip


def _flow_actions(report: Report | None) -> list[PaletteEntry]:
    return [
        _action(f"Pause flow {flow.id}", f"/flows/{_part(flow.id)}/pause")
        for flow in (report.flows if report else ())
        if not flow.is_paused
    ]


def _fleet_actions(viewer: Viewer, sources: PaletteSources) -> list[PaletteEntry]:
    run = sources.report.run if sources.report else ""
    pools = [
        pool.id for pool in (sources.report.pools if sources.report else ())
        if viewer.may(Permission.OPERATE, run=run, pool=pool.id)
    ]  # fmt: skip
    kill = [_action("Kill switch", "/kill", hint=f"stops all fleet changes, {ASKS}")]
    return [
        *(kill if viewer.may(Permission.OPERATE, run=run) else []),
        *(_action(f"Plan a size of pool {pool}", f"/pools/{_part(pool)}#resize-title", hint="resize, plan first")
          for pool in pools),
        *(_action(f"Hold pool {pool}", f"/pools/{_part(pool)}#hold", hint="no removals for a time")
          for pool in pools),
        *(_action(f"Drain all of pool {pool}", f"/pools/{_part(pool)}/drain-all") for pool in pools),
    ]  # fmt: skip


def _part(name: str) -> str:
    """Returns a name as part of an address."""
    return quote(name, safe="")
