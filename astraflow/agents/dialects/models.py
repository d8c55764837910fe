"""Answers of `GET /v1/models` and `GET /v1/models/{name}`, in the words of both APIs that have the route."""

from collections.abc import Sequence

from astraflow.agents.calls import CallRefused, Refusal
from astraflow.agents.dialects.dialect import Json


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
    models = [describe(known) for known in names]
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
