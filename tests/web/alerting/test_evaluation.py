"""Rules as a table: series of values, and the times at which their alert fires and is resolved."""

import math
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput
from web.alerting.evaluation import RuleWatch
from web.alerting.rules import RuleSpec, Unit, spec_from_form

NAN = math.nan


def rule(**fields: Any) -> RuleSpec:
    usual = {"name": "r", "series": "policy/solver", "value": "wait", "condition": "above", "threshold": 1.0}
    return RuleSpec.parse({**usual, **fields}, where="")


def firings(spec: RuleSpec, values: list[tuple[float, float]]) -> list[tuple[float, str]]:
    """Returns when the alert of a rule begins and ends, for pairs of a position and a value."""
    watch, changes, was_firing = RuleWatch(spec, since=0.0), [], False
    for position, value in values:
        watch.advance(position)
        watch.add("policy/solver", value, at=position, position=position)
        watch.advance(position)
        if bool(watch.firing) != was_firing:
            was_firing = bool(watch.firing)
            changes.append((position, "fires" if was_firing else "resolved"))
    return changes


def each(step_s: float, *values: float) -> list[tuple[float, float]]:
    return [(step_s * number, value) for number, value in enumerate(values)]


IN_STEPS = {"series": "training/solver", "unit": "steps"}

TABLE: dict[str, tuple[dict[str, Any], list[tuple[float, float]], list[tuple[float, str]]]] = {
    "at the limit it is quiet": ({}, each(1, 1, 1, 1), []),
    "above the limit it fires at once": ({}, each(1, 0, 2, 2), [(1, "fires")]),
    "below the limit": ({"condition": "below"}, each(1, 2, 0), [(1, "fires")]),
    "held for less it is quiet": ({"hold": 10}, [*each(1, *[2.0] * 9), (9, 0.0), (10, 2.0)], []),
    "held for long enough it fires": ({"hold": 10}, each(1, *[2.0] * 12), [(10, "fires")]),
    "it is resolved after 30 s": (
        {},
        [(0, 2.0), *[(float(at), 0.0) for at in range(1, 40)]],
        [(0, "fires"), (31, "resolved")],
    ),
    "a flapping value is one alert": ({}, each(10, *[2.0, 0.0] * 10), [(0, "fires")]),
    "it is resolved after the time that it must hold": (
        {"hold": 60},
        [(0, 2.0), (60, 2.0), *[(61.0 + at, 0.0) for at in range(70)]],
        [(60, "fires"), (121, "resolved")],
    ),
    "three steps in a row": ({**IN_STEPS, "hold": 3}, each(1, 2, 2, 0, 2, 2, 2), [(5, "fires")]),
    "three steps resolve it": ({**IN_STEPS, "hold": 3}, each(1, 2, 2, 2, 0, 0, 0), [(2, "fires"), (5, "resolved")]),
    "a fall within the window": (
        {"condition": "fell", "threshold": 5, "window": 100},
        each(50, 10, 8, 4, 4, 4, 4, 4),
        [(100, "fires"), (200, "resolved")],
    ),
    "a rise is no fall": ({"condition": "fell", "threshold": 5, "window": 100}, each(50, 0, 10, 20), []),
    "a rise": ({"condition": "rose", "threshold": 5, "window": 100}, each(50, 0, 10), [(50, "fires")]),
    "a slow rise is none": ({"condition": "rose", "threshold": 5, "window": 100}, each(60, 0, 3, 6, 9), []),
    "a change in either direction": (
        {"condition": "changed", "threshold": 5, "window": 100},
        each(50, 0, -10),
        [(50, "fires")],
    ),
    "a fall within steps": (
        {**IN_STEPS, "condition": "fell", "threshold": 0.2, "window": 2},
        each(1, 0.9, 0.8, 0.75, 0.5),
        [(3, "fires")],
    ),
    "absent": (
        {"condition": "absent", "threshold": None, "hold": 60},
        [(1, 0.0), (50, 0.0), (120, 0.0), (130, 0.0)],
        [],  # see test_absence_is_evaluated_by_time: values end it
    ),
    "not finite": ({"condition": "not_finite", "threshold": None}, each(1, 1, NAN, math.inf), [(1, "fires")]),
    "NaN is neither above nor below": ({"hold": 2}, each(1, 2, NAN, 2, NAN), [(2, "fires")]),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_alert_fires_and_is_resolved_when(name: str) -> None:
    fields, values, expected = TABLE[name]
    assert firings(rule(**fields), values) == expected


def test_absence_is_evaluated_by_time() -> None:
    watch = RuleWatch(rule(condition="absent", threshold=None, hold=60), since=100.0)
    watch.advance(159.0)
    assert not watch.firing
    watch.advance(160.0)
    assert watch.firing
    watch.add("policy/solver", 1.0, at=170.0, position=170.0)
    watch.advance(170.0)
    assert not watch.firing


def test_series_of_one_rule_are_evaluated_apart_and_a_node_that_left_is_resolved() -> None:
    watch = RuleWatch(rule(series="node/*", value="lag", threshold=2.0, hold=10), since=0.0)
    for at in (0.0, 10.0, 20.0):
        watch.add("node/a", 3.0, at=at, position=at)
        watch.add("node/b", 1.0, at=at, position=at)
        watch.advance(at)
    assert set(watch.firing) == {"node/a"}
    watch.advance(70.0)
    assert set(watch.firing) == {"node/a"}
    watch.advance(81.0)
    assert not watch.firing


def test_a_firing_series_survives_a_restart() -> None:
    watch = RuleWatch(rule(), since=0.0, firing={"policy/solver": 2.0})
    watch.add("policy/solver", 2.0, at=1.0, position=1.0)
    assert watch.firing["policy/solver"].value == 2.0


def test_an_event_fires_once_until_it_has_not_occurred_for_five_minutes() -> None:
    watch = RuleWatch(rule(series="event", value="node_lost", condition="occurred", threshold=None), since=0.0)
    states = []
    for at, texts in ((0.0, {}), (1.0, {"n1": "lost"}), (2.0, {}), (200.0, {"n1": "lost"}), (201.0, {}), (502.0, {})):
        watch.add_occurrences(texts, at=at)
        states.append(bool(watch.firing))
    assert states == [False, True, True, True, True, False]


def test_a_problem_fires_while_it_lasts_for_long_enough() -> None:
    watch = RuleWatch(rule(series="problem", value="*", condition="occurred", threshold=None, hold=5), since=0.0)
    for at in range(5):
        watch.add_occurrences({"run": "stuck"}, at=float(at))
    assert not watch.firing
    watch.add_occurrences({"run": "stuck"}, at=5.0)
    assert watch.firing["run"].text == "stuck"


@pytest.mark.parametrize(
    "fields",
    [
        {"threshold": None},
        {"condition": "occurred", "threshold": None},
        {"series": "event"},
        {"unit": "steps"},
        {"series": "training/solver", "unit": "steps", "condition": "absent", "threshold": None, "hold": 3},
        {"condition": "absent", "threshold": None},
        {"condition": "rose", "threshold": -1.0},
        {"threshold": math.nan},
        {"hold": 1e9},
        {"hold": -1},
        {"series": "Policy/solver"},
        {"series": "policy/a\nb"},
        {"value": "a b"},
        {"name": "a\nb"},
        {"name": "x" * 81},
        {"run": ""},
        {"receivers": ["a"] * 11},
        {"severity": "loud"},
    ],
)
def test_rules_that_could_never_fire_or_are_not_valid_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        rule(**fields)


def test_a_form_becomes_a_rule_and_its_sentence_reads() -> None:
    form = {"name": " Low ", "runs": "reverse-*", "series": "training/solver:entropy", "condition": "below"}
    spec = spec_from_form({**form, "threshold": "0.2", "hold": "3", "unit": "steps", "window": ""}, ("ops",))
    assert (spec.name, spec.series, spec.value, spec.unit) == ("Low", "training/solver", "entropy", Unit.STEPS)
    assert spec.sentence == "entropy of solver below 0.2 for 3 steps"
    assert spec.covers_run("reverse-7b35")
    assert not spec.covers_run("math")
    assert rule(series="policy/*").covers_subject("policy/solver")
