"""Texts of a run as pages show them: cut to a size, with invisible characters made visible."""

from collections.abc import Mapping

from astraflow.contract.fleet.instances import Cause
from web.components import formats

_CONTROLS = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}
"""Pictures of control characters."""

_DIRECTION_MARKS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that reorder the text after them, which could make it read differently."""

_VISIBLE = str.maketrans(
    {
        **_CONTROLS,
        0x7F: "\N{SYMBOL FOR DELETE}",
        **{code: f"\\x{code:02x}" for code in range(0x80, 0xA0)},
        **{code: f"\\u{code:04x}" for code in _DIRECTION_MARKS},
    }
)

CAUSE_TEXTS = {
    Cause.REQUESTED: "requested",
    Cause.PREEMPTED: "preempted",
    Cause.LOST: "lost",
    Cause.FAILED: "failed to start",
    Cause.EXPIRED: "maximum age reached",
    Cause.INCONSISTENT: "inconsistent state",
}
"""Causes why a node or its instance ended, in words."""

BLOCK_CHARS = 6_000
"""Most characters of one block, until all of them are requested."""

PAGE_CHARS = 400_000
ALL_CHARS = 4_000_000
"""Most characters of a page, at first and when all are requested. The API has all of them."""


def visible(text: str) -> str:
    """Returns the text with control characters and marks of direction as visible characters.

    >>> visible("a\\x00b\\x1b[31m\\u202ec\\n")
    'a\u2400b\u241b[31m\\\\u202ec\\n'
    """
    return text.translate(_VISIBLE)


def may_scroll(text: str, chars: int) -> bool:
    """Returns whether a box for about this many characters may need to scroll, and thus to take the focus.

    >>> may_scroll("short", 100), may_scroll("a\\n" * 10, 100)
    (False, True)
    """
    return len(text) + 30 * text.count("\n") > chars


class TextCutter:
    """Cuts the texts of a page, so that hostile texts cannot make it too large for a browser."""

    def __init__(self, *, is_complete: bool = False) -> None:
        """is_complete: all texts are requested."""
        self._block_chars = ALL_CHARS if is_complete else BLOCK_CHARS
        self._left = ALL_CHARS if is_complete else PAGE_CHARS

    def cut(self, text: str) -> tuple[str, int]:
        """Returns the visible beginning of the text, and the number of characters left out."""
        shown = text[: min(self._block_chars, self._left)]
        self._left -= len(shown)
        return visible(shown), len(text) - len(shown)


def with_cause(state: str, cause: Cause | None) -> str:
    """Returns a state with its cause; a requested change is shown without one.

    >>> with_cause("draining", Cause.PREEMPTED), with_cause("draining", Cause.REQUESTED), with_cause("ready", None)
    ('draining: preempted', 'draining', 'ready')
    """
    return state if cause in (None, Cause.REQUESTED) else f"{state}: {CAUSE_TEXTS[cause]}"


def cause_counts(causes: Mapping[Cause, int]) -> str:
    """Returns the number of instances per cause, in words.

    >>> cause_counts({Cause.PREEMPTED: 2, Cause.LOST: 1})
    '2 preempted, 1 lost'
    """
    return ", ".join(f"{formats.count(number)} {CAUSE_TEXTS[cause]}" for cause, number in causes.items())
