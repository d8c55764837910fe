"""Resources on which roles apply: all runs, one run, or one pool of a run. Pure.

A run is identified by its name: a later run of the same name is the same resource.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from web.security.roles import ROLES_BY_RANK, Role


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
