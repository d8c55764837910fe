"""Accounts: all parts, assembled once."""

import ipaddress
from collections import OrderedDict, deque
from dataclasses import dataclass

from starlette.datastructures import Headers

from astraflow.contract.errors import NotAuthenticated
from astraflow.runtime.clock import Clock
from web.accounts.grants import Grants
from web.accounts.openid_provider import OpenIdProvider
from web.accounts.queries import AccountStore, Changes
from web.accounts.sessions import Sessions
from web.accounts.sign_on import SignOn
from web.accounts.tokens import Tokens
from web.accounts.users import Users
from web.accounts.viewer import Viewer
from web.database.db import Database
from web.security.audit_log import AuditLog

FAILURES_A_MINUTE = 10
MAX_ADDRESSES = 10_000
WINDOW_S = 60.0


class TooManyAttempts(NotAuthenticated):
    """Too many failed logins from this address in the last minute."""


class LoginAttempts:
    """Failed logins of the last minute. An attempt counts as failed until it succeeds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def begin(self, address: str) -> None:
        """Starts an attempt. Raises: TooManyAttempts."""
        key, now = network_of(address), self._clock.now()
        failures = self._failures.setdefault(key, deque(maxlen=FAILURES_A_MINUTE))
        self._failures.move_to_end(key)
        if len(failures) == FAILURES_A_MINUTE and now - failures[0] < WINDOW_S:
            raise TooManyAttempts(
                "cannot log in: too many failed logins from this address in a minute; wait a minute and try again",
                code="login.too_many_attempts",
            )
        failures.append(now)
        while len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)

    def succeed(self, address: str) -> None:
        """Removes the latest attempt from the failures."""
        failures = self._failures.get(network_of(address))
        if failures:
            failures.pop()


def network_of(address: str) -> str:
    """Network of one customer: the /64 of an IPv6 address, the address itself for IPv4."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network(f"{parsed}/64", strict=False)) if parsed.version == 6 else str(parsed)


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
