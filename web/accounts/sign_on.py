"""Logging in through an OpenID provider: authorization code flow with PKCE, from the button to the session."""

import base64
import binascii
import hmac
import json
import secrets

from sqlmodel import Session

from astraflow.contract.errors import NotAuthenticated
from web.accounts import queries
from web.accounts.provider import Flow, Provider, shown_name
from web.accounts.sessions import Sessions
from web.accounts.vault import Vault
from web.audit.entries import Author, Deed
from web.door.roles import Role

FLOW_S = 600.0
"""How long a person may take at the provider."""


class SignOn:
    """Sends browsers to the provider, and opens sessions for those who come back with a good answer.

    What a login needs to remember travels in a sealed cookie of the browser that began it, so that beginning one
    writes nothing, and a login begun in one browser cannot be finished in another.
    """

    def __init__(self, vault: Vault, sessions: Sessions, provider: Provider) -> None:
        self._vault = vault
        self._sessions = sessions
        self.provider = provider
        self.cookie_name = f"{sessions.cookie_name}_flow"

    async def begin(self, *, target: str) -> tuple[str, str]:
        """Where to send the browser, and the cookie it keeps meanwhile. Raises: Unavailable."""
        flow = Flow(
            state=secrets.token_urlsafe(24), nonce=secrets.token_urlsafe(24), verifier=secrets.token_urlsafe(48)
        )
        content = [flow.state, flow.nonce, flow.verifier, target, self._vault.clock.wall() + FLOW_S]
        sealed = base64.urlsafe_b64encode(json.dumps(content).encode()).decode()
        return await self.provider.address(flow), f"{sealed}.{self._seal(sealed)}"

    async def finish(
        self, kept: str | None, *, code: str, state: str, issuer: str | None, came_from: str, browser: str
    ) -> tuple[str, str]:
        """Redeem what the provider sent the browser back with: the session's cookie, and where to go on.

        kept: the browser's sealed cookie. issuer: as the answer names it, if it does (RFC 9207).
        Raises: NotAuthenticated, saying which check failed; Unavailable.
        """
        author = Author(name="", role="", via="login", came_from=came_from)
        try:
            flow, target = self._opened(kept)
            if not hmac.compare_digest(flow.state.encode(), state.encode()):
                raise NotAuthenticated("this login was not begun in this browser, or too long ago: begin again")
            if issuer is not None and issuer != self.provider.config.issuer:
                raise NotAuthenticated("another provider answered than was asked")
            claims = await self.provider.claims(flow, code=code)
            role, name = self.provider.config.role_of(claims), shown_name(claims)
            identity = f"{self.provider.config.issuer} {claims['sub']}"
            author = Author(name=name, role=role.value if role else "", via="login", came_from=came_from)
            if role is None:
                await self._vault.change(lambda session: self._shut_out(session, identity))
                raise NotAuthenticated(f"the provider knows you as {name}, to whom no role is given here: ask an admin")
            cookie = await self._vault.change(
                lambda session: self._open(session, identity, name, role, came_from=came_from, browser=browser)
            )
        except NotAuthenticated as problem:
            deed = Deed(action="session.open", after={"by": "provider"}, result="refused", reason=str(problem))
            await self._vault.trail.note(author, deed)
            raise
        return cookie, target

    def _open(self, session: Session, identity: str, name: str, role: Role, *, came_from: str, browser: str) -> str:
        user = queries.user_known_as(session, identity)
        author = Author(name="astraflow", role="", via="provider", came_from=came_from)
        if user is None:
            user = queries.add_user(
                session, _free_name(session, name), role=role.value, now=self._vault.clock.wall(), identity=identity
            )
            self._vault.trail.append(
                session, author, Deed(action="user.add", target=user.name, after={"role": role.value})
            )
        if user.disabled_at is not None:
            raise NotAuthenticated("you are locked out here: ask an admin")
        if user.role != role.value:
            before, after = {"role": user.role}, {"role": role.value}
            self._vault.trail.append(
                session, author, Deed(action="user.role", target=user.name, before=before, after=after)
            )
            user.role = role.value
        return self._sessions.open(session, user, opened_by="provider", came_from=came_from, browser=browser)

    def _shut_out(self, session: Session, identity: str) -> None:
        """Who lost every role at the provider has no session here either."""
        user = queries.user_known_as(session, identity)
        if user is not None:
            queries.end_everything_of(session, queries.id_of(user), now=self._vault.clock.wall())

    def _opened(self, kept: str | None) -> tuple[Flow, str]:
        sealed, _, seal = (kept or "").partition(".")
        refused = NotAuthenticated("this login was not begun in this browser, or too long ago: begin again")
        if not hmac.compare_digest(seal.encode(), self._seal(sealed).encode()):
            raise refused
        try:
            state, nonce, verifier, target, until = json.loads(base64.urlsafe_b64decode(sealed))
        except (ValueError, TypeError, binascii.Error):
            raise refused from None
        if until <= self._vault.clock.wall():
            raise refused
        return Flow(state=state, nonce=nonce, verifier=verifier), target

    def _seal(self, sealed: str) -> str:
        return self._vault.digest(f"login flow {sealed}")


def _free_name(session: Session, name: str) -> str:
    """The name, or the name and a number when somebody else at the provider has it."""
    number, free = 2, name
    while queries.user_named(session, free) is not None:
        free, number = f"{name} ({number})", number + 1
    return free
