"""Page of the kinds of records, from `astraflow.contract.record_kinds`."""

from collections.abc import Iterator

from astraflow.contract.learning_faults import LearningFault
from astraflow.contract.record_kinds import RecordKind, Topic
from docs.generate.page import Page, table


def _body() -> Iterator[str]:
    events = [kind for kind in RecordKind if not kind.is_decision]
    yield "\n## Events\n"
    yield from table(("kind", "subject", "topics", "recorded when", "text"), map(_row, events))
    yield "\n## Decisions\n"
    decisions = [kind for kind in RecordKind if kind.is_decision]
    yield from table(("kind", "subject", "recorded when", "text"), map(_decision_row, decisions))
    yield "\n## Faults of learning\n"
    yield from table(
        ("fault", "severity", "evidence", "threshold", "what to do"),
        (
            (f"`{fault.value}`: {fault.headline}", fault.severity.value, fault.evidence, fault.threshold, fault.remedy)
            for fault in LearningFault
        ),
    )
    yield "\n## Topics\n"
    yield from table(
        ("topic", "kinds"),
        ((topic.value, ", ".join(f"`{kind.value}`" for kind in RecordKind if topic in kind.topics)) for topic in Topic),
    )


def _row(kind: RecordKind) -> tuple[str, str, str, str, str]:
    topics = ", ".join(topic.value for topic in kind.topics)
    name, subject, meaning, text = _decision_row(kind)
    return name, subject, f"{topics}{'; routine' if kind.routine else ''}", meaning, text


def _decision_row(kind: RecordKind) -> tuple[str, str, str, str]:
    template = f"{kind.template}, because {kind.because}" if kind.because else kind.template
    return f"`{kind.value}`", kind.subject, kind.meaning, f"`{template}`" if template else ""


PAGE = Page(name="events", body=_body)
