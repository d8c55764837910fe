"""Page of the event kinds, from `astraflow.contract.reports.event_kinds`."""

from collections.abc import Iterator

from astraflow.contract.reports.event_kinds import EVENT_KINDS, EventKind, EventTopic
from docs.generate.page import Page, table


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


PAGE = Page(name="events", body=_body)
