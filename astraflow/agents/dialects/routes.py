"""Routes of the dialects, and the answers of `GET /v1/models`, which two APIs have."""

from collections.abc import Sequence
from typing import Any

from astraflow.agents.calls import CallRefused, Refusal
from astraflow.agents.dialects.chat import ChatDialect
from astraflow.agents.dialects.dialect import CountingDialect, Dialect, Json
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
COUNTS: dict[str, CountingDialect] = {"/v1/responses/input_tokens": _RESPONSES, "/v1/messages/count_tokens": _MESSAGES}
"""Dialects by path of the requests for a number of tokens."""
RESPONSES_PATH = "/v1/responses/"
"""Path of stored responses, before their id."""


def dialect_of(path: str, *, is_anthropic: bool) -> Dialect[Any, Any]:
    """Returns the dialect of a path; for an unknown path, the dialect of the error message.

    is_anthropic: the request has a header that only clients of the messages API send.
    """
    if path in CALLS:
        return CALLS[path]
    if path in COUNTS:
        return COUNTS[path]
    return _MESSAGES if is_anthropic else _CHAT


def model_answer(names: Sequence[str], name: str, *, is_anthropic: bool) -> Json:
    """Returns the description of a model, or the list of all for an empty name. Raises: CallRefused."""
    describe = _anthropic_model if is_anthropic else _openai_model
    if name:
        if name not in names:
            raise CallRefused(
                f"cannot describe the model {name[:80]!r}: the session has no such policy; use one of "
                f"{', '.join(names)[:400]}",
                refusal=Refusal.NOT_FOUND,
                code="agent.unknown_model",
            )
        return describe(name)
    models = [describe(listed_name) for listed_name in names]
    if not is_anthropic:
        return {"object": "list", "data": models}
    ends = {"first_id": names[0] if names else None, "last_id": names[-1] if names else None}
    return {"data": models, "has_more": False, **ends}


def _openai_model(name: str) -> Json:
    return {"id": name, "object": "model", "created": 0, "owned_by": "astraflow"}


def _anthropic_model(name: str) -> Json:
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active",
    }
