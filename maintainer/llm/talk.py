"""What was said in a wake so far, as a scripted character reads it."""

import json
from typing import Any, TypeAlias

from maintainer.llm.base import Message, Said, ToolCall, ToolReply

Step: TypeAlias = ToolCall | str
"""What a character does next: call a tool, or end with a note."""


class Talk:
    """What was said so far, as a character reads it."""

    def __init__(self, messages: tuple[Message, ...]) -> None:
        opening = next(part.text for part in messages[0].parts if isinstance(part, Said))
        told, _, report = opening.partition("\nfleet_report: ")
        self.told: dict[str, Any] = json.loads(told)
        self.report: dict[str, Any] = json.loads(report)
        self.calls = [part for message in messages for part in message.parts if isinstance(part, ToolCall)]
        replies = [part for message in messages for part in message.parts if isinstance(part, ToolReply)]
        self.replies: dict[str, dict[str, Any]] = {part.call: json.loads(part.content) for part in replies}

    @property
    def signals(self) -> list[dict[str, Any]]:
        """Why it was woken."""
        found: list[dict[str, Any]] = self.told["woken_by"]
        return found

    def pool(self, token: str) -> dict[str, Any] | None:
        """One pool of the report."""
        return next((pool for pool in self.report["pools"] if pool["pool"] == token), None)

    def made(self, tool: str) -> list[tuple[ToolCall, dict[str, Any]]]:
        """Calls of a tool, with what came of them."""
        return [(call, self.replies[call.id]) for call in self.calls if call.name == tool and call.id in self.replies]

    def asked(self, tool: str, **arguments: Any) -> dict[str, Any] | None:
        """What came of the first call with these arguments among others; None while there was none."""
        made = self.made(tool)
        return next((reply for call, reply in made if arguments.items() <= (call.arguments or {}).items()), None)

    def call(self, tool: str, **arguments: Any) -> ToolCall:
        """The next call."""
        return ToolCall(id=f"call-{len(self.calls) + 1}", name=tool, arguments=arguments)
