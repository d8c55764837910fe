"""Routes of the dialects."""

from typing import Any

from astraflow.agents.dialects.chat import ChatDialect
from astraflow.agents.dialects.dialect import Dialect
from astraflow.agents.dialects.messages import MessagesDialect
from astraflow.agents.dialects.responses import ResponsesDialect
from astraflow.agents.dialects.tokens import TokensDialect

_CHAT, _RESPONSES, _MESSAGES = ChatDialect(), ResponsesDialect(), MessagesDialect()

CALLS: dict[str, Dialect[Any, Any]] = {
    "/v1/chat/completions": _CHAT,
    "/v1/responses": _RESPONSES,
    "/v1/messages": _MESSAGES,
    "/inference/v1/generate": TokensDialect(),
}
"""Dialects by path of the requests for a reply."""
COUNTS = {"/v1/responses/input_tokens": _RESPONSES, "/v1/messages/count_tokens": _MESSAGES}
"""Dialects by path of the requests for a number of tokens."""
RESPONSES_PATH = "/v1/responses/"
"""Path of stored responses, before their id."""


def dialect_of(path: str, *, is_anthropic: bool) -> Dialect[Any, Any]:
    """Returns the dialect of a path; for other paths, the one in whose words an error is answered.

    is_anthropic: the request has a header that only clients of the messages API send.
    """
    known = CALLS.get(path) or COUNTS.get(path)
    return known or (_MESSAGES if is_anthropic else _CHAT)
