"""Who a request comes from, and what that lets them do."""

from dataclasses import dataclass

from web.audit import Author
from web.roles import Need, Role


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
    form_token: str = ""
    """What every form of this session carries, so that no other page can send it."""

    def may(self, need: Need) -> bool:
        """Whether both the user's role and the token's scope have it. Tokens do not look after accounts."""
        if self.scope is None:
            return self.role.may(need)
        return need is not Need.OWN and self.role.may(need) and self.scope.may(need)

    @property
    def can_operate(self) -> bool:
        """Whether what steers a run is shown to them."""
        return self.may(Need.OPERATE)

    @property
    def author(self) -> Author:
        """As the audit names them."""
        return Author(name=self.name, role=(self.scope or self.role).value, via=self.via, came_from=self.came_from)
