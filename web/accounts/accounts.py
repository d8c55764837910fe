"""Accounts: all parts, assembled once."""

from dataclasses import dataclass

from starlette.datastructures import Headers

from astraflow.runtime.clock import Clock
from web.accounts.account_store import AccountStore, Changes
from web.accounts.grants import Grants
from web.accounts.login_attempts import LoginAttempts
from web.accounts.openid_provider import OpenIdProvider
from web.accounts.sessions import Sessions
from web.accounts.sign_on import SignOn
from web.accounts.tokens import Tokens
from web.accounts.users import Users
from web.accounts.viewer import Viewer
from web.database.db import Database
from web.security.audit_log import AuditLog

BEARER = "bearer "


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Parts of the accounts, and the authentication of requests."""

    sessions: Sessions
    users: Users
    tokens: Tokens
    grants: Grants
    attempts: LoginAttempts
    sign_on: SignOn | None
    """None when no provider is configured."""
    changes: Changes
    """Notifies open connections when sessions, tokens, roles or grants may have changed."""

    async def viewer(self, headers: Headers, *, cookie: str | None, came_from: str) -> Viewer | None:
        """Viewer of a request: by its bearer token if it has one, else by its session cookie; None if not
        authenticated."""
        authorization = headers.get("authorization")
        if authorization is None:
            return await self.sessions.viewer(cookie, came_from=came_from)
        if authorization[: len(BEARER)].lower() != BEARER:
            return None
        return await self.tokens.viewer(authorization[len(BEARER) :].strip(), came_from=came_from)


def open_accounts(
    database: Database, *, clock: Clock, audit_log: AuditLog, provider: OpenIdProvider | None = None
) -> Accounts:
    """Opens the accounts of a database."""
    store = AccountStore(database=database, clock=clock, audit_log=audit_log)
    sessions = Sessions(store)
    return Accounts(
        sessions=sessions,
        users=Users(store, sessions),
        tokens=Tokens(store),
        grants=Grants(store),
        attempts=LoginAttempts(clock),
        sign_on=SignOn(store, sessions, provider) if provider else None,
        changes=store.changes,
    )
