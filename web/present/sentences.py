"""Sentences of others, without what stands beside them on a page."""

from astraflow.contract.reports import Event

RULE = "by the sizer: "

_BECAUSE = ", because "
_FREED, _TARGET = "no more held back by ", "; the target is "
"""How the end of a restraint is told: the ground first."""


def bare(text: str, subject: str) -> str:
    """Without the rule's name and the subject's in front.

    >>> bare("by the sizer: eu: 2 to 3 nodes, because it waits.", "eu")
    '2 to 3 nodes, because it waits.'
    >>> bare("no beat for 9 s", "n9")
    'No beat for 9 s'
    """
    return _begun(text.removeprefix(RULE).removeprefix(f"{subject}: "))


def bare_event(event: Event) -> str:
    """The sentence of an event whose subject is shown."""
    return bare(event.message, event.subject)


def grounded(text: str) -> tuple[str, str]:
    """A sentence as what was decided, and on which ground; the ground is empty where none is said.

    Pools that one ground moved are told in a sentence each: apart, the ground can be said once.

    >>> grounded("2 to 3 nodes, because it waits.")
    ('2 to 3 nodes', 'It waits.')
    >>> grounded("No more held back by the budget, after 3 minutes; the target is 4 nodes.")
    ('The target is 4 nodes', 'No more held back by the budget, after 3 minutes.')
    """
    begin = text.lower().rfind(_TARGET)
    if text.lower().startswith(_FREED) and begin > 0:
        what, ground = text[begin + len("; ") :].removesuffix("."), f"{text[:begin]}."
    else:
        what, _, ground = text.partition(_BECAUSE)
    return _begun(what), _begun(ground)


def _begun(text: str) -> str:
    return text[:1].upper() + text[1:]
