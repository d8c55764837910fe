"""Which key does what: for the sheet of keys, and as hints in the palette."""

from collections.abc import Sequence
from dataclasses import dataclass

from web.accounts.viewer import Viewer
from web.present.navigation import NAVIGATION


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key, or two after each other."""

    keys: str
    does: str


GENERAL = (
    Key(keys="Ctrl K", does="Search for a page, run, node, pool or action"),
    Key(keys="/", does="The same"),
    Key(keys="?", does="This sheet"),
    Key(keys="Esc", does="Close, or back out"),
    Key(keys="l", does="Live or paused"),
    Key(keys="[", does="Shorter time range"),
    Key(keys="]", does="Longer time range"),
    Key(keys="t", does="Next theme: system, light, dark"),
    Key(keys="e", does="Export what is shown"),
    Key(keys="v", does="Saved views"),
    Key(keys="a", does="Approve what waits for it; asks first"),
)

ROWS = (
    Key(keys="j", does="Next row"),
    Key(keys="k", does="Row before"),
    Key(keys="Enter", does="Open the row"),
    Key(keys="x", does="Select the row, where rows can be"),
    Key(keys=".", does="Actions of the row"),
    Key(
        keys="\N{LEFTWARDS ARROW} \N{RIGHTWARDS ARROW}", does="In a chart: move the reading line; among pins: next pin"
    ),
)


def page_keys(viewer: Viewer) -> Sequence[Key]:
    """Keys that lead to pages which the viewer may see."""
    return [Key(keys=f"g {item.key}", does=item.label) for item in NAVIGATION if viewer.may(item.need)]
