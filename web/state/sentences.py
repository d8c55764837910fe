"""Sentences of reports and events, without the parts that a page shows elsewhere."""

from astraflow.contract.reports.report import Event

RULE_PREFIX = "by the sizer: "

_BECAUSE = ", because "
_FREED, _TARGET = "no more held back by ", "; the target is "
"""Parts of the sentence that reports the end of a limit; its cause comes first."""


def without_subject(text: str, subject: str) -> str:
    """Removes the prefix of the rule and the name of the subject.

    >>> without_subject("by the sizer: eu: 2 to 3 nodes, because it waits.", "eu")
    '2 to 3 nodes, because it waits.'
    >>> without_subject("no beat for 9 s", "n9")
    'No beat for 9 s'
    """
    return _capitalized(text.removeprefix(RULE_PREFIX).removeprefix(f"{subject}: "))


def event_sentence(event: Event) -> str:
    """Returns the message of an event without its subject, which the page shows next to it; with a count if it stands
    for several occurrences."""
    sentence = latest_sentence(event)
    return f"{event.repeats + 1} times within a minute; latest: {sentence}" if event.repeats else sentence


def latest_sentence(event: Event) -> str:
    """Returns the message of the latest occurrence, for a line that shows the count itself."""
    return without_subject(event.message, event.subject)


def split_cause(text: str) -> tuple[str, str]:
    """Splits a sentence into decision and cause; the cause is empty where the sentence names none.

    A cause that several pools share can then be shown once.

    >>> split_cause("2 to 3 nodes, because it waits.")
    ('2 to 3 nodes', 'It waits.')
    >>> split_cause("No more held back by the budget, after 3 minutes; the target is 4 nodes.")
    ('The target is 4 nodes', 'No more held back by the budget, after 3 minutes.')
    """
    begin = text.lower().rfind(_TARGET)
    if text.lower().startswith(_FREED) and begin > 0:
        decision, cause = text[begin + len("; ") :].removesuffix("."), f"{text[:begin]}."
    else:
        decision, _, cause = text.partition(_BECAUSE)
    return _capitalized(decision), _capitalized(cause)


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]
