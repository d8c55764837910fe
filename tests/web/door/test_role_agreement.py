"""Two tables say who may do what: the web's and that of the planes. Where both lead to one action they say the same."""

from collections.abc import Iterator

import pytest
from starlette.routing import Route

from astraflow.access.callers import Role as PlaneRole
from astraflow.wire.routes import ROUTES
from web.app import ROUTERS
from web.door.roles import Need, Role, declared_of

CALLS = {
    "/nodes/{node}/drain": "ControlPlane/DrainNode",
    "/nodes/drain": "ControlPlane/DrainNode",
    "/flows/{flow}/pause": "ControlPlane/PauseFlow",
    "/flows/{flow}/resume": "ControlPlane/PauseFlow",
    "/flows/{flow}/plugins": "ControlPlane/ChangePlugins",
    "/policies/{policy}/sampler": "ControlPlane/ChangePlugins",
    "/pools/{pool}": "FleetPlane/PutPool",
    "/pools/{pool}/spec": "FleetPlane/PutPool",
    "/pools/{pool}/plans": "FleetPlane/PlanChange",
    "/pools/{pool}/plans/{plan}/apply": "FleetPlane/ApplyPlan",
    "/plans/{plan}/apply": "FleetPlane/ApplyPlan",
    "/pools/{pool}/hold": "FleetPlane/HoldPool",
    "/pools/{pool}/lose": "FleetPlane/LoseNodes",
    "/pools/{pool}/what-if": "ControlPlane/WhatIf",
    "/maintainer/proposals/{plan}/reject": "FleetPlane/RejectPlan",
    "/maintainer/mode": "FleetPlane/SetMaintainerMode",
    "/kill": "FleetPlane/SetKillSwitch",
    "/kill-switch": "FleetPlane/SetKillSwitch",
    "/settings/providers/{provider}/test": "FleetPlane/RehearseProvider",
    "/providers/{provider}/test": "FleetPlane/RehearseProvider",
}
"""What an address of the web, that of a page or under /api/v1, has a plane do."""

OWN = (
    "/login",
    "/logout",
    "/theme",
    "/views",
    "/settings",
    "/users",
    "/tokens",
    "/sessions",
    "/grants",
    "/retention",
    "/runs",
    "/launches",
    "/launch-preview",
)
"""What the web does itself: accounts, what a browser keeps, and processes on its own machine."""

APPROVING = "/maintainer/proposals/{plan}/approve"
"""The planes have one call for an own plan and for another's; that agents approve nothing is the guard's to say."""

LOOKING = (
    *("GetReport", "WatchReport", "History", "Trajectories", "Groups", "Rewards", "Events", "Evaluations", "WhatIf"),
    *("GetFleet", "Instances", "Decisions", "Proposals", "GetMaintainer", "Transcript", "Providers"),
)


def test_both_tables_open_every_action_that_both_have_to_the_same_roles() -> None:
    differing = {
        path: (web, plane)
        for path, need in _acting()
        if path in CALLS and (web := _in_the_web(need)) != (plane := _in_the_planes(CALLS[path]))
    }
    assert not differing


def test_every_action_of_the_web_is_that_of_a_plane_or_its_own() -> None:
    unknown = {path for path, _ in _acting() if path not in CALLS and path != APPROVING and not path.startswith(OWN)}
    assert not unknown, "name the plane's call in CALLS, or say in OWN that the web does it itself"
    assert set(CALLS) <= {path for path, _ in _acting()}, "some address is gone"


@pytest.mark.parametrize("method", LOOKING)
def test_whoever_may_look_at_pages_may_look_over_the_planes(method: str) -> None:
    service = next(name for name in ("ControlPlane", "FleetPlane") if f"/astraflow.v1.{name}/{method}" in ROUTES)
    assert _in_the_planes(f"{service}/{method}") == _in_the_web(Need.READ)


def _acting() -> Iterator[tuple[str, Need]]:
    """Every address that changes something, without its version and the kinds of its parameters; what it needs."""
    for route in (route for router in ROUTERS for route in router.routes):
        if isinstance(route, Route) and (route.methods or set()) - {"GET", "HEAD"}:
            path = route.path.removeprefix("/api/v1").replace(":path}", "}").replace(":resource}", "}")
            yield path, declared_of(route).need


def _in_the_web(need: Need) -> set[str]:
    return {role.value for role in Role if role.may(need)}


def _in_the_planes(method: str) -> set[str]:
    """The roles that both tables know."""
    roles = ROUTES[f"/astraflow.v1.{method}"].roles & {PlaneRole(role.value) for role in Role}
    return {role.value for role in roles}
