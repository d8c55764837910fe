"""Renderers: conversion of an agent program's messages to tokens for a policy, and of its tokens to a message."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from astraflow.agents.calls import AgentMessage, FunctionCall, Role
from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.tokenizers import ChatTokenizer, Message, ToolSchema
from astraflow.tools.call_parsers import (
    HERMES_CLOSE,
    HERMES_OPEN,
    THOUGHT_BEGIN,
    THOUGHT_END,
    call_spans,
    thought_end,
)
from astraflow.tools.calls import CallFormat, ToolCall
from astraflow.workflows.components.tool_calls import written_tools


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedReply:
    """Message that a policy wrote."""

    message: AgentMessage
    """Its function calls have no ids yet."""
    is_malformed: bool = False
    """The reply contains an unreadable function call, which stays part of its content."""

    def without_end(self, texts: Sequence[str]) -> "ParsedReply":
        """Returns the reply without the first of these texts that its content ends with."""
        content = self.message.content
        end = next((text for text in texts if content.endswith(text)), "")
        return replace(self, message=replace(self.message, content=content.removesuffix(end).rstrip()))


class Renderer(Protocol):
    """Chat format of a policy. Called from several threads at once."""

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Ids with which the policy ends a message."""

    @property
    def can_bridge(self) -> bool:
        """Returns whether answers can be continued; if not, `bridge` refuses."""

    def render(self, messages: Sequence[AgentMessage], tools: Sequence[ToolSchema]) -> Int32Array:
        """Returns the tokens of a whole conversation and of the start of the next answer.

        Raises: InvalidInput for messages that the chat format does not allow.
        """

    def bridge(
        self, read: Int32Array, written: Int32Array, messages: Sequence[AgentMessage], tools: Sequence[ToolSchema]
    ) -> Int32Array:
        """Returns the tokens between a sampled answer and the next answer: the end of the answer, unless it was
        sampled, `messages`, and the start of the next answer.

        read: tokens between the previous answer and the sampled one. written: the sampled tokens. tools: the tools at
        the beginning of the conversation. Takes time linear in the arguments, not in the conversation.
        Raises: InvalidInput for messages that the chat format does not allow, and when `can_bridge` is False.
        """

    def parse(self, read: Int32Array, written: Int32Array, tools: Sequence[ToolSchema]) -> ParsedReply:
        """Returns the message that a policy wrote. Arguments: as in `bridge`; without tools, function calls stay in the
        content."""


class TemplateRenderer:
    """Chat format of a `ChatTokenizer`. Function calls have the form of Hermes and Qwen:
    `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

    The chat template describes the tools if it supports them; otherwise the system message does. Results of tools are
    messages of the role `tool` if the template has that role; otherwise they are messages of the user.
    """

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Ids with which the policy ends a message."""
        return self._tokenizer.stop_tokens

    @cached_property
    def can_bridge(self) -> bool:
        """Returns whether the chat template leaves the tokens of earlier messages unchanged."""
        try:
            self._tokenizer.encode_continuation([{"role": "user", "content": ""}])
        except InvalidInput as problem:
            if problem.code != "model.template_changes_history":
                raise
            return False
        return True

    def render(self, messages: Sequence[AgentMessage], tools: Sequence[ToolSchema]) -> Int32Array:
        """Returns the tokens of a whole conversation and of the start of the next answer."""
        template_messages = list(self._template_messages(messages))
        if tools and not self._has_tool_template:
            described = written_tools(tools, CallFormat.HERMES)
            begins_with_system = bool(template_messages) and template_messages[0]["role"] == Role.SYSTEM.value
            system = f"{template_messages.pop(0)['content']}\n\n{described}" if begins_with_system else described
            template_messages.insert(0, {"role": Role.SYSTEM.value, "content": system})
        return self._tokenizer.encode_chat(template_messages, tools=tools if self._has_tool_template else ())

    def bridge(
        self, read: Int32Array, written: Int32Array, messages: Sequence[AgentMessage], tools: Sequence[ToolSchema]
    ) -> Int32Array:
        """Returns the tokens between a sampled answer and the next answer."""
        tokens = self._tokenizer.encode_continuation(list(self._template_messages(messages)))
        last_token = int(written[-1])
        is_ended = last_token in self.stop_tokens and tokens[:1].tolist() == [last_token]
        return tokens[1:] if is_ended else tokens

    def parse(self, read: Int32Array, written: Int32Array, tools: Sequence[ToolSchema]) -> ParsedReply:
        """Returns the message that a policy wrote."""
        text = self._tokenizer.decode(written)
        reasoning, content = _split_reasoning(text, begins_thinking=self._begins_thinking)
        calls: list[FunctionCall] = []
        content = _take_call(content, calls) if tools else content
        message = AgentMessage(
            role=Role.ASSISTANT, content=content.strip(), reasoning=reasoning, function_calls=tuple(calls)
        )
        return ParsedReply(message=message, is_malformed=bool(tools and call_spans(content, CallFormat.HERMES, ())))

    @cached_property
    def _has_tool_template(self) -> bool:
        return self._tokenizer.describes_tools(HERMES_OPEN)

    @cached_property
    def _begins_thinking(self) -> bool:
        """True if the chat template begins an answer with the start of a thought."""
        tokens = self._tokenizer.encode_chat([{"role": "user", "content": "a"}])
        return self._tokenizer.decode(tokens, keep_special_tokens=True).rstrip().endswith(THOUGHT_BEGIN)

    def _template_messages(self, messages: Sequence[AgentMessage]) -> Iterator[Message]:
        """Yields messages for the template. Without the role `tool`, consecutive results become one user message."""
        results: list[str] = []
        for message in messages:
            if message.role is Role.TOOL and not self._has_tool_template:
                results.append(f"<tool_response>\n{message.content}\n</tool_response>")
                continue
            if results:
                yield {"role": Role.USER.value, "content": "\n".join(results)}
                results = []
            content = _written(message) if message.role is Role.ASSISTANT else message.content
            yield {"role": message.role.value, "content": content}
        if results:
            yield {"role": Role.USER.value, "content": "\n".join(results)}


def _split_reasoning(text: str, *, begins_thinking: bool) -> tuple[str | None, str]:
    """Returns the thought (None without one) and the rest of the text."""
    end = thought_end(text, begins_thinking=begins_thinking)
    if end < 0 and not begins_thinking and not text.lstrip().startswith(THOUGHT_BEGIN):
        return None, text
    thought, rest = (text[:end], text[end + len(THOUGHT_END) :]) if end >= 0 else (text, "")
    thought = thought.strip().removeprefix(THOUGHT_BEGIN).strip()
    return thought or None, rest


def _take_call(source: str, calls: list[FunctionCall]) -> str:
    """Appends each function call in `source` and returns the text that remains, with the unreadable ones."""
    remaining: list[str] = []
    end = 0
    for span in call_spans(source, CallFormat.HERMES, ()):
        for call in span.calls:
            if isinstance(call, ToolCall):  # the only one of its span
                arguments = json.dumps(call.arguments, ensure_ascii=False)
                calls.append(FunctionCall(id="", name=call.name, arguments=arguments))
                remaining.append(source[end : span.begin])
                end = span.end
    return "".join([*remaining, source[end:]])


def _written(message: AgentMessage) -> str:
    """Returns an assistant message that was not sampled as the policy would have written it."""
    thought = f"{THOUGHT_BEGIN}\n{message.reasoning}\n{THOUGHT_END}\n\n" if message.reasoning else ""
    calls = [_written_call(call) for call in message.function_calls]
    return thought + "\n".join([*([message.content] if message.content else []), *calls])


def _written_call(call: FunctionCall) -> str:
    name = json.dumps(call.name, ensure_ascii=False)
    return f'{HERMES_OPEN}\n{{"name": {name}, "arguments": {call.arguments or "{}"}}}\n{HERMES_CLOSE}'
