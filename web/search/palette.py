"""Command palette and search page (every page, action, pool, run and node by name), and keyboard shortcuts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from astraflow.contract.reports.report import Report
from web.accounts.viewer import Viewer
from web.components import formats
from web.components.layout import NAVIGATION
from web.components.live_texts import visible_nodes
from web.database.tables import RunRecord
from web.security.roles import Permission

MAX_NODES = 500
MAX_RUNS = 50
"""Runs listed before any input; a search covers all runs."""
MAX_MATCHES = 200


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


def entries(viewer: Viewer, report: Report | None, runs: Sequence[RunRecord], *, has_fleet: bool) -> list[PaletteEntry]:
    """Returns everything that the viewer's role may see and do, pages first, nodes last."""
    return [
        *(
            PaletteEntry(group="Page", label=item.label, href=item.path, keys=f"g {item.key}")
            for item in NAVIGATION
            if viewer.may(item.required_permission)
        ),
        *(_actions(viewer, report, has_fleet=has_fleet)),
        *(_pools(report)),
        *(PaletteEntry(group="Run", label=run.name, href=f"/runs/{run.id}", hint=run.recipe) for run in runs),
        *(_nodes(report)),
    ]


def initial_entries(listed: Sequence[PaletteEntry]) -> list[PaletteEntry]:
    """Returns the entries listed before any input; runs and nodes are limited in number."""
    limits = {"Run": MAX_RUNS, "Node": MAX_NODES}
    counts: Counter[str] = Counter()
    listed_entries = []
    for entry in listed:
        counts[entry.group] += 1
        if entry.group not in limits or counts[entry.group] <= limits[entry.group]:
            listed_entries.append(entry)
    return listed_entries


def matching_entries(listed: Sequence[PaletteEntry], text: str) -> list[PaletteEntry]:
    """Returns the entries that contain every word of a text, best match first, at most `MAX_MATCHES`."""
    words = text.lower().split()
    scored = [(_score(entry, words), entry) for entry in listed]
    matching = [(score, entry) for score, entry in scored if score >= 0]
    return [entry for _, entry in sorted(matching, key=lambda item: -item[0])[:MAX_MATCHES]]


def _score(entry: PaletteEntry, words: Sequence[str]) -> int:
    """Returns the score of an entry, as `palette.js` computes it; -1 when a word is missing."""
    label = entry.label.lower()
    whole, score = f"{label} {entry.group} {entry.hint}".lower(), 0
    for word in words:
        if word not in whole:
            return -1
        score += 3 if label.startswith(word) else 2 if f" {word}" in label else 1 if word in label else 0
    return score


def _actions(viewer: Viewer, report: Report | None, *, has_fleet: bool) -> list[PaletteEntry]:
    actions = [
        PaletteEntry(group="Action", label="Live or paused", href="", keys="l", press="l"),
        PaletteEntry(group="Action", label="Export this view", href="", keys="e", press="e"),
        PaletteEntry(group="Action", label="Next theme", href="/settings", keys="t", press="t"),
        PaletteEntry(group="Action", label="Keys", href="/keys", keys="?", press="?"),
    ]
    if viewer.may(Permission.OPERATE, run=report.run if report else ""):
        for flow in report.flows if report else ():
            if not flow.is_paused:
                path = f"/flows/{quote(flow.id, safe='')}/pause"
                actions.append(
                    PaletteEntry(group="Action", label=f"Pause flow {flow.id}", href=path, hint="asks first")
                )
        if has_fleet:
            actions.append(PaletteEntry(group="Action", label="Kill switch", href="/kill", hint="asks first"))
    return actions


def _pools(report: Report | None) -> list[PaletteEntry]:
    paths = {item.name: item.path for item in NAVIGATION}
    return [
        PaletteEntry(
            group="Pool",
            label=pool.id,
            href=f"/pools/{quote(pool.id, safe='')}" if "pools" in paths else "/nodes",
            hint=f"{formats.several(pool.ready, 'node')} ready",
        )
        for pool in (report.pools if report else ())
    ]


def _nodes(report: Report | None) -> list[PaletteEntry]:
    return [
        PaletteEntry(
            group="Node",
            label=node.facts.name,
            href=f"/nodes/{quote(node.id, safe='')}",
            hint=f"{node.facts.pool}, {node.state.value}",
        )
        for node in (visible_nodes(report) if report else ())
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key, or two pressed in sequence."""

    keys: str
    action: str


GENERAL = (
    Key(keys="Ctrl K", action="Search for a page, run, node, pool or action"),
    Key(keys="/", action="Search, as Ctrl K"),
    Key(keys="?", action="List of keys"),
    Key(keys="Esc", action="Close, or cancel"),
    Key(keys="l", action="Live or paused"),
    Key(keys="[", action="Shorter time range"),
    Key(keys="]", action="Longer time range"),
    Key(keys="t", action="Next theme: system, light, dark"),
    Key(keys="e", action="Export this view"),
    Key(keys="a", action="Approve the waiting proposal; asks first"),
)

ROWS = (
    Key(keys="j", action="Next row"),
    Key(keys="k", action="Previous row"),
    Key(keys="Enter", action="Open the row"),
    Key(keys="x", action="Select the row, where possible"),
    Key(keys=".", action="Actions of the row"),
    Key(keys="w", action="Text or tokens of a trajectory"),
    Key(
        keys="\N{LEFTWARDS ARROW} \N{RIGHTWARDS ARROW}",
        action="In a chart: move the cursor; on annotations: next annotation",
    ),
)


def page_keys(viewer: Viewer) -> Sequence[Key]:
    """Returns the keys of the pages that the viewer may see."""
    return [Key(keys=f"g {item.key}", action=item.label) for item in NAVIGATION if viewer.may(item.required_permission)]
