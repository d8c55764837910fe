"""Proxy: the HTTP server on loopback through which agent programs call the models of their sessions."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from astraflow.agents.calls import CallHandler
from astraflow.agents.proxy.app import FIRST_BYTE_S, KEEP_ALIVE_S, ProxyApp
from astraflow.agents.proxy.connections import BoundedConnection
from astraflow.agents.proxy.sessions import ProxySession, SessionTable
from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.agent_calls import AgentCall
from astraflow.contract.values import Json
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.http.guard import BrowserGuard
from astraflow.runtime.http.server import listening, serving_http, url_of

_HOST = "127.0.0.1"
_IDLE_S = 75


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyOptions:
    """Addresses and times of a proxy."""

    port: int = 0
    """On loopback; 0 takes a free one."""
    first_byte_s: float = FIRST_BYTE_S
    """Time after which a stream begins with comments while its reply is not there."""
    keep_alive_s: float = KEEP_ALIVE_S
    """Time between these comments."""


class SessionAccess:
    """A session as the workflow sees it: how its agent reaches the proxy, and what it called."""

    def __init__(self, session: ProxySession, *, origin: str) -> None:
        self._session = session
        self._origin = origin

    @property
    def secret(self) -> str:
        """Key of the session, with 256 random bits."""
        return self._session.secret

    @property
    def url(self) -> str:
        """Base URL that contains the secret, for programs that cannot set a key; without `/v1`."""
        return f"{self._origin}/s/{self.secret}"

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables from which clients read base URL and key."""
        return environment(self.url, self.secret)

    @property
    def record(self) -> list[tuple[AgentCall, str]]:
        """Calls and the ids of their replies, in the order of their ends; an empty id for those without a reply."""
        return self._session.records.calls

    @property
    def unrecorded_calls(self) -> int:
        """Calls beyond the limit of recorded calls. Count."""
        return self._session.records.omitted

    @property
    def reward(self) -> Json:
        """Value that was posted last to `/reward` of the session; None without one."""
        return self._session.reward

    @property
    def failure(self) -> BaseException | None:
        """Error of the handler, other than a refusal, that a call was answered with last; the session has failed."""
        return self._session.failure


class AgentProxy:
    """One HTTP server for all agents of a node."""

    def __init__(self, options: ProxyOptions | None = None, *, clock: Clock | None = None) -> None:
        self._options = options or ProxyOptions()
        self._clock = clock or SystemClock()
        self._sessions = SessionTable(self._clock)
        self._stack: AsyncExitStack | None = None
        self._origin = ""

    @property
    def origin(self) -> str:
        """URL without a path, such as `http://127.0.0.1:4321`. Raises: InvalidInput before `start`."""
        if not self._origin:
            raise InvalidInput(
                "cannot use the proxy of agents: it is not started; call `start` first", code="agent.proxy_not_started"
            )
        return self._origin

    @property
    def port(self) -> int:
        """Port on loopback. Raises: InvalidInput before `start`."""
        return int(self.origin.rpartition(":")[2])

    async def start(self) -> None:
        """Listens. Raises: InvalidInput when an address is in use."""
        options = self._options
        async with AsyncExitStack() as stack:
            listener = stack.enter_context(listening(_HOST, options.port))
            origin = url_of(listener, _HOST)
            app = ProxyApp(
                self._sessions, self._clock, first_byte_s=options.first_byte_s, keep_alive_s=options.keep_alive_s
            )
            guard = BrowserGuard(app, checks_host=False, needs_json=False)  # each request needs a session's secret
            serving = serving_http(guard, listener, http=BoundedConnection, ws="none", timeout_keep_alive=_IDLE_S)
            await stack.enter_async_context(serving)
            stack.push_async_callback(self._sessions.end_all)
            self._stack = stack.pop_all()
            self._origin = origin

    async def close(self) -> None:
        """Ends all sessions and stops listening."""
        stack, self._stack, self._origin = self._stack, None, ""
        if stack is not None:
            await stack.aclose()

    @asynccontextmanager
    async def session(
        self, handler: CallHandler, *, is_recorded: bool = True, takes_reward: bool = False
    ) -> AsyncIterator[SessionAccess]:
        """Opens a session, which ends with the block: calls in progress are cancelled and later ones are refused.

        is_recorded: keep the bodies of calls in `SessionAccess.record`. takes_reward: a JSON value may be posted to
        `/reward`.
        """
        access_origin = self.origin
        session = self._sessions.open(handler, is_recorded=is_recorded, takes_reward=takes_reward)
        try:
            yield SessionAccess(session, origin=access_origin)
        finally:
            await asyncio.shield(self._sessions.end(session))


def environment(url: str, secret: str) -> dict[str, str]:
    """Returns the environment variables from which SDKs and agents read base URL and key.

    url: base URL without `/v1`. The Anthropic SDK and LiteLLM append `/v1` to an Anthropic base URL themselves.
    """
    return {
        "OPENAI_API_KEY": secret,
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_BASE": f"{url}/v1",
        "ANTHROPIC_API_KEY": secret,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_BASE": url,
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }
