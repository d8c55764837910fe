"""Records of what happened, what was decided and what is wrong, as data; and their text, which is rendered here only.

A record has a kind, a subject and values; a page, a command, a webhook or a log renders the sentence when it shows it.
Texts of other authors (a provider's error, a peer's name, a person's reason) are values, never templates.
"""

import re
import string
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from astraflow.contract.record_causes import CAUSES, WORDS
from astraflow.contract.record_kinds import RecordKind, Severity
from astraflow.contract.values import Value, Values

MAX_VALUE_CHARACTERS = 2000
"""Characters of one value in a text; the rest is cut."""

_NUMBER = re.compile(r"(\.\d+)?[fg%]")
"""Specification of a number; another one is the noun of a count."""

NO_REASON = "no reason given"

_PART = re.compile(r"\[([^\]]*)\]")
"""Part of a template that is left out where one of its values is absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One event, decision, alarm or problem."""

    kind: RecordKind
    """Kind, which has the template of the text."""
    subject: str
    """Name of what it concerns: a node, pool, policy, flow or run."""
    actor: str = ""
    """Name of the person or program that acted; empty for what follows from the run itself."""
    reason: str = ""
    """Reason that the actor gave; empty for none."""
    cause: str = ""
    """Word for the cause, such as `gated`; empty where the kind itself says it."""
    severity: Severity = Severity.INFO
    """Urgency."""
    values: Values = field(default_factory=dict)
    """Figures and texts of the record. Only `text`, a whole sentence, where an earlier release wrote it."""


def problem_record(cause: str, subject: str, **values: Value) -> Record:
    """Returns a problem, with a cause of `CAUSES` and the values of its text."""
    kind = RecordKind.PROBLEM
    return Record(kind=kind, subject=subject, cause=cause, severity=kind.severity, values=values)


def render(record: Record) -> str:
    """Returns the whole sentence, with the actor and the reason where a person or a program acted.

    >>> render(Record(kind=RecordKind.NODE_LOST, subject="n1", values={"silent_s": 9.2}))
    'no heartbeat for 9 s; its tasks are requeued'
    >>> render(Record(kind=RecordKind.FLOW_PAUSED, subject="train", actor="ada", reason="lunch"))
    'by ada: lunch'
    """
    cause, text = render_cause(record), render_summary(record)
    text = f"{text}, because {cause}" if cause else text
    if not record.actor or record.kind.because or "reason" in value_names(record.kind.template):
        return text
    by = f"by {clean(record.actor)}: {clean(record.reason) or NO_REASON}"
    return f"{text}, {by}" if text else by


def render_summary(record: Record) -> str:
    """Returns the sentence without its cause, actor and reason."""
    if "text" in record.values:
        return _shown(record.values["text"])
    return _filled(record.kind.template, record)


def render_cause(record: Record) -> str:
    """Returns the cause as a clause, which lists show once for the records that share it; empty for most kinds."""
    return "" if "text" in record.values else _filled(record.kind.because, record)


def fill(template: str, values: Values) -> str:
    """Returns the text of a template that belongs to no kind of record, such as that of a diagnosis.

    >>> fill("{ready:node}[, {lost:.0f} lost]: {rate:rate} groups/s", {"ready": 3, "rate": 1234.5})
    '3 nodes: 1,234 groups/s'
    """
    return _filled(template, Record(kind=RecordKind.PROBLEM, subject="", values=values))


def rate_text(value: float) -> str:
    """Returns a rate with three significant digits, as every page and command prints it.

    >>> rate_text(0.0), rate_text(0.456), rate_text(14.23), rate_text(4210.4)
    ('0', '0.46', '14.2', '4,210')
    """
    digits = 0 if value == 0 else 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f}"


def printed_rate(value: float) -> float:
    """Returns a rate as `rate_text` prints it, so that a ratio is that of the numbers that a reader sees."""
    return float(rate_text(value).replace(",", ""))


@lru_cache
def value_names(template: str) -> dict[str, bool]:
    """Returns the values that a template names, True for those that have to be there."""
    optional = " ".join(_PART.findall(template))
    names = {name: False for _, name, _, _ in _FORMATTER.parse(optional) if name}
    return names | {name: True for _, name, _, _ in _FORMATTER.parse(_PART.sub("", template)) if name}


def clean(text: str) -> str:
    """Returns a text of another author as one line of bounded length without control characters.

    >>> clean("a\\x1b[2Jb\\n")
    'a [2Jb '
    """
    excerpt = text[:MAX_VALUE_CHARACTERS]
    if excerpt.isprintable():
        return excerpt
    return "".join(letter if letter.isprintable() else " " for letter in excerpt)


def _filled(template: str, record: Record) -> str:
    """Returns the text of a template; a missing value is shown as `?`."""

    def part(match: re.Match[str]) -> str:
        return match[1] if all(_value(record, name) not in ("", None) for name in value_names(match[1])) else ""

    if not template:
        return ""
    needed = _PART.sub(part, template)
    return _FORMATTER.vformat(needed, (), {name: _value(record, name) for name in value_names(needed)})


def _value(record: Record, name: str) -> Value | None:
    if name == "cause":
        template = CAUSES.get(record.cause)
        return record.cause.replace("_", " ") if template is None else _filled(template, record)
    if name == "reason":
        return record.reason or NO_REASON
    return record.values.get(name)


def _shown(value: object) -> str:
    return "?" if value is None else f"{value:g}" if isinstance(value, float) else clean(str(value))


class _Formatter(string.Formatter):
    """Formats numbers by their specification, rates, counts with their noun, and texts as one line."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec == "words":
            return " and ".join(WORDS.get(word, _shown(word)) for word in str(value).split(","))
        if not isinstance(value, int | float) or not format_spec:
            return _shown(value)
        if format_spec == "rate":
            return rate_text(value)
        if _NUMBER.fullmatch(format_spec):
            return format(value, format_spec)
        return f"{value:.0f} {format_spec}{'' if value == 1 else 's'}"


_FORMATTER = _Formatter()
