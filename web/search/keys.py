"""Keyboard shortcuts: for the list of keys and as hints in the palette."""

from collections.abc import Sequence
from dataclasses import dataclass

from web.accounts.viewer import Viewer
from web.components.layout import NAVIGATION


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
