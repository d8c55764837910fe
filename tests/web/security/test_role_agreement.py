"""The role tables of the web and of the planes permit the same roles for every action that both provide."""

from collections.abc import Iterator

import pytest
from starlette.routing import Route

from astraflow.access.callers import Role as PlaneRole
from astraflow.wire.routes import ROUTES
from web.app import ROUTES as WEB_ROUTES
from web.security.roles import Permission, Role, permission_of_route

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
    "/pools/{pool}/hold": "FleetPlane/SetPoolHold",
    "/pools/{pool}/inject-fault": "FleetPlane/InjectFault",
    "/pools/{pool}/what-if": "ControlPlane/WhatIf",
    "/maintainer/proposals/{plan}/reject": "FleetPlane/RejectPlan",
    "/maintainer/mode": "FleetPlane/SetMaintainerMode",
    "/maintainer/wake": "FleetPlane/WakeMaintainer",
    "/kill": "FleetPlane/SetKillSwitch",
    "/kill-switch": "FleetPlane/SetKillSwitch",
    "/settings/providers/{provider}/preflight": "FleetPlane/RunPreflight",
    "/providers/{provider}/preflight": "FleetPlane/RunPreflight",
}
"""Plane methods by web path, which is the path of a page or one below /api/v1."""

OWN = (
    "/login",
    "/logout",
    "/theme",
    "/settings",
    "/users",
    "/tokens",
    "/sessions",
    "/grants",
    "/retention",
    "/runs",
    "/launches",
    "/launch-preview",
    "/alerts",
)
"""Paths that the web serves without a plane: accounts, browser settings, alerts and processes on its own machine."""

APPROVING = "/maintainer/proposals/{plan}/approve"
"""The planes have one method for own and foreign plans; the guard refuses approvals by agents."""

READ_ONLY_PERMISSIONS = (
    *("GetReport", "WatchReport", "History", "Trajectories", "Groups", "Rewards", "Events", "TrainingSteps"),
    *("SampleIndex",),
    *("Evaluations", "WhatIf"),
    *("GetFleet", "Instances", "Decisions", "Proposals", "GetMaintainer", "Transcript", "Providers"),
)


def test_common_actions_of_web_and_planes_have_the_same_roles() -> None:
    differing = {
        path: (web, plane)
        for path, permission in _acting()
        if path in CALLS and (web := _in_the_web(permission)) != (plane := _in_the_planes(CALLS[path]))
    }
    assert not differing


def test_every_web_action_is_a_call_of_a_plane_or_listed_as_own() -> None:
    unknown = {path for path, _ in _acting() if path not in CALLS and path != APPROVING and not path.startswith(OWN)}
    assert not unknown, "name the plane's call in CALLS, or say in OWN that the web does it itself"
    assert set(CALLS) <= {path for path, _ in _acting()}, "CALLS has an unknown path"


@pytest.mark.parametrize("method", READ_ONLY_PERMISSIONS)
def test_every_role_that_can_read_pages_can_read_over_the_planes(method: str) -> None:
    service = next(name for name in ("ControlPlane", "FleetPlane") if f"/astraflow.v1.{name}/{method}" in ROUTES)
    assert _in_the_planes(f"{service}/{method}") == _in_the_web(Permission.READ)


def _acting() -> Iterator[tuple[str, Permission]]:
    """Yields each path that changes state, without API version and parameter types, and the permission it requires."""
    for route in WEB_ROUTES:
        if isinstance(route, Route) and (route.methods or set()) - {"GET", "HEAD"}:
            path = route.path.removeprefix("/api/v1").replace(":path}", "}").replace(":resource}", "}")
            yield path, permission_of_route(route).permission


def _in_the_web(permission: Permission) -> set[str]:
    return {role.value for role in Role if role.may(permission)}


def _in_the_planes(method: str) -> set[str]:
    """Returns the roles of a plane method that the web also has."""
    roles = ROUTES[f"/astraflow.v1.{method}"].roles & {PlaneRole(role.value) for role in Role}
    return {role.value for role in roles}
