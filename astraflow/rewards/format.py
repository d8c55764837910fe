"""Reward for a well-formed completion: required tags, balanced tags, a pattern."""

import re
from typing import Annotated

from pydantic import Field, field_validator

from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.rewards import rewards
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy


class FormatOptions(Config):
    """Conditions of a well-formed completion; each that is set must hold."""

    pattern: Annotated[str, SettableBy.RECIPE] = ""
    """Regular expression that must match somewhere in the completion; `.` also matches newlines. A pattern with nested
    repetition may take forever, so that only the recipe sets it. Empty: none."""
    required_tags: Annotated[tuple[str, ...], SettableBy.AGENT] = ()
    """Tags, without brackets, that must occur exactly once, opened and closed, in this order."""
    balanced_tags: Annotated[tuple[str, ...], SettableBy.AGENT] = ()
    """Tags, without brackets, that must be closed as often as opened, without nesting."""
    forbidden: Annotated[tuple[str, ...], SettableBy.AGENT] = ()
    """Texts that must not occur."""
    requires_stop: Annotated[bool, SettableBy.AGENT] = False
    """The model must have ended the completion by itself, not the length limit."""
    max_chars: int = Field(default=200_000, ge=1)
    """A longer completion is not well-formed, and is not searched. Characters."""

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str) -> str:
        try:
            re.compile(pattern, re.DOTALL)
        except re.error as problem:
            raise ValueError(f"not a regular expression ({problem})") from None
        return pattern


@rewards.register("format", options=FormatOptions)
class Format:
    """Returns 1 for a well-formed completion, else 0."""

    def __init__(self, options: FormatOptions) -> None:
        self._options = options
        self._pattern = re.compile(options.pattern, re.DOTALL) if options.pattern else None

    def score(self, prompt: Prompt, completion: str, finish: Finish) -> float:
        options = self._options
        return float(
            len(completion) <= options.max_chars
            and not (options.requires_stop and finish is not Finish.STOP)
            and not any(text in completion for text in options.forbidden)
            and _has_tags_once(completion, options.required_tags)
            and all(_is_balanced(completion, tag) for tag in options.balanced_tags)
            and (self._pattern is None or self._pattern.search(completion) is not None)
        )


def _has_tags_once(text: str, tags: tuple[str, ...]) -> bool:
    marks = [mark for tag in tags for mark in (f"<{tag}>", f"</{tag}>")]
    positions = [text.find(mark) for mark in marks]
    return -1 not in positions and positions == sorted(positions) and all(text.count(mark) == 1 for mark in marks)


def _is_balanced(text: str, tag: str) -> bool:
    """Returns whether openings and closings alternate, beginning with an opening."""
    marks = re.findall(rf"<(/?){re.escape(tag)}>", text)
    return len(marks) % 2 == 0 and marks == ["", "/"] * (len(marks) // 2)
