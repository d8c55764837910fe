"""Records of a session in the proxy: calls without secrets, and answers that later requests refer to."""

import re
from collections import OrderedDict

from astraflow.agents.calls import AgentMessage, CallHandler, CallRefused, Refusal, Role
from astraflow.contract.rollouts.agent_calls import MAX_BODY_CHARACTERS, MAX_CALLS, AgentCall, CallOutcome

_MAX_RESPONSES = 64
_REDACTED = b"[secret]"
_RECOGNIZED = 12
"""Characters of a secret that identify it; a text that has fewer of them reveals too little to guess the others."""


class CallRecords:
    """Recorded calls of a session."""

    def __init__(self, secret: str, *, is_recorded: bool) -> None:
        self.calls: list[tuple[AgentCall, str]] = []
        """Calls and the ids of their replies."""
        self.omitted = 0
        """Calls beyond the limit. Count."""
        self._is_recorded = is_recorded
        self._mark = secret[:_RECOGNIZED].encode()
        self._pattern = re.compile(re.escape(self._mark) + rb"[A-Za-z0-9_-]*")
        self._reply_ids: set[str] = set()

    def redacted(self, data: bytes) -> bytes:
        """Returns a text without the session's secret, even where it is cut, as in a quoted value."""
        return self._pattern.sub(_REDACTED, data) if self._mark in data else data

    def text(self, data: bytes) -> str:
        """Returns a body as it is recorded: without the secret, and cut."""
        if not self._is_recorded:
            return ""
        return self.redacted(data)[: 4 * MAX_BODY_CHARACTERS].decode(errors="replace")[:MAX_BODY_CHARACTERS]

    def add_reply(self, reply_id: str) -> CallOutcome:
        """Returns whether a reply is new, or was sent before and is repeated for a retry."""
        if reply_id in self._reply_ids:
            return CallOutcome.REPLAYED
        self._reply_ids.add(reply_id)
        return CallOutcome.ANSWERED

    def add(self, call: AgentCall, reply_id: str) -> None:
        """Records a call, up to the limit of recorded calls."""
        if not self._is_recorded or len(self.calls) >= MAX_CALLS:
            self.omitted += 1
        else:
            self.calls.append((call, reply_id))


class StoredResponses:
    """Answers of the Responses API, by the id of the reply."""

    def __init__(self, handler: CallHandler) -> None:
        self._handler = handler
        self._bodies: OrderedDict[str, bytes] = OrderedDict()
        self._with_instructions: set[str] = set()

    def add(self, reply_id: str, body: bytes, *, has_instructions: bool) -> None:
        """Keeps an answer; the bodies of the most recent ones."""
        self._bodies[reply_id] = body
        if has_instructions:
            self._with_instructions.add(reply_id)
        while len(self._bodies) > _MAX_RESPONSES:
            self._bodies.popitem(last=False)

    def body(self, reply_id: str) -> bytes:
        """Returns an answer that was kept. Raises: CallRefused."""
        body = self._bodies.get(reply_id)
        if body is None:
            raise CallRefused(
                f"cannot return the response {reply_id[:80]!r}: the session has no such response, or more than "
                f"{_MAX_RESPONSES} newer ones; use the id of a recent response",
                refusal=Refusal.NOT_FOUND,
                code="agent.unknown_response",
            )
        return body

    def conversation(self, reply_id: str) -> tuple[AgentMessage, ...]:
        """Returns the messages up to and including an earlier reply, without its `instructions`, which hold for one
        request. Raises: CallRefused."""
        messages = self._handler.conversation(reply_id)
        starts_with_system = bool(messages) and messages[0].role is Role.SYSTEM
        return messages[1:] if reply_id in self._with_instructions and starts_with_system else messages
