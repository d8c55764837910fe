"""Navigation bar: one entry for each page."""

from dataclasses import dataclass

from web.security.roles import Permission


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
    NavItem(name="maintainer", label="Maintainer", path="/maintainer", key="m"),
    NavItem(name="audit", label="Audit", path="/audit", key="a", required_permission=Permission.AUDIT),
    NavItem(name="settings", label="Settings", path="/settings", key="s", required_permission=Permission.OWN),
)
"""In this order: Overview, Runs, Pools, Nodes, Dataflow, Weights, Decisions, Maintainer, Audit, Settings."""
