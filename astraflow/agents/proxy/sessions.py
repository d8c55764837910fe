"""Sessions of the proxy: who may call, and which calls are in progress."""

import asyncio
import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from astraflow.agents.calls import CallHandler, CallRefused, Refusal
from astraflow.agents.dialects.dialect import ParsedMessages
from astraflow.agents.proxy.records import CallRecords, StoredResponses
from astraflow.contract.values import Json
from astraflow.runtime.clock import Clock

_SECRET_BYTES = 32
_MAX_ENDED = 16384


class ProxySession:
    """One agent's session: its handler, the calls in progress, and what is kept of them."""

    def __init__(self, handler: CallHandler, *, clock: Clock, is_recorded: bool, takes_reward: bool = False) -> None:
        self.handler = handler
        self.secret = f"sk-{secrets.token_urlsafe(_SECRET_BYTES)}"
        """Prefixed so that tools which scan texts for keys recognize it."""
        self.records = CallRecords(self.secret, is_recorded=is_recorded)
        self.responses = StoredResponses(handler)
        self.known = ParsedMessages()
        """Messages of the latest answered request to chat completions."""
        self.failure: BaseException | None = None
        self.takes_reward = takes_reward
        self.reward: Json = None
        """Value that was posted as the score of the session."""
        self.is_ended = False
        self.body_bytes = 0
        """Size of the bodies of requests that are being read or answered."""
        self._clock = clock
        self._began_at = clock.now()
        self._calls: set[asyncio.Task[Any]] = set()

    def start(self, work: Any) -> asyncio.Task[Any]:
        """Starts a call of the handler, which ends with the session at the latest. Raises: CallRefused."""
        if self.is_ended:
            work.close()
            raise ended()
        task = asyncio.create_task(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return task

    async def end(self) -> None:
        """Refuses further calls, and cancels those in progress and waits for them."""
        self.is_ended = True
        calls = list(self._calls)
        for task in calls:
            task.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def elapsed_s(self) -> float:
        """Returns the time since the session began."""
        return self._clock.now() - self._began_at


class SessionTable:
    """Sessions by secret.

    A secret is looked up by a digest with a random key, so that the time of a lookup tells nothing about other secrets.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(_SECRET_BYTES)
        self._sessions: dict[bytes, ProxySession] = {}
        self._ended: OrderedDict[bytes, None] = OrderedDict()

    def open(self, handler: CallHandler, *, is_recorded: bool, takes_reward: bool = False) -> ProxySession:
        """Begins a session."""
        session = ProxySession(handler, clock=self._clock, is_recorded=is_recorded, takes_reward=takes_reward)
        self._sessions[self._digest(session.secret)] = session
        return session

    async def end(self, session: ProxySession) -> None:
        """Ends a session: its secret is answered as ended from now on."""
        digest = self._digest(session.secret)
        if self._sessions.pop(digest, None) is not None:
            self._ended[digest] = None
        while len(self._ended) > _MAX_ENDED:
            self._ended.popitem(last=False)
        await session.end()

    async def end_all(self) -> None:
        for session in list(self._sessions.values()):
            await self.end(session)

    def session(self, presented: Sequence[str]) -> ProxySession:
        """Returns the session of the first known secret. Raises: CallRefused."""
        digests = [self._digest(secret) for secret in presented]
        for digest in digests:
            if session := self._sessions.get(digest):
                return session
        if any(digest in self._ended for digest in digests):
            raise ended()
        raise CallRefused(
            "cannot authenticate: the key is missing or unknown; use base URL and key of the agent's environment",
            refusal=Refusal.UNAUTHENTICATED,
            code="agent.unknown_secret",
        )

    def _digest(self, secret: str) -> bytes:
        return hmac.digest(self._key, secret.encode(errors="replace"), hashlib.sha256)


def ended() -> CallRefused:
    """Returns the refusal of a call after the end of its session."""
    return CallRefused(
        "cannot answer the call: the session has ended; stop the agent", refusal=Refusal.ENDED, code="agent.ended"
    )
