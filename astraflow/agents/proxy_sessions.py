"""Sessions of the proxy: who may call, which calls are in progress, and what was called."""

import asyncio
import hashlib
import hmac
import re
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from astraflow.agents.calls import AgentMessage, CallHandler, CallRefused, Refusal, Role
from astraflow.contract.agent_calls import MAX_BODY_CHARACTERS, MAX_CALLS, AgentCall, CallOutcome
from astraflow.contract.values import Json
from astraflow.runtime.clock import Clock

_SECRET_BYTES = 32
_MAX_ENDED = 16384
_MAX_STORED_RESPONSES = 64
_REDACTED = b"[secret]"
_RECOGNIZED = 12
"""Characters of a secret that identify it; a text that has fewer of them reveals too little to guess the others."""


class ProxySession:
    """One agent's session: its handler, the calls in progress, and the record."""

    def __init__(self, handler: CallHandler, *, clock: Clock, is_recorded: bool, takes_reward: bool = False) -> None:
        self.handler = handler
        self.secret = f"sk-{secrets.token_urlsafe(_SECRET_BYTES)}"
        """Prefixed so that tools which scan texts for keys recognize it."""
        self._secret_mark = self.secret[:_RECOGNIZED].encode()
        self._secret_pattern = re.compile(re.escape(self._secret_mark) + rb"[A-Za-z0-9_-]*")
        self.record: list[tuple[AgentCall, str]] = []
        self.unrecorded_calls = 0
        self.failure: BaseException | None = None
        self.takes_reward = takes_reward
        self.reward: Json = None
        """Value that was posted as the score of the session."""
        self.is_ended = False
        self.body_bytes = 0
        """Of requests that are being read or answered."""
        self._clock = clock
        self._began_at = clock.now()
        self._is_recorded = is_recorded
        self._calls: set[asyncio.Task[Any]] = set()
        self._reply_ids: set[str] = set()
        self._responses: OrderedDict[str, bytes] = OrderedDict()
        self._with_instructions: set[str] = set()

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
        self._responses.clear()

    def elapsed_s(self) -> float:
        """Returns the time since the session began."""
        return self._clock.now() - self._began_at

    def redacted(self, data: bytes) -> bytes:
        """Returns a text without the session's secret, even where it is cut, as in a quoted value."""
        return self._secret_pattern.sub(_REDACTED, data) if self._secret_mark in data else data

    def add_reply(self, reply_id: str) -> CallOutcome:
        """Returns whether a reply is new, or was sent before and is repeated for a retry."""
        if reply_id in self._reply_ids:
            return CallOutcome.REPLAYED
        self._reply_ids.add(reply_id)
        return CallOutcome.ANSWERED

    def add_record(self, call: AgentCall, reply_id: str) -> None:
        """Records a call, up to the limit of recorded calls."""
        if not self._is_recorded or len(self.record) >= MAX_CALLS:
            self.unrecorded_calls += 1
        else:
            self.record.append((call, reply_id))

    def recorded_text(self, data: bytes) -> str:
        """Returns a body as it is recorded: without the secret, and cut."""
        if not self._is_recorded:
            return ""
        clean = self.redacted(data)
        return clean[: 4 * MAX_BODY_CHARACTERS].decode(errors="replace")[:MAX_BODY_CHARACTERS]

    def store_response(self, reply_id: str, body: bytes, *, has_instructions: bool) -> None:
        """Keeps an answer of the Responses API for `GET /v1/responses/{id}`: the most recent ones."""
        self._responses[reply_id] = body
        if has_instructions:
            self._with_instructions.add(reply_id)
        while len(self._responses) > _MAX_STORED_RESPONSES:
            self._responses.popitem(last=False)

    def stored_response(self, reply_id: str) -> bytes:
        """Returns an answer that was kept. Raises: CallRefused."""
        body = self._responses.get(reply_id)
        if body is None:
            raise CallRefused(
                f"cannot return the response {reply_id[:80]!r}: the session has no such response, or more than "
                f"{_MAX_STORED_RESPONSES} newer ones; use the id of a recent response",
                refusal=Refusal.NOT_FOUND,
                code="agent.unknown_response",
            )
        return body

    def conversation(self, reply_id: str) -> tuple[AgentMessage, ...]:
        """Returns the messages up to and including an earlier reply, without its `instructions`, which hold for one
        request. Raises: CallRefused."""
        messages = self.handler.conversation(reply_id)
        starts_with_system = bool(messages) and messages[0].role is Role.SYSTEM
        return messages[1:] if reply_id in self._with_instructions and starts_with_system else messages


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
        """Ends every session."""
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
