"""A recipe as TOML text: what an edited text overrides, and where its problems are."""

import tomllib

import pytest

from astraflow.cli.recipes.form import recipe_form
from astraflow.cli.recipes.toml_editor import MAX_CHARACTERS, overrides_of, recipe_text, setting_lines
from astraflow.contract.errors import InvalidInput
from astraflow.recipe.files import packaged_recipes
from astraflow.recipe.loading import Check, load_recipe
from tests.errors import raises_code


def test_the_text_of_every_packaged_recipe_changes_nothing() -> None:
    for name in packaged_recipes():
        assert overrides_of(recipe_text(name), name) == [], name


def test_a_text_overrides_what_it_changes_adds_or_replaces() -> None:
    text = recipe_text("smoke").replace("\nsteps =", "\nsteps = 7 #", 1) + "\n[tracing]\nshare = 0.5\n"
    overrides = overrides_of(text, "smoke")
    assert set(overrides) == {"stop.steps=7", "tracing.share=0.5"}
    assert load_recipe("smoke", overrides[:1], check=Check.NONE).stop.steps == 7
    assert overrides_of(recipe_text("smoke", overrides), "smoke") == overrides, "and its text gives them back"


def test_another_kind_replaces_all_options() -> None:
    text = '[policies.solver.algorithm.loss]\nkind = "cispo"\n'
    assert overrides_of(text, "reverse") == ['policies.solver.algorithm.loss={kind = "cispo"}']


def test_a_deleted_line_keeps_the_value_of_the_recipe() -> None:
    assert overrides_of("", "smoke") == []


@pytest.mark.parametrize(
    "text",
    [
        "seed = = 1",
        "a" * (MAX_CHARACTERS + 1),
        ".".join(["a"] * 500) + " = 1",
        "seed = " + "[" * 3000,
        '"a b" = 1',
        "\n".join(f"a{number} = 1" for number in range(300)),
        "seed = " + "9" * 5000,
    ],
    ids=["syntax", "length", "levels", "nesting", "key", "count", "digits"],
)
def test_a_hostile_text_is_refused(text: str) -> None:
    with raises_code(InvalidInput, "recipe.invalid_text"):
        overrides_of(text, "smoke")
    form = recipe_form("smoke", text=text)
    assert form.is_unreadable
    assert (form.text, form.overrides) == (text, ())


def test_problems_of_a_text_have_their_lines() -> None:
    text = "seed = 1\n[stop]\nsteps = 'many'\n\n[flows.train]\ngroup_size = 0\n"
    form = recipe_form("smoke", text=text)
    assert {problem.key: problem.line for problem in form.problems} == {"stop.steps": 3, "flows.train.group_size": 6}
    (problem,) = recipe_form("smoke", text="seed = 1\nstop = = 2").problems
    assert (problem.key, problem.line) == ("", 2)


def test_the_lines_of_the_settings_of_a_generated_text_are_found() -> None:
    text = recipe_text("reverse")
    lines = setting_lines(text)
    assert tomllib.loads(text)["policies"]["solver"]["backend"]["learning_rate"] == 0.0005
    line = text.splitlines()[lines["policies.solver.backend.learning_rate"] - 1]
    assert line == "learning_rate = 0.0005"
