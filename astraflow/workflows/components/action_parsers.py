"""Parsers of the action in a turn: they return the action in a text, or the reason why it has none.

All take time linear in the text. Text before the end of a thought (`</think>`) is not read; one inside an action that
has marks of its own (a tag, a JSON object, `Action:`) belongs to the action.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from astraflow.models.answer_texts import THOUGHT_END

MAX_ACTION_CHARACTERS = 4096
"""Longer actions are refused."""

_LABEL = re.compile(r"(?:action|ACTION|Action) ?: ?")
_INTEGER = re.compile(r"[0-9]{1,6}")
_FENCE = "```"


class ActionFormat(Enum):
    """Form in which the policy writes its action."""

    LAST_LINE = "last_line"
    """The last line that is not empty, with or without `Action:` before it."""
    TAG = "tag"
    """Between the last `<action>` and `</action>`."""
    JSON = "json"
    """The field `action` of a JSON object: in the last code block, or from the first to the last brace."""
    NUMBER = "number"
    """The last number of the last line that is not empty: that of an admissible action, from 1."""


class UnreadableAction(Exception):
    """A turn has no readable action; the message tells the policy what is expected."""


def parse_action(text: str, form: ActionFormat, actions: Sequence[str] = ()) -> str:
    """Returns the action of a turn. actions: admissible actions, for numbers. Raises: UnreadableAction.

    >>> parse_action("I am hungry.\\nAction: eat the apple", ActionFormat.LAST_LINE)
    'eat the apple'
    >>> parse_action("Number 2 is best: 2", ActionFormat.NUMBER, ["wait", "go north"])
    'go north'
    """
    action = (_action_with_thought_end(text, form) or _PARSERS[form](_after_thought(text), actions)).strip()
    if not action:
        raise UnreadableAction("The action is empty.")
    if len(action) > MAX_ACTION_CHARACTERS:
        raise UnreadableAction(f"The action is longer than {MAX_ACTION_CHARACTERS} characters.")
    return action


def _after_thought(text: str) -> str:
    """Returns the text after the first end of a thought, which the policy's own later mention of it does not move."""
    _, end, rest = text.partition(THOUGHT_END)
    return rest if end else text


def _action_with_thought_end(text: str, form: ActionFormat) -> str:
    """Returns the action if it contains the end of a thought; empty for every other."""
    is_marked = form in (ActionFormat.TAG, ActionFormat.JSON) or _LABEL.match(text.strip().rpartition("\n")[2].strip())
    if THOUGHT_END not in text or not is_marked:
        return ""
    try:
        action = _PARSERS[form](text, ())
    except UnreadableAction:
        return ""
    return action if THOUGHT_END in action else ""


def tagged_texts(text: str, tag: str) -> list[str]:
    """Returns the texts between `<tag>` and the next `</tag>`, without the spaces around them.

    A regular expression would search to the end of the text from each tag without an end.

    >>> tagged_texts("<task> 2+3 </task> and <task>4*5</task> <task>", "task")
    ['2+3', '4*5']
    """
    parts = (piece.partition(f"<{tag}>") for piece in text.split(f"</{tag}>")[:-1])
    return [content.strip() for _, opening, content in parts if opening]


def _last_line(text: str, actions: Sequence[str]) -> str:
    line = text.strip().rpartition("\n")[2].strip()
    label = _LABEL.match(line)
    return line[label.end() :] if label else line


def _tagged(text: str, actions: Sequence[str]) -> str:
    _, opening, rest = text.rpartition("<action>")
    action, closing, _ = rest.partition("</action>")
    if not opening or not closing:
        raise UnreadableAction("Write the action between <action> and </action>.")
    return action


def _of_json(text: str, actions: Sequence[str]) -> str:
    pieces = text.rsplit(_FENCE, maxsplit=2)
    source = pieces[1].removeprefix("json") if len(pieces) == 3 else text[text.find("{") : text.rfind("}") + 1]
    try:
        value = json.loads(source)
    except (ValueError, RecursionError):
        value = None
    action = value.get("action") if isinstance(value, Mapping) else None
    if not isinstance(action, str | int):
        raise UnreadableAction('Write the action as a JSON object: {"action": "..."}.')
    return str(action).encode(errors="replace").decode()


def _numbered(text: str, actions: Sequence[str]) -> str:
    numbers = _INTEGER.findall(text.strip().rpartition("\n")[2])
    if not numbers or not 1 <= int(numbers[-1]) <= len(actions):
        raise UnreadableAction(f"Write the number of an action, from 1 to {len(actions)}, on the last line.")
    return actions[int(numbers[-1]) - 1]


_PARSERS: Mapping[ActionFormat, Callable[[str, Sequence[str]], str]] = {
    ActionFormat.LAST_LINE: _last_line,
    ActionFormat.TAG: _tagged,
    ActionFormat.JSON: _of_json,
    ActionFormat.NUMBER: _numbered,
}

INSTRUCTIONS: Mapping[ActionFormat, str] = {
    ActionFormat.LAST_LINE: "End each message with one line that holds the action alone.",
    ActionFormat.TAG: "End each message with the action as <action>...</action>.",
    ActionFormat.JSON: 'End each message with the action as a JSON object: {"action": "..."}.',
    ActionFormat.NUMBER: "End each message with one line that holds the number of the action alone.",
}
"""How to write an action, for the first message."""
