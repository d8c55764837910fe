"""Results of tool calls: JSON of a tool, or an error word with a fixed sentence."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pydantic import ValidationError

from astraflow.contract.errors import InvalidInput
from maintainer.agent.tools.base import ToolModel

T = TypeVar("T")

ERROR_ADVICE: Mapping[str, str] = {
    "unknown_tool": "the tool does not exist in this session: not pre-approved, do not retry; use a listed tool",
    "bad_arguments": "the arguments do not match the schema of the tool; correct them",
    "unknown_name": "the pool, node or decision does not exist; use tokens and numbers from tool results",
    "unknown_plan": "the plan was not made in this wake; call fleet_plan first",
    "one_plan": "this wake has a plan for this pool; do not plan again: end the wake, set a hold or escalate",
    "kill_switch": "the kill switch is on, or your mode is off: not pre-approved, do not retry; end the wake",
    "not_destructive": "this session cannot remove nodes (--no-destructive): not pre-approved, do not retry",
    "not_possible": "the fleet service refused the call: not pre-approved, do not retry",
    "not_reachable": "the fleet service does not answer; do not retry in this wake",
}
"""Sentence for the model, by error word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """Result of a tool call."""

    content: str
    """JSON for a model or an MCP client."""
    output: ToolModel | None = None
    """Typed result; None for an error."""
    error: str = ""
    """Error word of `ERROR_ADVICE`; empty on success."""

    @property
    def is_error(self) -> bool:
        """True if the call failed."""
        return bool(self.error)


class ToolRefused(Exception):  # becomes the answer to the model; never leaves a call
    """Error word of `ERROR_ADVICE`, raised to end a call."""

    def __init__(self, error: str, details: str = "") -> None:
        super().__init__(error)
        self.error = error
        self.details = details


def error_result(error: str, details: str = "") -> ToolResult:
    """Result of a failed call."""
    body = {"error": error, "advice": ERROR_ADVICE[error]} | ({"details": details} if details else {})
    return ToolResult(content=json.dumps(body), error=error)


def resolve(work: Callable[[], T]) -> T:
    """Runs a resolution of tokens. Raises: ToolRefused for a token that was not issued."""
    try:
        return work()
    except InvalidInput:
        raise ToolRefused("unknown_name") from None


def validation_summary(problem: ValidationError) -> str:
    """Location and kind of each validation error, without the sent values."""
    errors = [
        f"{'.'.join(str(part) for part in error['loc'])[:60] or 'arguments'}: {error['msg'][:80]}"
        for error in problem.errors(include_url=False, include_input=False)
    ]
    return "; ".join(errors[:4])
