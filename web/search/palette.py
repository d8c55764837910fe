"""Command palette: every page, action, pool, run, chart, setting and node by name; and keyboard shortcuts."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from urllib.parse import quote

from astraflow.contract.reports.report import Report
from astraflow.contract.training_metrics import training_metric
from web.accounts.viewer import Viewer
from web.components import formats
from web.components.layout import NAVIGATION
from web.components.live_texts import visible_nodes
from web.search.actions import PaletteEntry, PaletteSources, actions, node_actions
from web.security.roles import Permission

MAX_NODES = 500
MAX_NODE_ACTIONS = 50
MAX_RUNS = 50
"""Runs listed before any input; a search covers all runs."""
MAX_MATCHES = 200
MIN_FUZZY = 3
"""Shortest word that may leave out letters."""

SETTINGS = (
    ("Password", "account", True),
    ("Sessions", "sessions", True),
    ("API tokens", "tokens", True),
    ("Users", "users", False),
    ("Roles of runs and pools", "grants", False),
    ("Providers", "providers", True),
    ("Exporters", "exporters", True),
    ("Retention of the audit log", "retention", False),
)
"""Parts of the settings: label, anchor, and whether they are for all users."""


def entries(viewer: Viewer, sources: PaletteSources) -> list[PaletteEntry]:
    """Returns everything that the viewer's role may see and do: pages and actions first, nodes last."""
    report = sources.report
    return [
        *(
            PaletteEntry(group="Page", label=item.label, href=item.path, keys=f"g {item.key}")
            for item in NAVIGATION
            if viewer.may(item.required_permission)
        ),
        PaletteEntry(group="Page", label="Run doctor", href="/doctor"),
        *actions(viewer, sources),
        *(_pools(report)),
        *(_runs(sources)),
        *(_charts(sources)),
        *(_settings(viewer)),
        *(_nodes(report)),
        *node_actions(viewer, report),
    ]


def initial_entries(listed: Sequence[PaletteEntry]) -> list[PaletteEntry]:
    """Returns the entries listed before any input; runs and nodes are limited in number."""
    limits = {"Run": MAX_RUNS, "Node": MAX_NODES, "Node action": MAX_NODE_ACTIONS}
    counts: Counter[str] = Counter()
    listed_entries = []
    for entry in listed:
        counts[entry.group] += 1
        if entry.group not in limits or counts[entry.group] <= limits[entry.group]:
            listed_entries.append(entry)
    return listed_entries


def matching_entries(listed: Sequence[PaletteEntry], text: str) -> list[PaletteEntry]:
    """Returns the entries that have every word of a text, best match first, at most `MAX_MATCHES`."""
    words = text.lower().split()
    scored = [(score(entry, words), entry) for entry in listed]
    matching = [(points, entry) for points, entry in scored if points >= 0]
    return [entry for _, entry in sorted(matching, key=lambda item: -item[0])[:MAX_MATCHES]]


def score(entry: PaletteEntry, words: Sequence[str]) -> int:
    """Returns the score of an entry, as `palette.js` computes it; -1 when a word is missing.

    A word may leave out letters of the label: `lrnrate` finds `Learning rate`.
    """
    label = entry.label.lower()
    whole, points = f"{label} {entry.group} {entry.hint}".lower(), 0
    for word in words:
        if label.startswith(word):
            points += 8
        elif f" {word}" in label:
            points += 6
        elif word in label:
            points += 4
        elif word in whole:
            points += 2
        elif len(word) < MIN_FUZZY or not re.search(_fuzzy(word), label):
            return -1
    return points


@cache
def _fuzzy(word: str) -> str:
    """Returns the pattern of a word with letters left out, which begins where a word of the label begins."""
    return r"\b" + ".{0,6}?".join(map(re.escape, word))


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


def _runs(sources: PaletteSources) -> list[PaletteEntry]:
    return [
        PaletteEntry(
            group="Run",
            label=f"{metadata.title} ({run.name})" if metadata.title else run.name,
            href=f"/runs/{run.id}",
            hint=" ".join(filter(None, (run.recipe, metadata.group, *metadata.tags))),
        )
        for run, metadata in sources.runs
    ]


def _charts(sources: PaletteSources) -> list[PaletteEntry]:
    """Returns the charts of the followed run's metrics."""
    streams = sources.report.streams if sources.report is not None else ()
    names = dict.fromkeys(name for stream in streams for name in stream.training.metrics)
    metrics = [training_metric(name) for name in names]
    return [
        PaletteEntry(
            group="Chart",
            label=metric.label,
            href=f"/runs/{sources.run_id}/charts/{quote(metric.name, safe='')}",
            hint=metric.name.replace("_", " "),
        )
        for metric in metrics
        if metric is not None and sources.run_id is not None
    ]


def _settings(viewer: Viewer) -> list[PaletteEntry]:
    if not viewer.may(Permission.OWN):
        return []
    is_admin = viewer.may(Permission.ACCOUNTS)
    return [
        PaletteEntry(group="Settings", label=label, href=f"/settings#{anchor}")
        for label, anchor, is_for_all in SETTINGS
        if is_for_all or is_admin
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key, or two pressed in sequence."""

    keys: str
    action: str


GENERAL = (
    Key(keys="Ctrl K", action="Search for a page, action, run, chart, recipe, pool, node or setting"),
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
