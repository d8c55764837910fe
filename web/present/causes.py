"""Why a node or its machine goes, in words."""

from collections.abc import Mapping

from astraflow.contract.causes import Cause
from web.present import formats

TEXTS = {
    Cause.ORDERED: "as ordered",
    Cause.TAKEN: "taken away by its provider",
    Cause.LOST: "lost",
    Cause.FAILED: "it never worked",
    Cause.EXPIRED: "too old",
    Cause.UNCLEAR: "what was seen of it did not fit",
}

COUNTED = {
    Cause.ORDERED: "as ordered",
    Cause.TAKEN: "taken away by the provider",
    Cause.LOST: "lost",
    Cause.FAILED: "never worked",
    Cause.EXPIRED: "too old",
    Cause.UNCLEAR: "unclear",
}


def with_cause(state: str, cause: Cause | None) -> str:
    """A state with what made it so, where that is worth a word.

    >>> with_cause("draining", Cause.TAKEN), with_cause("draining", Cause.ORDERED), with_cause("ready", None)
    ('draining: taken away by its provider', 'draining', 'ready')
    """
    return state if cause in (None, Cause.ORDERED) else f"{state}: {TEXTS[cause]}"


def counted(causes: Mapping[Cause, int]) -> str:
    """How many each cause made go.

    >>> counted({Cause.TAKEN: 2, Cause.LOST: 1})
    '2 taken away by the provider, 1 lost'
    """
    return ", ".join(f"{formats.count(number)} {COUNTED[cause]}" for cause, number in causes.items())
