"""Recipes in declared folders: lookup by name, restricted to these folders."""

import os
from pathlib import Path

import pytest

from astraflow.cli.recipes.cards import recipe_cards
from astraflow.cli.recipes.declared import MAX_BYTES, check_declared_recipe, declared_recipes
from astraflow.cli.recipes.form import recipe_form
from astraflow.contract.errors import InvalidInput
from tests.errors import raises_code

OWN = 'extends = "smoke"\nname = "own"\nsummary = "Ours"\n'


def names(folder: Path) -> dict[str, str]:
    """Returns the problem of each recipe in the folder, by recipe name."""
    return {declared_recipe.name: declared_recipe.problem for declared_recipe in declared_recipes([folder])}


def write(file: Path, text: str = OWN) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_declared_recipes_are_named_like_packaged_ones(tmp_path: Path) -> None:
    for file_name in ("evening.toml", "night/recipe.toml", "night/long.toml", "night/notes.md", ".hidden.toml"):
        write(tmp_path / file_name)
    assert names(tmp_path) == {"evening": "", "night": "", "night/long": ""}


@pytest.mark.long
def test_a_recipe_in_a_declared_folder_is_listed_and_has_a_form(tmp_path: Path) -> None:
    file = write(tmp_path / "own.toml")
    (card,) = [card for card in recipe_cards([tmp_path]) if card.name == "own"]
    assert (card.name_or_path, card.summary, card.problem) == (str(file), "Ours", "")
    assert recipe_form(str(file), folders=[tmp_path]).summary == "Ours"


def test_a_broken_recipe_is_listed_with_its_problem(tmp_path: Path) -> None:
    write(tmp_path / "torn.toml", "name = \n")
    write(tmp_path / "wrong.toml", 'extends = "smoke"\nstop.stepz = 1\n')
    write(tmp_path / "large.toml", "#" * (MAX_BYTES + 1))
    write(tmp_path / "smoke.toml")
    write(tmp_path / "two words.toml")
    problems = {card.name: card.problem for card in recipe_cards([tmp_path]) if card.name_or_path != card.name}
    assert "line 1" in problems["torn"]
    assert "stepz" in problems["wrong"]
    assert "larger than" in problems["large"]
    assert "packaged recipe" in problems["smoke"]
    assert "rename" in problems["two words"]


def test_a_recipe_in_the_first_folder_hides_the_second_of_that_name(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a" / "own.toml"), write(tmp_path / "b" / "own.toml")
    problems = {
        declared_recipe.file: declared_recipe.problem
        for declared_recipe in declared_recipes([tmp_path / "a", tmp_path / "b"])
    }
    assert problems[first] == ""
    assert str(first) in problems[second]


def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside" / "own.toml")
    folder = tmp_path / "declared_recipes"
    folder.mkdir()
    (folder / "link.toml").symlink_to(outside)
    (folder / "linked").symlink_to(outside.parent)
    assert "symbolic link" in names(folder)["link"]
    assert list(names(folder)) == ["link"], "linked folders are not searched"
    with raises_code(InvalidInput, "recipe.not_usable"):
        recipe_form(str(folder / "link.toml"), folders=[folder])


def test_a_recipe_that_is_not_a_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    assert "not a file" in names(tmp_path)["pipe"]


def test_a_recipe_cannot_extend_a_file_outside_the_declared_folders(tmp_path: Path) -> None:
    write(tmp_path / "outside.toml")
    folder = tmp_path / "declared_recipes"
    sly = write(folder / "sly.toml", 'extends = "../outside.toml"\n')
    honest = write(folder / "more" / "honest.toml", 'extends = "../sly2.toml"\n')
    write(folder / "sly2.toml")
    check_declared_recipe(honest, [folder])
    with raises_code(InvalidInput, "recipe.extends_outside"):
        recipe_form(str(sly), folders=[folder])
    problems = {card.name: card.problem for card in recipe_cards([folder])}
    assert "outside.toml" in problems["sly"]
    assert problems["more/honest"] == ""


def test_a_missing_recipe_folder_is_refused(tmp_path: Path) -> None:
    with raises_code(InvalidInput, "recipe.unreadable_folder", "/absent'"):
        declared_recipes([tmp_path / "absent"])
