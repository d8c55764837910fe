"""Login through an OpenID provider: authorization code flow with PKCE, from the button to the session."""

import base64
import binascii
import hmac
import json
import secrets

from sqlmodel import Session

from astraflow.contract.errors import NotAuthenticated
from web.accounts import queries
from web.accounts.openid_provider import LoginFlow, OpenIdProvider, display_name
from web.accounts.queries import AccountStore
from web.accounts.sessions import Sessions
from web.security.audit_log import AuditedCommand, Author
from web.security.roles import Role

FLOW_S = 600.0
"""Maximum time for a login at the provider, seconds."""


class SignOn:
    """Redirects browsers to the provider, and opens sessions after a valid answer.

    The state of a login is stored in a sealed cookie of the browser that started it: starting a login writes nothing,
    and a login started in one browser cannot be finished in another.
    """

    def __init__(self, store: AccountStore, sessions: Sessions, provider: OpenIdProvider) -> None:
        self._store = store
        self._sessions = sessions
        self.provider = provider
        self.cookie_name = f"{sessions.cookie_name}_flow"

    async def begin(self, *, target: str) -> tuple[str, str]:
        """Authorization URL and flow cookie for the browser. Raises: Unavailable."""
        flow = LoginFlow(
            state=secrets.token_urlsafe(24), nonce=secrets.token_urlsafe(24), verifier=secrets.token_urlsafe(48)
        )
        content = [flow.state, flow.nonce, flow.verifier, target, self._store.clock.wall() + FLOW_S]
        sealed = base64.urlsafe_b64encode(json.dumps(content).encode()).decode()
        return await self.provider.address(flow), f"{sealed}.{self._seal(sealed)}"

    async def finish(
        self, flow_cookie: str | None, *, code: str, state: str, issuer: str | None, came_from: str, browser: str
    ) -> tuple[str, str]:
        """Finishes a login after the redirect; returns the session cookie and the target page.

        flow_cookie: the browser's sealed cookie. issuer: as stated in the answer, if present (RFC 9207).
        Raises: NotAuthenticated with the failed check; Unavailable.
        """
        author = Author(name="", role="", via="login", came_from=came_from)
        try:
            flow, target = self._open_flow_cookie(flow_cookie)
            if not hmac.compare_digest(flow.state.encode(), state.encode()):
                raise NotAuthenticated(
                    "cannot log in: the login was started in another browser or has expired; start again",
                    code="login.other_browser",
                )
            if issuer is not None and issuer != self.provider.config.issuer:
                raise NotAuthenticated(
                    "cannot log in: another provider answered than was requested; log in again",
                    code="login.wrong_issuer",
                )
            claims = await self.provider.claims(flow, code=code)
            role, name = self.provider.config.role_of(claims), display_name(claims)
            identity = f"{self.provider.config.issuer} {claims['sub']}"
            author = Author(name=name, role=role.value if role else "", via="login", came_from=came_from)
            if role is None:
                await self._store.change(lambda session: self._end_access(session, identity))
                raise NotAuthenticated(
                    f"cannot log in as {name!r}: no role is assigned; ask an admin", code="login.no_role"
                )
            cookie = await self._store.change(
                lambda session: self._open(session, identity, name, role, came_from=came_from, browser=browser)
            )
        except NotAuthenticated as problem:
            command = AuditedCommand(
                action="session.open", after={"by": "provider"}, result="refused", reason=str(problem)
            )
            await self._store.audit_log.write(author, command)
            raise
        return cookie, target

    def _open(self, session: Session, identity: str, name: str, role: Role, *, came_from: str, browser: str) -> str:
        user = queries.user_with_identity(session, identity)
        author = Author(name="astraflow", role="", via="provider", came_from=came_from)
        if user is None:
            user = queries.add_user(
                session, _free_name(session, name), role=role.value, now=self._store.clock.wall(), identity=identity
            )
            self._store.audit_log.append(
                session, author, AuditedCommand(action="user.add", target=user.name, after={"role": role.value})
            )
        if user.disabled_at is not None:
            raise NotAuthenticated("cannot log in: this user is disabled; ask an admin", code="login.disabled_user")
        if user.role != role.value:
            before, after = {"role": user.role}, {"role": role.value}
            self._store.audit_log.append(
                session, author, AuditedCommand(action="user.role", target=user.name, before=before, after=after)
            )
            user.role = role.value
        return self._sessions.open(session, user, opened_by="provider", came_from=came_from, browser=browser)

    def _end_access(self, session: Session, identity: str) -> None:
        """Ends the access of a user that has lost every role at the provider."""
        user = queries.user_with_identity(session, identity)
        if user is not None:
            queries.end_all_access_of(session, queries.id_of(user), now=self._store.clock.wall())

    def _open_flow_cookie(self, flow_cookie: str | None) -> tuple[LoginFlow, str]:
        sealed, _, seal = (flow_cookie or "").partition(".")
        refusal = NotAuthenticated(
            "cannot log in: the login was started in another browser or has expired; start again",
            code="login.other_browser",
        )
        if not hmac.compare_digest(seal.encode(), self._seal(sealed).encode()):
            raise refusal
        try:
            state, nonce, verifier, target, until = json.loads(base64.urlsafe_b64decode(sealed))
        except (ValueError, TypeError, binascii.Error):
            raise refusal from None
        if until <= self._store.clock.wall():
            raise refusal
        return LoginFlow(state=state, nonce=nonce, verifier=verifier), target

    def _seal(self, sealed: str) -> str:
        return self._store.digest(f"login flow {sealed}")


def _free_name(session: Session, name: str) -> str:
    """Name that no other user has; appends a number if needed."""
    number, free = 2, name
    while queries.user_named(session, free) is not None:
        free, number = f"{name} ({number})", number + 1
    return free
