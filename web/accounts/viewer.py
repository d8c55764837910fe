"""Viewer: authenticated user of a request, with its permissions."""

import math
from dataclasses import dataclass, replace

from web.security.audit_log import Author
from web.security.roles import (
    EVERYWHERE,
    LOGIN_ONLY,
    ROLES_BY_RANK,
    Grant,
    Permission,
    Resource,
    Role,
    lower_role,
    role_on_resource,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """Authenticated user, through a session or a token."""

    user_id: int
    name: str
    role: Role
    """Global role of the user."""
    scope: Role | None = None
    """Scope of the token, which may be less; None for a session."""
    via: str = "session"
    came_from: str = ""
    session: str = ""
    """Session of the user; empty for a token."""
    ends_at: float = math.inf
    """Expiry of the session or token, Unix seconds."""
    form_token: str = ""
    """CSRF token that every form of this session contains."""

    grants: tuple[Grant, ...] = ()
    """Grants of the user, in addition to the role."""
    scope_grants: tuple[Grant, ...] = ()
    """Grants of the token, in addition to its scope."""
    at: Resource = EVERYWHERE
    """Resource of the request, set by the security middleware."""

    def own_role(self, resource: Resource = EVERYWHERE) -> Role:
        """Role of the user on a resource, regardless of the token."""
        return role_on_resource(self.role, self.grants, resource)

    def effective_role(self, resource: Resource = EVERYWHERE) -> Role:
        """Effective role on a resource: the lower of the user's and the token's."""
        own = self.own_role(resource)
        return own if self.scope is None else lower_role(own, role_on_resource(self.scope, self.scope_grants, resource))

    def may(self, permission: Permission, *, run: str = "", pool: str = "") -> bool:
        """True if the viewer has the permission on the resource; with neither run nor pool, globally. Tokens cannot
        administer accounts."""
        if self.scope is not None and permission in LOGIN_ONLY:
            return False
        return self.effective_role(Resource(run=run, pool=pool)).may(permission)

    def may_end_access_of(self, user_id: int) -> bool:
        """True if the viewer may end sessions and tokens of a user: the own ones, and as an admin any."""
        return user_id == self.user_id or self.may(Permission.ADMINISTER)

    def may_somewhere(self, permission: Permission, *, run: str) -> bool:
        """True if the viewer has the permission on the run or on at least one of its pools."""
        resources = [grant.resource for grant in (*self.grants, *self.scope_grants) if grant.resource.run == run]
        return any(self.effective_role(resource).may(permission) for resource in (Resource(run=run), *resources))

    def has_same_rights(self, other: "Viewer") -> bool:
        """True if both are the same user with the same role, scope and grants."""
        return replace(self, at=EVERYWHERE, came_from="") == replace(other, at=EVERYWHERE, came_from="")

    @property
    def highest_role(self) -> Role:
        """Highest role of the user on any resource; no token of theirs needs more scope."""
        return max([self.role, *(grant.role for grant in self.grants)], key=ROLES_BY_RANK.index)

    @property
    def can_operate(self) -> bool:
        """True if controls that affect every run are shown."""
        return self.may(Permission.OPERATE)

    @property
    def author(self) -> Author:
        """Author of audit entries."""
        return Author(name=self.name, role=self.effective_role(self.at).value, via=self.via, came_from=self.came_from)
