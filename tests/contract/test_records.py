"""Records are rendered from data: each kind and each cause, with the values that its writers give."""

import ast
import string
from pathlib import Path

import pytest

import astraflow.dataflow
from astraflow.contract.fleet.recommendations import LimitInEffect, Reason
from astraflow.contract.record_causes import CAUSES, WORDS
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import MAX_VALUE_CHARACTERS, NO_REASON, Record, render, render_cause, value_names
from astraflow.contract.values import Value
from astraflow.dataflow.reporting.binding_constraints import Constraint
from astraflow.dataflow.reporting.limits_in_effect import HOLD_REASONS

HOSTILE = "{0.__class__}{actor}[x]\x1b[2J\n\u202e%s"
OPTIONS = {"source", "actor", "reason", "cause"}
"""Arguments of the recording methods that are no values."""


def values_of(*templates: str, text: str = "a") -> dict[str, Value]:
    """Returns a value for each name in the templates: a number where its specification is one."""
    values: dict[str, Value] = {}
    for template in templates:
        for _, name, spec, _ in string.Formatter().parse(template.replace("[", "").replace("]", "")):
            if name and name not in ("cause", "reason"):
                values[name] = 2 if spec and spec != "words" else text
    return values


def record(kind: RecordKind, cause: str = "", *, text: str = "a") -> Record:
    values = values_of(kind.template, kind.because, CAUSES.get(cause, ""), text=text)
    return Record(kind=kind, subject="n1", cause=cause, reason=text, values=values)


@pytest.mark.parametrize("kind", RecordKind)
def test_each_kind_is_rendered_with_its_values(kind: RecordKind) -> None:
    text = render(record(kind, "below_band" if "{cause}" in kind.template + kind.because else ""))
    assert not set("?{}[]") & set(text)
    assert text or not kind.template
    assert kind.meaning.endswith(".")
    assert not (kind.plural and kind.routine)
    assert kind.is_decision or kind.topics or kind is RecordKind.SERVICE_STARTED


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_is_rendered_with_its_values(cause: str) -> None:
    text = render_cause(record(RecordKind.TARGET_LIMITED, cause))
    assert text
    assert not set("?{}[]") & set(text)


@pytest.mark.parametrize("kind", RecordKind)
def test_texts_of_others_are_values_and_never_templates(kind: RecordKind) -> None:
    hostile = record(kind, HOSTILE if "{cause}" in kind.template else "", text=HOSTILE)
    text = render(hostile)
    assert text.isprintable()
    assert "<class" not in text
    long = render(record(kind, text="x" * 10 * MAX_VALUE_CHARACTERS))
    assert len(long) < 8 * MAX_VALUE_CHARACTERS


def test_a_missing_value_leaves_out_its_part_or_shows_a_question_mark() -> None:
    refused = RecordKind.PUSH_REFUSED
    assert render(Record(kind=refused, subject="n", values={"error": "late"})) == "late"
    both: dict[str, Value] = {"task": "t/1", "error": "late", "others": 2, "results": 3}
    assert render(Record(kind=refused, subject="n", values=both)) == "t/1: late (and 2 others of 3 results)"
    assert render(Record(kind=refused, subject="n")) == "?"
    assert value_names(refused.template) == {"task": False, "others": False, "results": False, "error": True}


def test_counts_have_their_noun_and_actors_their_reason() -> None:
    def left(tasks: int) -> str:
        return render(Record(kind=RecordKind.NODE_LEFT, subject="n", values={"tasks": tasks}))

    assert [left(tasks) for tasks in (0, 1, 2)] == [
        f"{NO_REASON}; 0 tasks returned",
        f"{NO_REASON}; 1 task returned",
        f"{NO_REASON}; 2 tasks returned",
    ]
    assert render(Record(kind=RecordKind.FLOW_PAUSED, subject="f", actor="ada")) == f"by ada: {NO_REASON}"


def test_a_sentence_of_an_earlier_release_is_shown_as_it_is() -> None:
    old = Record(kind=RecordKind.NODE_LOST, subject="n", values={"text": "no heartbeat for 9 s {now}"})
    assert (render(old), render_cause(old)) == ("no heartbeat for 9 s {now}", "")


def test_each_reason_and_limit_of_the_sizer_has_a_text() -> None:
    assert {reason.value for reason in Reason} | {stall.value for stall in Constraint} <= CAUSES.keys()
    assert {limit.value for limit in LimitInEffect} | {reason.value for reason in HOLD_REASONS} == WORDS.keys()


def test_dataflow_records_every_kind_of_event_with_values_that_its_template_names() -> None:
    recorded: set[str] = set()
    for path in Path(astraflow.dataflow.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Attribute(value=ast.Name(id="RecordKind"), attr=name):
                    recorded.add(name)
                case ast.Call(
                    func=ast.Attribute(attr="add" | "record_action") | ast.Name(id="_record"),
                    args=[ast.Attribute(value=ast.Name(id="RecordKind"), attr=name), *_],
                    keywords=keywords,
                ):
                    kind = RecordKind[name]
                    value_keywords = {keyword.arg for keyword in keywords if keyword.arg} - OPTIONS - {"text"}
                    assert value_keywords <= value_names(kind.template).keys(), f"{path.name}: {name}"
    of_the_sizer = {RecordKind.TARGET_LIMITED.name}
    of_problems = {RecordKind.PROBLEM.name}
    of_the_page = {RecordKind.REPORTS_SKIPPED.name}
    assert recorded | of_the_sizer | of_problems | of_the_page == {
        kind.name for kind in RecordKind if not kind.is_decision
    }
