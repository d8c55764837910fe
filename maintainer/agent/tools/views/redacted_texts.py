"""Redacts texts of other authors: a model gets a template id, a hash, a length and a category, never the words.

Log lines, error messages and reasons could carry instructions to a model.
"""

import re
from typing import Any

from astraflow.contract.record_causes import CAUSES
from astraflow.contract.records import Record
from maintainer.agent.observation.names import Names
from maintainer.agent.tools.outputs import ErrorCategory, ProblemView, Text
from maintainer.agent.tools.views.view_context import rounded

MAX_CHARACTERS = 4000
"""Characters of a text that are analysed."""

_VARIABLE_PARTS = re.compile(
    r"""
    "[^"]*" | '[^']*' | `[^`]*`                    # quoted
    | \b[0-9A-HJKMNP-TV-Z]{26}\b                   # ULIDs
    | (?:/[\w.~-]+){2,}/? | \b\w+://\S+            # paths, addresses
    | (?<![\w-])(?=[\w-]*\d)[\w-]{2,}\b            # names with digits; no backtracking
    | \d+(?:\.\d+)*                                # numbers
    """,
    re.VERBOSE,
)

_CAUSES: tuple[tuple[ErrorCategory, str], ...] = (
    (ErrorCategory.QUOTA, r"quota|limit exceeded|vcpulimit|maxspotinstancecount|instancelimit"),
    (ErrorCategory.CAPACITY, r"capacity|insufficient|unavailable in|no offers|unschedulable|out of stock"),
    (ErrorCategory.AUTH, r"unauthori[sz]ed|forbidden|credential|access ?denied|permission|expired token|\b40[13]\b"),
    (ErrorCategory.PRICE, r"spot price|max(imum)? price|bid"),
    (ErrorCategory.PREEMPTED, r"preempt|interruption|reclaim|evict|taken away"),
    (ErrorCategory.DRAINED, r"drain"),
    (
        ErrorCategory.IMAGE,
        r"image|manifest unknown|crash ?loop|no such file|modulenotfound|importerror|exited|exit code",
    ),
    (ErrorCategory.MEMORY, r"out of memory|\boom\b|cuda error|memoryerror|cannot allocate"),
    (ErrorCategory.DISK, r"no space|disk|read-only file"),
    (ErrorCategory.TIMEOUT, r"time(d)? ?out|deadline|too late|did not (join|start|answer)|no answer"),
    (ErrorCategory.NETWORK, r"connection|network|unreachable|dns|resolve|refused|reset by|tls|certificate"),
    (ErrorCategory.ENGINE, r"engine|vllm|sglang|kernel|nccl"),
)
_PATTERNS: tuple[tuple[ErrorCategory, re.Pattern[str]], ...] = tuple(
    (category, re.compile(pattern, re.IGNORECASE)) for category, pattern in _CAUSES
)


def redact(text: str, names: Names) -> Text:
    """Redacted form of a text.

    >>> a, b = (redact(f"disk {disk} is full", Names(b"key")) for disk in ("/dev/sda", "/dev/sdb1"))
    >>> a.cause.value, a.template == b.template, a.hash == b.hash
    ('disk', True, False)
    """
    excerpt = text[:MAX_CHARACTERS]
    template = _VARIABLE_PARTS.sub("#", excerpt.lower())
    return Text(
        template=f"t-{names.hash(template)}", hash=f"x-{names.hash(text)}", length=len(text), cause=category_of(excerpt)
    )


def category_of(text: str) -> ErrorCategory:
    """Category of a text by its words."""
    if not text:
        return ErrorCategory.NONE
    return next((category for category, pattern in _PATTERNS if pattern.search(text)), ErrorCategory.UNKNOWN)


def problem_view(record: Record, names: Names) -> ProblemView:
    """View of a current problem."""
    return ProblemView(**values_fields(record, names))


def values_fields(record: Record, names: Names) -> dict[str, Any]:
    """Fields of a record's values: numbers and words of ours; texts of other authors are redacted."""
    texts = [str(value) for value in record.values.values() if isinstance(value, str)]
    texts += [record.reason] if record.reason else []
    return {
        "severity": record.severity,
        "cause": record.cause if record.cause in CAUSES else None,
        "numbers": {name: rounded(value) for name, value in record.values.items() if isinstance(value, int | float)},
        "text": redact("; ".join(texts), names) if texts else None,
    }
