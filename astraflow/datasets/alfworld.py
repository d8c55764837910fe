"""Household games of ALFWorld (arXiv:2010.03768): the game and its goal. The world is an environment."""

import json
import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import model_validator

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PromptId
from astraflow.contract.tasks import Prompt
from astraflow.contract.values import Json
from astraflow.datasets import datasets
from astraflow.datasets.base import ANSWER, QUESTION, check_index
from astraflow.datasets.published import SAMPLES
from astraflow.datasets.tables.base import fingerprint_of
from astraflow.runtime.config import Config
from astraflow.runtime.setting_permissions import SettableBy

TASK_TYPES = (
    "look_at_obj_in_light",
    "pick_and_place_simple",
    "pick_clean_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_two_obj_and_place",
)
"""Types of games, as the data names them."""

_EXCLUDED_NAMES = ("movable", "Sliced")
"""Parts of the names of games that the published loader excludes."""

_SOLVABLE = re.compile(rb'"solvable"\s*:\s*true')


class AlfworldOptions(Config):
    """Games to use."""

    path: Annotated[str, SettableBy.DATA_LOCATION] = ""
    """Folder that `alfworld-download` filled (ALFWORLD_DATA), on the machine that runs dataflow."""
    is_sample: bool = False
    """Use a few invented games in the same layout."""
    split: Literal["train", "valid_seen", "valid_unseen"] = "train"
    """Training games; validation games in rooms of the training games (`valid_seen`) or in other rooms
    (`valid_unseen`)."""
    task_types: Annotated[tuple[str, ...], SettableBy.AGENT] = TASK_TYPES
    """Types of games to use."""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.is_sample == bool(self.path):
            raise ValueError("set either the path of the games or `is_sample = true`")
        if unknown := set(self.task_types) - set(TASK_TYPES):
            raise ValueError(f"unknown task types {', '.join(sorted(unknown))}; known: {', '.join(TASK_TYPES)}")
        return self


@datasets.register("alfworld", options=AlfworldOptions)
class Alfworld:
    """Games in the order of their paths. Fields: question (the goal as written by a person), answer (empty: the
    environment decides), game (path of its file below the folder), task_type, split."""

    def __init__(self, options: AlfworldOptions, _seed: int) -> None:
        folder = SAMPLES / "alfworld" if options.is_sample else Path(options.path).expanduser()
        self._root = folder / "json_2.1.1" if (folder / "json_2.1.1").is_dir() else folder
        self._split = options.split
        self._prefix = "sample/alfworld" if options.is_sample else "alfworld"
        self._games = _games(self._root, options)
        if not self._games:
            raise InvalidInput(
                f"cannot load ALFWorld games: {str(self._root / options.split)!r} has no solvable games; set path to "
                "the folder that alfworld-download filled",
                code="dataset.empty",
            )

    @property
    def size(self) -> int:
        """Number of solvable games."""
        return len(self._games)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the names of the games."""
        return fingerprint_of(*self._games)

    def prompt(self, index: int) -> Prompt:
        """Returns game number `index`."""
        check_index(index, self.size)
        game = self._games[index]
        facts = _facts(self._root / game)
        fields: dict[str, Json] = {
            QUESTION: _goal(facts, self._root / game),
            ANSWER: "",
            "game": f"{game}/game.tw-pddl",
            "task_type": facts["task_type"],
            "split": self._split,
        }
        return Prompt(id=PromptId(f"{self._prefix}:{game}"), fields=fields)


def _games(root: Path, options: AlfworldOptions) -> list[str]:
    """Returns the folders of the games, relative to the root."""
    folders = sorted(file.parent for file in (root / options.split).rglob("traj_data.json"))
    return [
        str(folder.relative_to(root))
        for folder in folders
        if not any(word in str(folder.relative_to(root)) for word in _EXCLUDED_NAMES)
        and (folder / "game.tw-pddl").is_file()
        and _facts(folder)["task_type"] in options.task_types
        and _SOLVABLE.search((folder / "game.tw-pddl").read_bytes())
    ]


def _facts(folder: Path) -> dict[str, Json]:
    path = folder / "traj_data.json"
    try:
        facts = json.loads(path.read_bytes())
    except (OSError, ValueError) as problem:
        raise InvalidInput(
            f"cannot read {str(path)!r}: {problem}; download the games again", code="dataset.unreadable"
        ) from problem
    if not isinstance(facts, dict) or not isinstance(facts.get("task_type"), str):
        raise InvalidInput(
            f"cannot read {str(path)!r}: it has no task_type, so it is not an ALFWorld game; download the games again",
            code="dataset.wrong_field",
        )
    return facts


def _goal(facts: dict[str, Json], folder: Path) -> str:
    match facts.get("turk_annotations"):
        case {"anns": [{"task_desc": str(goal)}, *_]}:
            return goal.strip()
        case _:
            raise InvalidInput(
                f"cannot read {str(folder / 'traj_data.json')!r}: it has no goal (turk_annotations.anns[0].task_desc); "
                "download the games again",
                code="dataset.wrong_field",
            )
