"""Conversation of a wake as programs read it: the simulated models, and the tactics of small models."""

import json
from typing import Any, TypeAlias

from maintainer.agent.llm.interface import Message, TextPart, ToolCall, ToolReply

Step: TypeAlias = ToolCall | str
"""Next step: a tool call, or a final note."""


class ConversationView:
    """Opening, calls and replies of a wake."""

    def __init__(self, messages: tuple[Message, ...]) -> None:
        opening = next(part.text for part in messages[0].parts if isinstance(part, TextPart))
        wake_facts, _, report = opening.partition("\nfleet_report: ")
        self.wake_facts: dict[str, Any] = json.loads(wake_facts)
        self.report: dict[str, Any] = json.loads(report)
        self.calls = [part for message in messages for part in message.parts if isinstance(part, ToolCall)]
        self._texts = [
            part.text
            for message in messages
            if message.role == "assistant"
            for part in message.parts
            if isinstance(part, TextPart)
        ]
        replies = [part for message in messages for part in message.parts if isinstance(part, ToolReply)]
        self.replies: dict[str, dict[str, Any]] = {part.call: json.loads(part.content) for part in replies}

    @property
    def signals(self) -> list[dict[str, Any]]:
        """Signals that woke the maintainer."""
        signals: list[dict[str, Any]] = self.wake_facts["woken_by"]
        return signals

    def pool(self, token: str) -> dict[str, Any] | None:
        """Pool of the report with this token; None if unknown."""
        return next((pool for pool in self.report["pools"] if pool["pool"] == token), None)

    def answered_calls(self, tool: str) -> list[tuple[ToolCall, dict[str, Any]]]:
        """Calls of a tool with their replies."""
        return [(call, self.replies[call.id]) for call in self.calls if call.name == tool and call.id in self.replies]

    def first_reply(self, tool: str, **arguments: Any) -> dict[str, Any] | None:
        """Reply to the first call that has these arguments; None without one."""
        calls = self.answered_calls(tool)
        return next((reply for call, reply in calls if arguments.items() <= (call.arguments or {}).items()), None)

    def chosen(self, begin: str) -> list[str] | None:
        """Words after `begin` in a text of the model in this wake; None without one."""
        return next((text.removeprefix(begin).split() for text in self._texts if text.startswith(begin)), None)

    def call(self, tool: str, **arguments: Any) -> ToolCall:
        """Builds the next call."""
        return ToolCall(id=f"call-{len(self.calls) + 1}", name=tool, arguments=arguments)
