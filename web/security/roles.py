"""Roles and permissions: one table for all pages and routes.

A route declares its permission at its definition:

    @router.post("/nodes/{node:path}/drain")
    @needs(Permission.OPERATE, on=ResourceKind.NODE)
    async def drain(...): ...

The security middleware refuses viewers without the permission before the route runs; a route without a declaration is
not served. `on` is the kind of resource: a role granted on that resource (`web.security.roles`) is sufficient
there, and only there.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from starlette.routing import BaseRoute, Match
from starlette.types import Scope

Endpoint = TypeVar("Endpoint", bound=Callable[..., object])


class Permission(Enum):
    """Permissions of routes."""

    NOTHING = "log in"
    """No permission, no login."""
    OWN = "manage the own account"
    """Own password, sessions and tokens. Requires a login: a token cannot create tokens."""
    READ = "view runs"
    AUDIT = "read the audit log"
    """The audit log contains names of people and their addresses."""
    OPERATE = "operate a run: drain, pause, resume, launch"
    APPROVE = "approve an agent's proposals"
    ADMINISTER = "manage bounds and retention"
    ACCOUNTS = "manage users and their roles"
    """Users, login links, roles and grants. Requires a login: a token cannot obtain a session or more rights."""


class ResourceKind(Enum):
    """Kinds of resources to which a grant can apply, with their text in the API documentation."""

    EVERYTHING = ""
    """No specific run: requires a global role."""
    RUN = "on the run"
    """Run of the request, as a whole."""
    POOL = "on the pool or its run"
    """Pool in the URL, of that run."""
    NODE = "on the node's pool or its run"
    """Pools of all nodes in the URL or the form."""
    PLAN = "on the plan's pool or its run"
    """Pool of the plan in the URL, regardless of other parts of the URL."""
    LAUNCH = "on that run"
    """Run in the URL."""
    RECORD = "on the run of that number"
    """Run of the record in the URL."""


class Role(Enum):
    """Role of a user; the gRPC planes use the same names."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    AGENT = "agent"
    """Role of an autonomous program: an operator without approvals."""

    def may(self, permission: Permission) -> bool:
        """True if the role has the permission."""
        return permission in ROLE_PERMISSIONS[self]

    @classmethod
    def parse(cls, text: str) -> "Role | None":
        """Role with this name; None if unknown."""
        return next((role for role in cls if role.value == text), None)


LOGIN_ONLY = frozenset({Permission.OWN, Permission.ACCOUNTS})
"""Permissions that no token has, whatever its scope."""

_VIEWER_PERMISSIONS = frozenset({Permission.NOTHING, Permission.OWN, Permission.READ})
_AGENT_PERMISSIONS = _VIEWER_PERMISSIONS | {Permission.AUDIT, Permission.OPERATE}

ROLE_PERMISSIONS: dict[Role, frozenset[Permission]] = {
    Role.VIEWER: _VIEWER_PERMISSIONS,
    Role.AGENT: _AGENT_PERMISSIONS,
    Role.OPERATOR: _AGENT_PERMISSIONS | {Permission.APPROVE},
    Role.ADMIN: frozenset(Permission),
}
"""Permissions by role."""


def least_role_with(permission: Permission) -> Role:
    """Lowest role of a person with the permission."""
    return next(role for role in (Role.VIEWER, Role.OPERATOR, Role.ADMIN) if role.may(permission))


ROLES_BY_RANK = tuple(ROLE_PERMISSIONS)
"""Roles from the lowest to the highest: each role has all permissions of the previous role."""


@dataclass(frozen=True, slots=True)
class RoutePermission:
    """Declared permission of a route."""

    permission: Permission
    on: ResourceKind = ResourceKind.EVERYTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredPermission:
    """Required permission of a request."""

    permission: Permission
    on: ResourceKind = ResourceKind.EVERYTHING
    params: Mapping[str, Any] = field(default_factory=dict)
    """Path parameters: `pool`, `node`, `plan`, `name` of a launched run."""


_route_permissions: dict[object, RoutePermission] = {}


def needs(permission: Permission, *, on: ResourceKind = ResourceKind.EVERYTHING) -> Callable[[Endpoint], Endpoint]:
    """Declares the permission of a route, and its kind of resource."""

    def declare(endpoint: Endpoint) -> Endpoint:
        _route_permissions[endpoint] = RoutePermission(permission, on)
        return endpoint

    return declare


class RoutePermissions:
    """Permissions of all routes. Raises: RuntimeError for a route without a declaration."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._routes = [(route, permission_of_route(route)) for route in routes]

    def required_by(self, scope: Scope) -> RequiredPermission:
        """Required permission of a request; for an unknown path, that of a login."""
        partial_match = None
        for route, declared in self._routes:
            match, child_scope = route.matches(scope)
            if match is Match.NONE or (match is Match.PARTIAL and partial_match is not None):
                continue
            required = RequiredPermission(
                permission=declared.permission, on=declared.on, params=child_scope.get("path_params", {})
            )
            if match is Match.FULL:
                return required
            partial_match = required
        return partial_match or RequiredPermission(permission=Permission.READ)


def permission_of_route(route: BaseRoute) -> RoutePermission:
    """Declared permission of a route. Raises: RuntimeError without a declaration."""
    endpoint = getattr(route, "endpoint", None)
    if endpoint not in _route_permissions:
        raise RuntimeError(
            f"cannot serve {getattr(route, 'path', route)}: no permission is declared; add @needs(...) to its endpoint"
        )
    return _route_permissions[endpoint]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """Run, or pool of a run; without a run, everything."""

    run: str = ""
    pool: str = ""

    def covers(self, other: "Resource") -> bool:
        """True if a role on this resource also applies to the other.

        >>> run, eu = Resource(run="r"), Resource(run="r", pool="eu")
        >>> run.covers(eu), eu.covers(run)
        (True, False)
        """
        return not self.run or (self.run == other.run and self.pool in ("", other.pool))

    @property
    def description(self) -> str:
        """Text for sentences; empty for everything.

        >>> Resource(run="r", pool="eu").description
        'on pool eu of run r'
        """
        if not self.run:
            return ""
        return f"on pool {self.pool} of run {self.run}" if self.pool else f"on run {self.run}"


EVERYWHERE = Resource()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Role on a resource, in addition to the global role."""

    role: Role
    resource: Resource

    @property
    def description(self) -> str:
        """Text for sentences."""
        return f"{self.role.value} {self.resource.description}"


def role_on_resource(base: Role, grants: Iterable[Grant], resource: Resource) -> Role:
    """Highest of the global role and the grants on the resource.

    >>> eu = Resource(run="r", pool="eu")
    >>> grants = [Grant(role=Role.OPERATOR, resource=eu)]
    >>> role_on_resource(Role.VIEWER, grants, eu), role_on_resource(Role.VIEWER, grants, Resource(run="r"))
    (<Role.OPERATOR: 'operator'>, <Role.VIEWER: 'viewer'>)
    """
    return max([base, *(grant.role for grant in grants if grant.resource.covers(resource))], key=ROLES_BY_RANK.index)


def lower_role(first: Role, second: Role) -> Role:
    """Lower of two roles: the permissions that both have."""
    return min(first, second, key=ROLES_BY_RANK.index)
