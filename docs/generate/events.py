"""Page of the event kinds, from `astraflow.contract.reports.event_kinds`."""

from collections.abc import Iterator

from astraflow.contract.reports.event_kinds import EVENT_KINDS, EventKind, EventTopic
from docs.generate.page import Page, table

_HEAD = """
Dataflow records these events of a run, for people. An event has a kind, a subject, a message and a time. The page
*Events*, its downloads, `astraflow report` and `Events` of the control plane list them. An event can have several
topics, by which the page filters. Routine events occur in a healthy run. A decision of a person or a program has its
actor and reason in the message. How long events are retained: [observability](../how-to/observability.md#events).
"""


def _body() -> Iterator[str]:
    yield from table(("kind", "subject", "topics", "recorded when"), map(_row, EVENT_KINDS))
    yield "\n## Topics\n"
    yield from table(
        ("topic", "kinds"),
        (
            (topic.value, ", ".join(f"`{kind.name}`" for kind in EVENT_KINDS if topic in kind.topics))
            for topic in EventTopic
        ),
    )


def _row(kind: EventKind) -> tuple[str, str, str, str]:
    topics = ", ".join(topic.value for topic in kind.topics)
    return f"`{kind.name}`", kind.subject, f"{topics}{'; routine' if kind.is_routine else ''}", kind.meaning


PAGE = Page(name="events", title="Which events does a run record?", head=_HEAD, body=_body)
