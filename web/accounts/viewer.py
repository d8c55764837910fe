"""Who a request comes from, and what that lets them do."""

import math
from dataclasses import dataclass, replace

from web.audit.entries import Author
from web.door.places import EVERYWHERE, Grant, Place, lesser, role_there
from web.door.roles import RANKS, Need, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """A user, through a session or a token."""

    user_id: int
    name: str
    role: Role
    """The user's."""
    scope: Role | None = None
    """A token's, which may be less; None for a session."""
    via: str = "session"
    came_from: str = ""
    session: str = ""
    """Which of the user's sessions; empty for a token."""
    ends_at: float = math.inf
    """Unix seconds when the session or token expires."""
    form_token: str = ""
    """What every form of this session carries, so that no other page can send it."""

    grants: tuple[Grant, ...] = ()
    """What the user has at some places, besides the role."""
    scope_grants: tuple[Grant, ...] = ()
    """The same of the token, besides its scope."""
    at: Place = EVERYWHERE
    """What the request is about: the guard says so."""

    def own_role(self, place: Place = EVERYWHERE) -> Role:
        """The user's at a place, whatever the token may."""
        return role_there(self.role, self.grants, place)

    def role_at(self, place: Place = EVERYWHERE) -> Role:
        """In which they act at a place: what the user and the token both have there."""
        own = self.own_role(place)
        return own if self.scope is None else lesser(own, role_there(self.scope, self.scope_grants, place))

    def may(self, need: Need, *, run: str = "", pool: str = "") -> bool:
        """Whether they have it there; with neither run nor pool, everywhere. Tokens do not look after accounts."""
        if self.scope is not None and need is Need.OWN:
            return False
        return self.role_at(Place(run=run, pool=pool)).may(need)

    def may_somewhere(self, need: Need, *, run: str) -> bool:
        """Whether they have it on some pool of a run, at least."""
        places = [grant.place for grant in (*self.grants, *self.scope_grants) if grant.place.run == run]
        return any(self.role_at(place).may(need) for place in (Place(run=run), *places))

    def has_same_rights(self, other: "Viewer") -> bool:
        """Whether both are the same user with the same role, scope and grants."""
        return replace(self, at=EVERYWHERE, came_from="") == replace(other, at=EVERYWHERE, came_from="")

    @property
    def most(self) -> Role:
        """The most that the user has anywhere: no token of theirs needs more scope."""
        return max([self.role, *(grant.role for grant in self.grants)], key=RANKS.index)

    @property
    def can_operate(self) -> bool:
        """Whether what steers every run is shown to them."""
        return self.may(Need.OPERATE)

    @property
    def author(self) -> Author:
        """As the audit names them."""
        return Author(name=self.name, role=self.role_at(self.at).value, via=self.via, came_from=self.came_from)
