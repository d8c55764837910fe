"""Everything one can go to or do by its name: what the palette and the search page list."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from astraflow.contract.reports import Report
from web.accounts.viewer import Viewer
from web.door.roles import Need
from web.present import formats
from web.present.cells import visible_nodes
from web.present.navigation import NAVIGATION
from web.tables import RunRecord, SavedView

MOST_NODES = 500
MOST_RUNS = 50
"""Listed before anything is typed; what is typed is looked for among all."""
MOST_FOUND = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line."""

    group: str
    label: str
    href: str
    hint: str = ""
    keys: str = ""
    """That do the same."""
    press: str = ""
    """The `data-key` of a control of the page that is pressed instead, where it is there."""


def entries(
    viewer: Viewer, report: Report | None, runs: Sequence[RunRecord], views: Sequence[SavedView], *, has_fleet: bool
) -> list[Entry]:
    """Everything that the viewer's role may see and do, pages first, nodes last."""
    return [
        *(
            Entry(group="Page", label=item.label, href=item.path, keys=f"g {item.key}")
            for item in NAVIGATION
            if viewer.may(item.need)
        ),
        *(Entry(group="View", label=view.name, href=view.address, hint=view.address) for view in views),
        *(_actions(viewer, report, has_fleet=has_fleet)),
        *(_pools(report)),
        *(Entry(group="Run", label=run.name, href=f"/runs/{run.id}", hint=run.recipe) for run in runs),
        *(_nodes(report)),
    ]


def shortened(listed: Sequence[Entry]) -> list[Entry]:
    """What is listed before anything is typed: of runs and nodes the first."""
    kept = {"Run": MOST_RUNS, "Node": MOST_NODES}
    seen: Counter[str] = Counter()
    short = []
    for entry in listed:
        seen[entry.group] += 1
        if entry.group not in kept or seen[entry.group] <= kept[entry.group]:
            short.append(entry)
    return short


def found(listed: Sequence[Entry], text: str) -> list[Entry]:
    """Those that have every word of a text, at most `MOST_FOUND`: first those that begin with the words."""
    words = text.lower().split()
    scored = [(_score(entry, words), entry) for entry in listed]
    fitting = [one for one in scored if one[0] >= 0]
    return [entry for _, entry in sorted(fitting, key=lambda one: -one[0])[:MOST_FOUND]]


def _score(entry: Entry, words: Sequence[str]) -> int:
    """As `palette.js` has it; -1 for what lacks a word."""
    label = entry.label.lower()
    whole, score = f"{label} {entry.group} {entry.hint}".lower(), 0
    for word in words:
        if word not in whole:
            return -1
        score += 3 if label.startswith(word) else 2 if f" {word}" in label else 1 if word in label else 0
    return score


def _actions(viewer: Viewer, report: Report | None, *, has_fleet: bool) -> list[Entry]:
    actions = [
        Entry(group="Action", label="Live or paused", href="", keys="l", press="l"),
        Entry(group="Action", label="Export what is shown", href="", keys="e", press="e"),
        Entry(group="Action", label="Saved views", href="/views", keys="v", press="v"),
        Entry(group="Action", label="Next theme", href="/settings", keys="t", press="t"),
        Entry(group="Action", label="Keys", href="/keys", keys="?", press="?"),
    ]
    if viewer.may(Need.OPERATE, run=report.run if report else ""):
        for flow in report.flows if report else ():
            if not flow.is_paused:
                path = f"/flows/{quote(flow.id, safe='')}/pause"
                actions.append(Entry(group="Action", label=f"Pause flow {flow.id}", href=path, hint="asks first"))
        if has_fleet:
            actions.append(Entry(group="Action", label="Kill switch", href="/kill", hint="asks first"))
    return actions


def _pools(report: Report | None) -> list[Entry]:
    paths = {item.name: item.path for item in NAVIGATION}
    return [
        Entry(
            group="Pool",
            label=pool.id,
            href=f"/pools/{quote(pool.id, safe='')}" if "pools" in paths else "/nodes",
            hint=f"{formats.several(pool.ready, 'node')} ready",
        )
        for pool in (report.pools if report else ())
    ]


def _nodes(report: Report | None) -> list[Entry]:
    return [
        Entry(
            group="Node",
            label=node.facts.name,
            href=f"/nodes/{quote(node.id, safe='')}",
            hint=f"{node.facts.pool}, {node.state.value}",
        )
        for node in (visible_nodes(report) if report else ())
    ]
