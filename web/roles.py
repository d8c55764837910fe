"""Who may do what: one table, which every page and route goes by.

A route says what it needs, once, where it stands:

    @router.post("/nodes/{node:path}/drain")
    @needs(Need.OPERATE)
    async def drain(...): ...

The guard refuses whoever's role does not have that, before the route runs; a route that says nothing is not served.
"""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import TypeVar

from starlette.routing import BaseRoute, Match
from starlette.types import Scope

Endpoint = TypeVar("Endpoint", bound=Callable[..., object])


class Need(Enum):
    """What a route does, as far as permission goes."""

    NOTHING = "come in"
    """For everybody, logged in or not."""
    OWN = "look after one's own account"
    """One's own password, sessions and tokens. Takes a login: a token cannot make tokens."""
    READ = "look at everything about runs"
    AUDIT = "read the audit"
    """It names people and the addresses that they come from."""
    OPERATE = "steer a run: drain, pause, resume, launch"
    APPROVE = "approve what an agent proposes"
    ADMINISTER = "manage users, bounds and retention"


class Role(Enum):
    """What a user is; the gRPC planes use the same words."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    AGENT = "agent"
    """A program that acts by itself: an operator that approves nothing."""

    def may(self, need: Need) -> bool:
        """Whether this role has what is needed."""
        return need in MAY[self]

    @classmethod
    def named(cls, text: str) -> "Role | None":
        """The role of that name."""
        return next((role for role in cls if role.value == text), None)


_LOOK = frozenset({Need.NOTHING, Need.OWN, Need.READ})
_ACT = _LOOK | {Need.AUDIT, Need.OPERATE}

MAY: dict[Role, frozenset[Need]] = {
    Role.VIEWER: _LOOK,
    Role.AGENT: _ACT,
    Role.OPERATOR: _ACT | {Need.APPROVE},
    Role.ADMIN: frozenset(Need),
}
"""The table."""


def least_role(need: Need) -> Role:
    """The smallest role of a person that has it: what to ask for."""
    return next(role for role in (Role.VIEWER, Role.OPERATOR, Role.ADMIN) if role.may(need))


_declared: dict[object, Need] = {}


def needs(need: Need) -> Callable[[Endpoint], Endpoint]:
    """Declare what a route needs."""

    def declare(endpoint: Endpoint) -> Endpoint:
        _declared[endpoint] = need
        return endpoint

    return declare


class Needs:
    """What each address needs, from the routes themselves. Raises: RuntimeError for a route that does not say."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._routes = [(route, need_of(route)) for route in routes]

    def of(self, scope: Scope) -> Need:
        """What a request needs; one for which there is no route needs a login to be told so."""
        nearest = None
        for route, need in self._routes:
            match, _ = route.matches(scope)
            if match is Match.FULL:
                return need
            if match is Match.PARTIAL and nearest is None:
                nearest = need
        return nearest or Need.READ


def need_of(route: BaseRoute) -> Need:
    """What a route says it needs. Raises: RuntimeError when it does not say."""
    endpoint = getattr(route, "endpoint", None)
    if endpoint not in _declared:
        raise RuntimeError(
            f"{getattr(route, 'path', route)} does not say what it needs: put @needs(...) under its route"
        )
    return _declared[endpoint]
