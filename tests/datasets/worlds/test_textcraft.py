import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.contract.errors import InvalidInput
from astraflow.datasets import datasets
from tests.errors import raises_code

Recipes = list[dict[str, Any]]

options = st.fixed_dictionaries(
    {
        "min_depth": st.integers(1, 3),
        "max_depth": st.integers(3, 5),
        "max_inputs": st.integers(1, 3),
        "max_count": st.integers(1, 8),
        "distractors": st.integers(0, 10),
        "max_crafts": st.integers(16, 64),
    }
)


def fields_of(index: int, **changed: Any) -> dict[str, Any]:
    return dict(datasets.build({"kind": "textcraft", **changed}, 1).prompt(index).fields)


def carry_out(plan: str, recipes: Recipes) -> Counter[str]:
    """Returns the inventory at the end; fails when a command cannot be carried out."""
    recipe_by_item = {recipe["item"]: recipe for recipe in recipes}
    has: Counter[str] = Counter()
    for command in plan.splitlines():
        verb, count, item = re.match(r"(get|craft) (\d+) ([a-z ]+?)(?: using .*)?$", command).groups()  # type: ignore[union-attr]  # a command
        if verb == "get":
            assert item not in recipe_by_item, command
        else:
            assert recipe_by_item[item]["count"] == int(count), command
            has.subtract({part["item"]: part["count"] for part in recipe_by_item[item]["inputs"]})
            assert min(has.values()) >= 0, command
        has[item] += int(count)
    return has


def depth_of(item: str, recipes: Recipes) -> int:
    recipe_by_item = {recipe["item"]: recipe for recipe in recipes}
    return (
        1 + max(depth_of(part["item"], recipes) for part in recipe_by_item[item]["inputs"])
        if item in recipe_by_item
        else 0
    )


@settings(max_examples=30)
@given(chosen=options, index=st.integers(0, 999))
def test_the_answer_reaches_the_goal(chosen: dict[str, int], index: int) -> None:
    fields = fields_of(index, **chosen)
    goal, recipes = fields["goal"], fields["recipes"]

    has = carry_out(fields["answer"], recipes)

    assert has[goal["item"]] >= goal["count"]
    assert depth_of(goal["item"], recipes) == fields["depth"]
    assert chosen["min_depth"] <= fields["depth"] <= chosen["max_depth"]
    assert fields["crafts"] <= chosen["max_crafts"]
    assert len({recipe["item"] for recipe in recipes}) == len(recipes)


def test_question_and_fields_agree() -> None:
    fields = fields_of(7)
    commands = fields["question"].split("\n\n")[0].splitlines()[1:]
    assert f"Goal: craft {fields['goal']['count']} {fields['goal']['item']}." in fields["question"]
    assert commands == [
        f"craft {recipe['count']} {recipe['item']} using "
        + ", ".join(f"{part['count']} {part['item']}" for part in recipe["inputs"])
        for recipe in fields["recipes"]
    ]


@pytest.mark.long
def test_depths_are_equally_frequent() -> None:
    depths = Counter(fields_of(index)["depth"] for index in range(300))
    assert depths == {2: 100, 3: 100, 4: 100}


def test_a_minimum_depth_above_the_maximum_is_refused() -> None:
    with raises_code(InvalidInput, "config.invalid", "min_depth", "max_depth"):
        datasets.build({"kind": "textcraft", "min_depth": 4, "max_depth": 3}, 0)


def test_all_tasks_together_have_as_many_items_as_configured() -> None:
    fields = [fields_of(index, max_depth=2, max_inputs=2, distractors=2, items=24) for index in range(100)]
    names = {recipe["item"] for task in fields for recipe in task["recipes"]}
    names |= {part["item"] for task in fields for recipe in task["recipes"] for part in recipe["inputs"]}

    assert len(names) == 24


def test_fewer_items_than_a_task_may_need_are_refused() -> None:
    with raises_code(InvalidInput, "config.invalid", "items", "at least 9"):
        datasets.build({"kind": "textcraft", "max_depth": 2, "max_inputs": 2, "distractors": 2, "items": 8}, 0)
