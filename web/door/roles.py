"""Who may do what: one table, which every page and route goes by.

A route says what it needs, once, where it stands:

    @router.post("/nodes/{node:path}/drain")
    @needs(Need.OPERATE, on=On.NODE)
    async def drain(...): ...

The guard refuses whoever's role does not have that, before the route runs; a route that says nothing is not served.
`on` says what the route is about: whoever was granted the role there (`web.door.places`) may use it there, and only
there.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

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


class On(Enum):
    """What a route is about, as far as a grant can cover it, with the words that the API's document has for it."""

    EVERYTHING = ""
    """No run in particular: a role everywhere is needed."""
    RUN = "on the run"
    """The whole of the run that the request is about."""
    POOL = "on the pool or its run"
    """The pool that the address names, of that run."""
    NODE = "on the node's pool or its run"
    """The pools of the nodes that the address or the form names; all of them, when it names several."""
    PLAN = "on the plan's pool or its run"
    """The pool that the plan of the address was made for, whatever else the address says."""
    LAUNCH = "on that run"
    """The run that the address names."""


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


RANKS = tuple(MAY)
"""From the least to the most: each may all that the one before it may."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What a route says it needs."""

    need: Need
    on: On = On.EVERYTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a request needs."""

    need: Need
    on: On = On.EVERYTHING
    params: Mapping[str, Any] = field(default_factory=dict)
    """What the address names: `pool`, `node`, `plan`, `name` of a launched run."""


_declared: dict[object, Declared] = {}


def needs(need: Need, *, on: On = On.EVERYTHING) -> Callable[[Endpoint], Endpoint]:
    """Declare what a route needs, and on what."""

    def declare(endpoint: Endpoint) -> Endpoint:
        _declared[endpoint] = Declared(need, on)
        return endpoint

    return declare


class Needs:
    """What each address needs, from the routes themselves. Raises: RuntimeError for a route that does not say."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._routes = [(route, declared_of(route)) for route in routes]

    def of(self, scope: Scope) -> Asked:
        """What a request needs; one for which there is no route needs a login to be told so."""
        nearest = None
        for route, declared in self._routes:
            match, found = route.matches(scope)
            if match is Match.NONE or (match is Match.PARTIAL and nearest is not None):
                continue
            asked = Asked(need=declared.need, on=declared.on, params=found.get("path_params", {}))
            if match is Match.FULL:
                return asked
            nearest = asked
        return nearest or Asked(need=Need.READ)


def declared_of(route: BaseRoute) -> Declared:
    """What a route says it needs. Raises: RuntimeError when it does not say."""
    endpoint = getattr(route, "endpoint", None)
    if endpoint not in _declared:
        raise RuntimeError(
            f"{getattr(route, 'path', route)} does not say what it needs: put @needs(...) under its route"
        )
    return _declared[endpoint]
