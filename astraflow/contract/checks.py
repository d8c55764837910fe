"""Results of a check of a part that another party provides."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """Result of a check."""

    PASSED = "passed"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"
    """The part refuses the feature, or has no way to show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Result of one check."""

    promise: str
    outcome: Outcome
    detail: str = ""
    """Cause of an outcome other than `passed`, or the measured value."""
    seconds: float = 0.0


def broken_promises(results: Sequence[CheckResult]) -> list[str]:
    """Returns a line for each broken promise."""
    return [f"{result.promise}: {result.detail}" for result in results if result.outcome is Outcome.FAILED]
