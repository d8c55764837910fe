"""Renderers: conversion of an agent program's messages to tokens for a policy, and of its tokens to a message."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from astraflow.agents.calls import AgentMessage, FunctionCall, Role
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.answer_texts import THOUGHT_BEGIN, THOUGHT_END, AnswerParts, CallText
from astraflow.models.tokenizers import ChatTokenizer, Message, ToolSchema
from astraflow.tools.call_parsers import call_spans, thought_end
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


class Renderer:
    """Messages of an agent program in the chat format of a policy. Called from several threads at once.

    The chat format describes the tools if it supports them; otherwise the system message does. Results of tools are
    messages of the role `tool` if the format has that role; otherwise they are messages of the user.
    """

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer

    def render(self, messages: Sequence[AgentMessage], tools: Sequence[ToolSchema]) -> Int32Array:
        """Returns the tokens of a whole conversation and of the start of the next answer.

        Raises: InvalidInput for messages that the chat format does not allow.
        """
        template_messages = list(self._template_messages(messages))
        if tools and not self._tokenizer.has_tools:
            described = written_tools(tools, CallFormat.HERMES)
            begins_with_system = bool(template_messages) and template_messages[0]["role"] == Role.SYSTEM.value
            system = f"{template_messages.pop(0)['content']}\n\n{described}" if begins_with_system else described
            template_messages.insert(0, {"role": Role.SYSTEM.value, "content": system})
        return self._tokenizer.encode_chat(template_messages, tools=self._described(tools))

    def bridge(
        self, read: Int32Array, written: Int32Array, messages: Sequence[AgentMessage], tools: Sequence[ToolSchema]
    ) -> Int32Array:
        """Returns the tokens between a sampled answer and the next answer. Arguments and errors: as of
        `ChatTokenizer.bridge`."""
        following = list(self._template_messages(messages))
        return self._tokenizer.bridge(read, written, following, tools=self._described(tools))

    def parse(self, read: Int32Array, written: Int32Array, tools: Sequence[ToolSchema]) -> ParsedReply:
        """Returns the message that a policy wrote; without tools, function calls stay in the content."""
        text = self._tokenizer.answer_text(read, written, tools=self._described(tools))
        reasoning, content = _split_reasoning(text)
        calls: list[FunctionCall] = []
        content = _take_call(content, calls) if tools else content
        message = AgentMessage(
            role=Role.ASSISTANT, content=content.strip(), reasoning=reasoning, function_calls=tuple(calls)
        )
        return ParsedReply(message=message, is_malformed=bool(tools and call_spans(content, CallFormat.HERMES, ())))

    def _described(self, tools: Sequence[ToolSchema]) -> Sequence[ToolSchema]:
        return tools if self._tokenizer.has_tools else ()

    def _template_messages(self, messages: Sequence[AgentMessage]) -> Iterator[Message]:
        """Yields messages for the template. Without the role `tool`, consecutive results become one user message."""
        results: list[str] = []
        for message in messages:
            if message.role is Role.TOOL and not self._tokenizer.has_tools:
                results.append(f"<tool_response>\n{message.content}\n</tool_response>")
                continue
            if results:
                yield {"role": Role.USER.value, "content": "\n".join(results)}
                results = []
            content = _written(message) if message.role is Role.ASSISTANT else message.content
            call_id = {"tool_call_id": message.call_id} if message.role is Role.TOOL and message.call_id else {}
            yield {"role": message.role.value, "content": content, **call_id}
        if results:
            yield {"role": Role.USER.value, "content": "\n".join(results)}


def _split_reasoning(text: str) -> tuple[str | None, str]:
    """Returns the thought (None without one) and the rest of the text."""
    begins_thinking = text.lstrip().startswith(THOUGHT_BEGIN)
    end = thought_end(text)
    if end < 0 and not begins_thinking:
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
    calls = tuple(CallText(name=call.name, arguments=call.arguments) for call in message.function_calls)
    return AnswerParts(content=message.content, thought=message.reasoning or "", calls=calls).text
