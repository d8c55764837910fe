"""Clients that speak a dialect: each call and reply travels as the JSON that an SDK would send and read."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from astraflow.agents.calls import (
    AgentMessage,
    FunctionCall,
    ModelCall,
    ModelReply,
    ReplyFinish,
    Role,
    TokenCall,
    TokenReply,
)
from astraflow.agents.dialects.chat import ChatDialect
from astraflow.agents.dialects.dialect import CallContext, ParsedMessages, parse_json, to_json
from astraflow.agents.dialects.messages import MessagesDialect
from astraflow.agents.dialects.responses import ResponsesDialect
from astraflow.agents.dialects.tokens import TokensDialect
from astraflow.agents.policy_session import PolicySession

Json = dict[str, Any]


class Calls(Protocol):
    """Calls of a session, as random agents use them."""

    async def complete(self, call: ModelCall) -> ModelReply: ...

    async def generate(self, call: TokenCall) -> TokenReply: ...


@dataclass
class DialectClient:
    """Sends model calls in the dialect of `name`, and token calls in that of tokens."""

    session: PolicySession
    name: str
    known: ParsedMessages = field(default_factory=ParsedMessages)
    """Messages of the latest answered call, as the proxy keeps them."""

    async def complete(self, call: ModelCall) -> ModelReply:
        """Returns the reply as the client reads it."""
        dialect, body_of, message_of = DIALECTS[self.name]
        parsed = dialect.parse(_sent(body_of(call)), self._context(call))
        reply = await self.session.complete(parsed.call)
        if self.name == "chat":
            self.known = ParsedMessages(sent=parsed.body["messages"], messages=parsed.call.messages)
        return replace(reply, message=message_of(_sent(dialect.reply(parsed, reply))))

    async def generate(self, call: TokenCall) -> TokenReply:
        """Returns the tokens that the client reads."""
        sampling: Json = {"logprobs": 1}
        body = {"model": call.options.model, "token_ids": call.prompt.tolist(), "sampling_params": sampling}
        parsed = TokensDialect().parse(_sent(body), self._context(call))
        reply = await self.session.generate(parsed.call)
        (choice,) = _sent(TokensDialect().reply(parsed, reply))["choices"]
        logprobs = [token["logprob"] for token in choice["logprobs"]["content"]]
        return TokenReply(
            id=reply.id,
            tokens=np.array(choice["token_ids"], dtype=np.int32),
            logprobs=np.array(logprobs, dtype=np.float32),
            finish=ReplyFinish(choice["finish_reason"]),
        )

    def _context(self, call: ModelCall | TokenCall) -> CallContext:
        return CallContext(
            retry_key=call.options.retry_key,
            is_retry=call.options.is_retry,
            created_s=0,
            conversation=self.session.conversation,
            known=self.known,
        )


def _sent(body: Json) -> Json:
    return parse_json(to_json(body))


def _options(call: ModelCall, limit: str) -> Json:
    return {"model": call.options.model, **({limit: call.options.max_tokens} if call.options.max_tokens else {})}


def _functions(call: ModelCall) -> Sequence[Json]:
    return [tool["function"] for tool in call.tools]


def _chat_body(call: ModelCall) -> Json:
    def message_of(message: AgentMessage) -> Json:
        body: Json = {"role": message.role.value, "content": message.content or None}
        if message.role is Role.TOOL:
            return {**body, "content": message.content, "tool_call_id": message.call_id}
        if message.reasoning is not None:
            body["reasoning_content"] = message.reasoning
        calls = [
            {
                "id": function_call.id,
                "type": "function",
                "function": {"name": function_call.name, "arguments": function_call.arguments},
            }
            for function_call in message.function_calls
        ]
        return {**body, **({"tool_calls": calls} if calls else {})}

    tools = [{"type": "function", "function": function} for function in _functions(call)]
    messages = [message_of(message) for message in call.messages]
    return {**_options(call, "max_completion_tokens"), "messages": messages, "tools": tools}


def _chat_message(body: Json) -> AgentMessage:
    message = body["choices"][0]["message"]
    calls = [(function_call["id"], function_call["function"]) for function_call in message.get("tool_calls", ())]
    return _assistant(
        message["content"] or "",
        message.get("reasoning_content"),
        [FunctionCall(id=identity, **function) for identity, function in calls],
    )


def _responses_body(call: ModelCall) -> Json:
    def items_of(message: AgentMessage) -> list[Json]:
        if message.role is Role.TOOL:
            return [{"type": "function_call_output", "call_id": message.call_id, "output": message.content}]
        thought = {"type": "reasoning", "summary": []}
        items = []
        if message.reasoning is not None:
            items.append({**thought, "content": [{"type": "reasoning_text", "text": message.reasoning}]})
        if message.content or message.role is not Role.ASSISTANT or not message.function_calls:
            items.append({"type": "message", "role": message.role.value, "content": message.content})
        return items + [
            {
                "type": "function_call",
                "call_id": function_call.id,
                "name": function_call.name,
                "arguments": function_call.arguments,
            }
            for function_call in message.function_calls
        ]

    tools = [{"type": "function", **function} for function in _functions(call)]
    items = [item for message in call.messages for item in items_of(message)]
    return {**_options(call, "max_output_tokens"), "input": items, "tools": tools}


def _responses_message(body: Json) -> AgentMessage:
    by_type: dict[str, list[Json]] = {"reasoning": [], "message": [], "function_call": []}
    for item in body["output"]:
        by_type[item["type"]].append(item)
    texts = {
        kind: [part["text"] for item in by_type[kind] for part in item["content"]]
        for kind in by_type
        if kind != "function_call"
    }
    calls = [
        FunctionCall(id=item["call_id"], name=item["name"], arguments=item["arguments"])
        for item in by_type["function_call"]
    ]
    return _assistant("".join(texts["message"]), "".join(texts["reasoning"]) if texts["reasoning"] else None, calls)


def _messages_body(call: ModelCall) -> Json:
    def message_of(message: AgentMessage) -> Json:
        if message.role is Role.TOOL:
            block = {"type": "tool_result", "tool_use_id": message.call_id, "content": message.content}
            return {"role": "user", "content": [block]}
        blocks: list[Json] = []
        if message.reasoning is not None:
            blocks.append({"type": "thinking", "thinking": message.reasoning, "signature": ""})
        if message.content:
            blocks.append({"type": "text", "text": message.content})
        blocks += [
            {
                "type": "tool_use",
                "id": function_call.id,
                "name": function_call.name,
                "input": json.loads(function_call.arguments),
            }
            for function_call in message.function_calls
        ]
        return {"role": message.role.value, "content": blocks}

    tools = [
        {"name": function["name"], "description": function["description"], "input_schema": function["parameters"]}
        for function in _functions(call)
    ]
    messages = [message_of(message) for message in call.messages]
    return {"max_tokens": 4096, **_options(call, "max_tokens"), "messages": messages, "tools": tools}


def _messages_message(body: Json) -> AgentMessage:
    blocks: list[Json] = body["content"]
    thoughts = [block["thinking"] for block in blocks if block["type"] == "thinking"]
    calls = [
        FunctionCall(id=block["id"], name=block["name"], arguments=json.dumps(block["input"]))
        for block in blocks
        if block["type"] == "tool_use"
    ]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    return _assistant(text, "".join(thoughts) if thoughts else None, calls)


def _assistant(text: str, reasoning: str | None, calls: Sequence[FunctionCall]) -> AgentMessage:
    return AgentMessage(role=Role.ASSISTANT, content=text, reasoning=reasoning, function_calls=tuple(calls))


BodyOf = Callable[[ModelCall], Json]
MessageOf = Callable[[Json], AgentMessage]
DIALECTS: dict[str, tuple[ChatDialect | ResponsesDialect | MessagesDialect, BodyOf, MessageOf]] = {
    "chat": (ChatDialect(), _chat_body, _chat_message),
    "responses": (ResponsesDialect(), _responses_body, _responses_message),
    "messages": (MessagesDialect(), _messages_body, _messages_message),
}
"""Dialect, the body that a client sends, and the message that it reads."""
