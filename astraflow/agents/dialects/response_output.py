"""Responses of the Responses API: their items, and the events that stream them."""

import base64
from collections.abc import Iterator
from typing import Any

from astraflow.agents.calls import AgentMessage, ModelCall, ModelReply, ReplyFinish
from astraflow.agents.dialects import fields
from astraflow.agents.dialects.dialect import Json, ParsedCall, event

_ENCRYPTED = "reasoning.encrypted_content"
"""Asked for by clients that keep the conversation themselves. They send thoughts back only in this form, so the text is
encoded there; it is no secret from the client."""


def response_body(parsed: ParsedCall[ModelCall], reply: ModelReply) -> Json:
    call, body = parsed.call, parsed.body
    is_cut = reply.finish is ReplyFinish.LENGTH
    return {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": parsed.context.created_s,
        "completed_at": None if is_cut else parsed.context.created_s,
        "status": "incomplete" if is_cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "instructions": body.get("instructions"),
        "max_output_tokens": call.options.max_tokens,
        "metadata": fields.mapping(body, "metadata") or {},
        "model": call.options.model,
        "output": reply_items(reply.message, reply.id, body, status="incomplete" if is_cut else "completed"),
        "parallel_tool_calls": call.allows_parallel_calls,
        "previous_response_id": body.get("previous_response_id"),
        "temperature": call.options.temperature,
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": [_echoed(tool["function"]) for tool in call.tools],
        "top_p": call.options.top_p,
        "truncation": "disabled",
        "usage": {
            "input_tokens": reply.prompt_tokens,
            "input_tokens_details": {"cached_tokens": reply.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": reply.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        },
    }


def response_events(body: Json) -> Iterator[bytes]:
    begun = {**body, "status": "in_progress", "completed_at": None, "incomplete_details": None, "output": []}
    begun["usage"] = None
    for number, (kind, values) in enumerate(_events(begun, body)):
        yield event({"type": kind, "sequence_number": number, **values}, name=kind)


def _events(begun: Json, body: Json) -> Iterator[tuple[str, Json]]:
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    for index, item in enumerate(body["output"]):
        started = _started(item)
        yield "response.output_item.added", {"output_index": index, "item": started}
        for kind, values in _item_events(item):
            yield kind, {"item_id": item["id"], "output_index": index, **values}
        yield "response.output_item.done", {"output_index": index, "item": item}
    yield f"response.{body['status']}", {"response": body}


def _item_events(item: Json) -> Iterator[tuple[str, Json]]:
    if item["type"] == "function_call":
        yield "response.function_call_arguments.delta", {"delta": item["arguments"]}
        yield "response.function_call_arguments.done", {"name": item["name"], "arguments": item["arguments"]}
        return
    part = item["content"][0]
    kind = "reasoning_text" if item["type"] == "reasoning" else "output_text"
    extra: Json = {"logprobs": []} if kind == "output_text" else {}
    yield "response.content_part.added", {"content_index": 0, "part": {**part, "text": ""}}
    yield f"response.{kind}.delta", {"content_index": 0, "delta": part["text"], **extra}
    yield f"response.{kind}.done", {"content_index": 0, "text": part["text"], **extra}
    yield "response.content_part.done", {"content_index": 0, "part": part}


def _started(item: Json) -> Json:
    empty: dict[str, Any] = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
    return {**item, "status": "in_progress", **empty}


def reply_of_item(item_id: str) -> str:
    """Returns the id of the reply that contains an item."""
    kind, _, identity = item_id.partition("_")
    return identity.rpartition("_")[0] if kind == "fc" else identity


def reply_items(message: AgentMessage, reply_id: str, body: Json, *, status: str = "completed") -> list[Json]:
    """Returns the items of a reply. body: of the request that they are for."""
    items: list[Json] = []
    if message.reasoning is not None:
        items.append(_reasoning(message.reasoning, f"rs_{reply_id}", body))
    if message.content or not message.function_calls:
        part = {"type": "output_text", "text": message.content, "annotations": [], "logprobs": []}
        items.append(
            {"type": "message", "id": f"msg_{reply_id}", "role": "assistant", "status": status, "content": [part]}
        )
    for number, call in enumerate(message.function_calls):
        identity = {"type": "function_call", "id": f"fc_{reply_id}_{number}", "call_id": call.id}
        items.append({**identity, **_names(call.name, body), "arguments": call.arguments, "status": status})
    return items


def full_name(namespace: str, name: str) -> str:
    """Returns the name by which the policy calls a function."""
    return f"{namespace}.{name}" if namespace else name


def _names(name: str, body: Json) -> Json:
    """Returns the name of a function as the client defined it, and its namespace if it has one."""
    for _, tool in fields.objects(body, "tools"):
        if tool.get("type") == "namespace" and name.startswith(prefix := full_name(tool["name"], "")):
            return {"namespace": tool["name"], "name": name.removeprefix(prefix)}
    return {"name": name}


def _reasoning(thought: str, identity: str, body: Json) -> Json:
    item: Json = {
        "type": "reasoning",
        "id": identity,
        "summary": [],
        "content": [{"type": "reasoning_text", "text": thought}],
        "status": "completed",
    }
    if _ENCRYPTED in fields.strings(body, "include"):
        item["encrypted_content"] = base64.b64encode(thought.encode()).decode()
    return item


def _echoed(function: Any) -> Json:
    return {
        "type": "function",
        "name": function["name"],
        "description": function.get("description"),
        "parameters": function["parameters"],
        "strict": function.get("strict", False),
    }
