"""Redacts texts of other authors: a model gets a template id, a hash, a length and a cause, never the words.

Log lines, error messages and reasons could carry instructions to a model.
"""

import re

from maintainer.agent.observation.names import Names
from maintainer.agent.tools.outputs import Cause, Text

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

_CAUSES: tuple[tuple[Cause, str], ...] = (
    ("quota", r"quota|limit exceeded|vcpulimit|maxspotinstancecount|instancelimit"),
    ("capacity", r"capacity|insufficient|unavailable in|no offers|unschedulable|out of stock"),
    ("auth", r"unauthori[sz]ed|forbidden|credential|access ?denied|permission|expired token|\b40[13]\b"),
    ("price", r"spot price|max(imum)? price|bid"),
    ("preempted", r"preempt|interruption|reclaim|evict|taken away"),
    ("drained", r"drain"),
    ("image", r"image|manifest unknown|crash ?loop|no such file|modulenotfound|importerror|exited|exit code"),
    ("memory", r"out of memory|\boom\b|cuda error|memoryerror|cannot allocate"),
    ("disk", r"no space|disk|read-only file"),
    ("timeout", r"time(d)? ?out|deadline|too late|did not (join|start|answer)|no answer"),
    ("network", r"connection|network|unreachable|dns|resolve|refused|reset by|tls|certificate"),
    ("engine", r"engine|vllm|sglang|kernel|nccl"),
)
_PATTERNS: tuple[tuple[Cause, re.Pattern[str]], ...] = tuple(
    (cause, re.compile(pattern, re.IGNORECASE)) for cause, pattern in _CAUSES
)


def redact(text: str, names: Names) -> Text:
    """Redacted form of a text.

    >>> a, b = (redact(f"disk {disk} is full", Names(b"key")) for disk in ("/dev/sda", "/dev/sdb1"))
    >>> a.cause, a.template == b.template, a.hash == b.hash
    ('disk', True, False)
    """
    excerpt = text[:MAX_CHARACTERS]
    template = _VARIABLE_PARTS.sub("#", excerpt.lower())
    return Text(
        template=f"t-{names.hash(template)}", hash=f"x-{names.hash(text)}", length=len(text), cause=cause_of(excerpt)
    )


def cause_of(text: str) -> Cause:
    """Cause of a text by its words; `unknown` if none match."""
    if not text:
        return "none"
    return next((cause for cause, pattern in _PATTERNS if pattern.search(text)), "unknown")
