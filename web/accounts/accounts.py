"""Everything about who comes in, put together once."""

from dataclasses import dataclass

from starlette.datastructures import Headers

from astraflow.runtime.clock import Clock
from web.accounts.attempts import Attempts
from web.accounts.grants import Grants
from web.accounts.provider import Provider
from web.accounts.sessions import Sessions
from web.accounts.sign_on import SignOn
from web.accounts.tokens import Tokens
from web.accounts.users import Users
from web.accounts.vault import Changes, Vault
from web.accounts.viewer import Viewer
from web.audit.entries import Trail
from web.db import Database

BEARER = "bearer "


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """The parts, and the one question that every request asks of them."""

    sessions: Sessions
    users: Users
    tokens: Tokens
    grants: Grants
    attempts: Attempts
    sign_on: SignOn | None
    """None when no provider is configured."""
    changes: Changes
    """Notifies open connections when sessions, tokens, roles or grants may have changed."""

    async def viewer(self, headers: Headers, *, cookie: str | None, came_from: str) -> Viewer | None:
        """Who asks: by the token in the header when there is one, else by the session's cookie; None for nobody."""
        shown = headers.get("authorization")
        if shown is None:
            return await self.sessions.viewer(cookie, came_from=came_from)
        if shown[: len(BEARER)].lower() != BEARER:
            return None
        return await self.tokens.viewer(shown[len(BEARER) :].strip(), came_from=came_from)


def open_accounts(database: Database, *, clock: Clock, trail: Trail, provider: Provider | None = None) -> Accounts:
    """The accounts that this database holds."""
    vault = Vault(database=database, clock=clock, trail=trail)
    sessions = Sessions(vault)
    return Accounts(
        sessions=sessions,
        users=Users(vault, sessions),
        tokens=Tokens(vault),
        grants=Grants(vault),
        attempts=Attempts(clock),
        sign_on=SignOn(vault, sessions, provider) if provider else None,
        changes=vault.changes,
    )
