"""Sentences of others, without what stands beside them on a page."""

from astraflow.contract.reports import Event

RULE = "by the sizer: "


def bare(text: str, subject: str) -> str:
    """Without the rule's name and the subject's in front.

    >>> bare("by the sizer: eu: 2 to 3 nodes, because it waits.", "eu")
    '2 to 3 nodes, because it waits.'
    >>> bare("no beat for 9 s", "n9")
    'No beat for 9 s'
    """
    found = text.removeprefix(RULE).removeprefix(f"{subject}: ")
    return found[:1].upper() + found[1:]


def bare_event(event: Event) -> str:
    """The sentence of an event whose subject is shown."""
    return bare(event.message, event.subject)
