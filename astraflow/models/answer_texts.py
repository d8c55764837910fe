"""Text of an answer in one form for all chat formats: a thought between `<think>` tags, content, and calls of functions
as `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Hermes and Qwen models write them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

THOUGHT_BEGIN, THOUGHT_END = "<think>", "</think>"
CALL_BEGIN, CALL_END = "<tool_call>", "</tool_call>"
MARKS = frozenset({THOUGHT_BEGIN, THOUGHT_END, CALL_BEGIN, CALL_END, "<tool_response>", "</tool_response>"})
"""Marks inside messages, which neither begin nor end one. They are text also where a tokenizer calls them special."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallText:
    """Call of a function in an answer."""

    name: str
    arguments: str
    """JSON text, as the policy or a client wrote it: it may be unreadable."""

    @property
    def text(self) -> str:
        """The call between its tags."""
        name = json.dumps(self.name, ensure_ascii=False)
        return f'{CALL_BEGIN}\n{{"name": {name}, "arguments": {self.arguments or "{}"}}}\n{CALL_END}'


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerParts:
    """Parts of an answer."""

    content: str = ""
    thought: str = ""
    calls: tuple[CallText, ...] = ()

    @property
    def text(self) -> str:
        """The answer as one text."""
        thought = f"{THOUGHT_BEGIN}\n{self.thought}\n{THOUGHT_END}\n\n" if self.thought else ""
        return thought + "\n".join([*([self.content] if self.content else []), *(call.text for call in self.calls)])


def answer_parts(text: str) -> AnswerParts:
    """Returns the parts of an answer's text; calls that cannot be read stay content.

    >>> answer_parts('<think>\\nhm\\n</think>\\n\\nNow <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    AnswerParts(content='Now', thought='hm', calls=(CallText(name='add', arguments='{"a": 1}'),))
    """
    thought, rest = "", text
    if text.lstrip().startswith(THOUGHT_BEGIN):
        thought, _, rest = text.lstrip().removeprefix(THOUGHT_BEGIN).partition(THOUGHT_END)
    calls = list(_calls(rest))
    begins, ends = [begin for begin, _, _ in calls], [0, *(end for _, end, _ in calls)]
    content = "".join(rest[end:begin] for end, begin in zip(ends, [*begins, len(rest)], strict=True))
    return AnswerParts(content=content.strip(), thought=thought.strip(), calls=tuple(call for _, _, call in calls))


def _calls(text: str) -> Iterator[tuple[int, int, CallText]]:
    """Yields the begin, the end and the text of each readable call."""
    end = 0
    while (begin := text.find(CALL_BEGIN, end)) >= 0:
        end = begin + len(CALL_BEGIN)
        start = end + len(text[end:]) - len(text[end:].lstrip())
        try:
            value, size = json.JSONDecoder().raw_decode(text[start:])
        except (ValueError, RecursionError):
            continue
        rest = text[start + size :].lstrip()
        if not rest.startswith(CALL_END) or not isinstance(value, dict) or not isinstance(value.get("name"), str):
            continue
        end = len(text) - len(rest) + len(CALL_END)
        arguments = value.get("arguments")
        if isinstance(arguments, dict):
            yield begin, end, CallText(name=value["name"], arguments=json.dumps(arguments, ensure_ascii=False))
