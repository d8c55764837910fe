"""Task lists whose tasks run in environments."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.datasets import datasets
from astraflow.datasets.published.loading import SAMPLES
from tests.datasets import tables
from tests.errors import raises_code

MUG = "pick_and_place_simple-Mug-None-Shelf-1/trial_T20260101_000000_000001"


@pytest.fixture
def games(tmp_path: Path) -> Path:
    """Copies a folder of games that a test may change."""
    return shutil.copytree(SAMPLES / "alfworld", tmp_path / "alfworld")


def questions(spec: dict[str, Any]) -> list[str]:
    loaded_dataset = datasets.build({"kind": "alfworld", **spec}, 0)
    return [str(loaded_dataset.prompt(index).fields["question"]) for index in range(loaded_dataset.size)]


def test_games_are_selected_by_split_and_task_type(games: Path) -> None:
    both = ["put some mug on shelf.", "put a hot apple in fridge."]
    assert questions({"path": str(games)}) == questions({"path": str(games / "json_2.1.1")}) == both
    assert questions({"path": str(games), "task_types": ["pick_heat_then_place_in_recep"]}) == both[1:]
    assert questions({"is_sample": True, "split": "valid_unseen"}) == ["look at book under the desklamp."]


def test_goals_are_those_of_the_game_files_or_as_people_wrote_them(games: Path) -> None:
    by_source = {
        source: datasets.build({"kind": "alfworld", "path": str(games), "goals": source}, 0)
        for source in ("game", "people")
    }
    assert [by_source[source].prompt(0).fields["question"] for source in by_source] == [
        "put some mug on shelf.",
        "Put a mug on the shelf.",
    ]
    assert by_source["game"].fingerprint != by_source["people"].fingerprint
    (games / "json_2.1.1" / "train" / MUG / "game.tw-pddl").write_text('{"grammar": "", "solvable": true}')
    with raises_code(InvalidInput, "dataset.wrong_field", MUG):
        questions({"path": str(games)})
    assert len(questions({"path": str(games), "goals": "people"})) == 2


def test_the_id_of_a_game_is_its_path() -> None:
    prompt = datasets.build({"kind": "alfworld", "is_sample": True}, 0).prompt(0)
    assert prompt.id == f"sample/alfworld:train/{MUG}"
    assert (SAMPLES / "alfworld" / "json_2.1.1" / str(prompt.fields["game"])).is_file()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda game: (game / "game.tw-pddl").unlink(),
        lambda game: (game / "game.tw-pddl").write_text('{"solvable": false}'),
        lambda game: game.parent.rename(game.parent.with_name("pick_and_place_simple-AppleSliced-None-Shelf-1")),
    ],
)
def test_unplayable_games_are_left_out(games: Path, spoil: Any) -> None:
    whole = datasets.build({"kind": "alfworld", "path": str(games)}, 0)
    spoil(games / "json_2.1.1" / "train" / MUG)
    rest = datasets.build({"kind": "alfworld", "path": str(games)}, 0)
    assert (whole.size, rest.size) == (2, 1)
    assert whole.fingerprint != rest.fingerprint


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ("{", "dataset.unreadable"),
        ("{}", "dataset.wrong_field"),
        (json.dumps({"task_type": "pick_and_place_simple"}), "dataset.wrong_field"),
    ],
)
def test_a_damaged_game_is_refused(games: Path, facts: str, code: str) -> None:
    (games / "json_2.1.1" / "train" / MUG / "traj_data.json").write_text(facts)
    with pytest.raises(InvalidInput) as caught:
        questions({"path": str(games), "goals": "people"})
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("spec", "code", "quoted"),
    [
        ({}, "config.invalid", "is_sample"),
        ({"path": "/none"}, "dataset.empty", "/none/train"),
        ({"path": "/none"}, "dataset.empty", "alfworld-download"),
        ({"is_sample": True, "task_types": ["juggle"]}, "config.invalid", "juggle; known: look_at_obj_in_light"),
    ],
)
def test_invalid_options_are_refused(spec: dict[str, Any], code: str, quoted: str) -> None:
    with raises_code(InvalidInput, code, quoted):
        questions(spec)


def test_webshop_splits_are_the_published_ones() -> None:
    dataset_by_split = {
        split: datasets.build({"kind": "webshop", "split": split}, 0) for split in ("test", "eval", "train", "all")
    }
    assert {split: dataset.size for split, dataset in dataset_by_split.items()} == {
        "test": 500,
        "eval": 1000,
        "train": 10_587,
        "all": 12_087,
    }
    firsts = {split: dataset.prompt(0).fields["goal"] for split, dataset in dataset_by_split.items()}
    assert firsts == {"test": 0, "eval": 500, "train": 1500, "all": 0}


def test_webshop_goals_can_come_from_a_file(tmp_path: Path) -> None:
    rows = [{"asin": f"A{number}", "instruction_text": f"buy {number}"} for number in range(502)]
    path = tables.write_jsonl(tmp_path / "goals.jsonl", rows)
    loaded_dataset = datasets.build({"kind": "webshop", "split": "eval", "path": str(path)}, 0)
    assert loaded_dataset.size == 2
    assert loaded_dataset.prompt(1).fields == {"question": "buy 501", "answer": "", "goal": 501, "asin": "A501"}


def test_a_webshop_with_few_goals_has_no_training_split() -> None:
    with pytest.raises(InvalidInput) as caught:
        datasets.build({"kind": "webshop", "goals": 100}, 0)
    assert caught.value.code == "dataset.empty"
