"""What a call is answered: JSON of a tool, or a word and a fixed sentence."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pydantic import ValidationError

from astraflow.contract.errors import InvalidInput
from maintainer.tools.base import Typed

T = TypeVar("T")

ADVICE: Mapping[str, str] = {
    "unknown_tool": "there is no such tool here: not pre-approved, do not retry; use those that are listed",
    "bad_arguments": "the arguments do not fit the tool's schema",
    "unknown_name": "there is no such pool, node or decision: take tokens and numbers from a report",
    "unknown_plan": "only a plan of this wake can be applied: plan first",
    "one_plan": "this pool has had its plan in this wake: do not plan again, end the wake or hold or escalate",
    "kill_switch": "the kill switch is on, or people have turned you off: not pre-approved, do not retry, end the wake",
    "not_destructive": "nothing here takes a node away (--no-destructive): not pre-approved, do not retry",
    "not_possible": "the fleet service does not take this: not pre-approved, do not retry",
    "not_reachable": "the fleet service does not answer: do not retry in this wake",
}
"""What a model is told by each error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a call came to."""

    content: str
    """JSON, as a model or a client of MCP gets it."""
    output: Typed | None = None
    """The same, typed; None for an error."""
    error: str = ""
    """A word of `ADVICE`."""

    @property
    def is_error(self) -> bool:
        """Whether nothing came of it."""
        return bool(self.error)


class Refused(Exception):  # an answer to the model, raised and caught within a call
    """A word of `ADVICE`."""

    def __init__(self, error: str, details: str = "") -> None:
        super().__init__(error)
        self.error = error
        self.details = details


def refusal(error: str, details: str = "") -> ToolResult:
    """What a call is answered that nothing came of."""
    said = {"error": error, "advice": ADVICE[error]} | ({"details": details} if details else {})
    return ToolResult(content=json.dumps(said), error=error)


def named(work: Callable[[], T]) -> T:
    """What a token means. Raises: Refused for one that was never given out."""
    try:
        return work()
    except InvalidInput:
        raise Refused("unknown_name") from None


def explained(problem: ValidationError) -> str:
    """Where, and what is wrong there; nothing of what was sent."""
    told = [
        f"{'.'.join(str(part) for part in error['loc'])[:60] or 'arguments'}: {error['msg'][:80]}"
        for error in problem.errors(include_url=False, include_input=False)
    ]
    return "; ".join(told[:4])
