"""Settings page: holders of grants, scopes of tokens, and names of browsers and logins."""

from collections.abc import Sequence

from web.accounts.grants import describe_holder
from web.accounts.sessions import ADMIN
from web.accounts.viewer import Viewer
from web.database.tables import ApiToken, User
from web.security.roles import ROLE_PERMISSIONS, Role


def grantees(
    users: Sequence[User], tokens: Sequence[tuple[ApiToken, User]], *, viewer: Viewer
) -> list[tuple[str, str]]:
    """Returns the possible holders of a grant, users first: form value and label."""
    people = [user for user in users if user.name != ADMIN and user.id != viewer.user_id and user.disabled_at is None]
    return [
        *((f"{user.id}", user.name) for user in people),
        *((f"{user.id}:{token.id}", describe_holder(user, token)) for token, user in tokens),
    ]


def scopes(viewer: Viewer) -> list[str]:
    """Returns the scopes that a token of this viewer can have, least privileged first."""
    order = (Role.VIEWER, Role.AGENT, Role.OPERATOR, Role.ADMIN)
    return [role.value for role in order if ROLE_PERMISSIONS[role] <= ROLE_PERMISSIONS[viewer.highest_role]]


def browser_name(agent: str) -> str:
    """Returns the browser and the platform of a user agent, in two words.

    >>> browser_name("Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/140.0.0.0 Safari/537.36")
    'Chrome on Linux'
    >>> browser_name("python-httpx/0.28.1"), browser_name("")
    ('python-httpx/0.28.1', 'unknown')
    """
    names = (("Edg/", "Edge"), ("Firefox/", "Firefox"), ("Chrome/", "Chrome"), ("Safari/", "Safari"))
    platforms = (
        ("Android", "Android"),
        ("iPhone", "iPhone"),
        ("Mac OS", "macOS"),
        ("Windows", "Windows"),
        ("Linux", "Linux"),
    )
    name = next((label for marker, label in names if marker in agent), "")
    platform = next((label for marker, label in platforms if marker in agent), "")
    return f"{name} on {platform}" if name and platform else agent[:40] or "unknown"


def login_of(user: User) -> str:
    """Returns how a user logs in."""
    if user.identity is not None:
        return "provider"
    return "password" if user.password_hash else "link"
