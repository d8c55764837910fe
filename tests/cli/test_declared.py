"""Recipes in folders that were declared: found by name, and nothing from elsewhere."""

import os
from pathlib import Path

import pytest

from astraflow.cli.declared import MAX_BYTES, check_declared, declared
from astraflow.cli.recipe_form import recipe_cards, recipe_form
from astraflow.contract.errors import InvalidInput

OWN = 'extends = "smoke"\nname = "own"\nsummary = "Of our own"\n'


def names(folder: Path) -> dict[str, str]:
    """What was found, and what is wrong with it."""
    return {one.name: one.problem for one in declared([folder])}


def write(file: Path, text: str = OWN) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_files_are_recipes_by_the_names_that_packaged_ones_have(tmp_path: Path) -> None:
    for place in ("evening.toml", "night/recipe.toml", "night/long.toml", "night/notes.md", ".hidden.toml"):
        write(tmp_path / place)
    assert names(tmp_path) == {"evening": "", "night": "", "night/long": ""}


def test_a_recipe_in_a_folder_is_a_card_and_a_form(tmp_path: Path) -> None:
    file = write(tmp_path / "own.toml")
    (card,) = [card for card in recipe_cards([tmp_path]) if card["name"] == "own"]
    assert (card["place"], card["summary"], card["problem"]) == (str(file), "Of our own", "")
    assert recipe_form(str(file), folders=[tmp_path]).summary == "Of our own"


def test_what_is_broken_is_a_card_that_says_so(tmp_path: Path) -> None:
    write(tmp_path / "torn.toml", "name = \n")
    write(tmp_path / "wrong.toml", 'extends = "smoke"\nstop.stepz = 1\n')
    write(tmp_path / "large.toml", "#" * (MAX_BYTES + 1))
    write(tmp_path / "smoke.toml")
    write(tmp_path / "two words.toml")
    problems = {card["name"]: card["problem"] for card in recipe_cards([tmp_path]) if card["place"] != card["name"]}
    assert "line 1" in problems["torn"]
    assert "stepz" in problems["wrong"]
    assert "larger than" in problems["large"]
    assert "comes with AstraFlow has this name" in problems["smoke"]
    assert "rename the file" in problems["two words"]


def test_two_folders_with_one_name_have_the_first_of_them(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a" / "own.toml"), write(tmp_path / "b" / "own.toml")
    found = {one.file: one.problem for one in declared([tmp_path / "a", tmp_path / "b"])}
    assert found[first] == ""
    assert str(first) in found[second]


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside" / "own.toml")
    folder = tmp_path / "declared"
    folder.mkdir()
    (folder / "link.toml").symlink_to(outside)
    (folder / "linked").symlink_to(outside.parent)
    assert "symbolic link" in names(folder)["link"]
    assert list(names(folder)) == ["link"], "what is in a linked folder is not looked at"
    with pytest.raises(InvalidInput, match="symbolic link"):
        recipe_form(str(folder / "link.toml"), folders=[folder])


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    assert names(tmp_path) == {"pipe": "is no file"}


def test_a_recipe_extends_nothing_outside_of_its_folders(tmp_path: Path) -> None:
    write(tmp_path / "outside.toml")
    folder = tmp_path / "declared"
    sly = write(folder / "sly.toml", 'extends = "../outside.toml"\n')
    honest = write(folder / "more" / "honest.toml", 'extends = "../sly2.toml"\n')
    write(folder / "sly2.toml")
    check_declared(honest, [folder])
    with pytest.raises(InvalidInput, match="in no folder that was declared"):
        recipe_form(str(sly), folders=[folder])
    problems = {card["name"]: card["problem"] for card in recipe_cards([folder])}
    assert "in no folder that was declared" in problems["sly"]
    assert problems["more/honest"] == ""


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"absent.*No such file"):
        declared([tmp_path / "absent"])
