"""Household games of ALFWorld (arXiv:2010.03768): which game, and what its goal is. The world is an environment's."""

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
from astraflow.datasets.known import SAMPLES
from astraflow.datasets.tables.base import fingerprint_of
from astraflow.runtime.config import Config
from astraflow.runtime.overrides import SetBy

TASK_TYPES = (
    "look_at_obj_in_light",
    "pick_and_place_simple",
    "pick_clean_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_two_obj_and_place",
)
"""What a game can be about, as the data names it."""

_LEFT_OUT = ("movable", "Sliced")
"""In the name of a game: the published loader plays none of these."""

_SOLVABLE = re.compile(rb'"solvable"\s*:\s*true')


class AlfworldOptions(Config):
    """Which games."""

    path: Annotated[str, SetBy.PLACE] = ""
    """The folder that `alfworld-download` filled (ALFWORLD_DATA), on the machine that runs dataflow."""
    is_sample: bool = False
    """A few made-up games in the same layout."""
    split: Literal["train", "valid_seen", "valid_unseen"] = "train"
    """Training games, or games in rooms that training has, or has not."""
    task_types: Annotated[tuple[str, ...], SetBy.AGENT] = TASK_TYPES
    """Which kinds of task."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.is_sample == bool(self.path):
            raise ValueError("needs the path of the games, or `is_sample = true`")
        if unknown := set(self.task_types) - set(TASK_TYPES):
            raise ValueError(f"no such task types: {', '.join(sorted(unknown))}; known: {', '.join(TASK_TYPES)}")
        return self


@datasets.register("alfworld", options=AlfworldOptions)
class Alfworld:
    """Games in the order of their paths. Fields: question (the goal as a person put it), answer (empty: the environment
    decides), game (path of its file below the folder), task_type, split."""

    def __init__(self, options: AlfworldOptions, _seed: int) -> None:
        given = SAMPLES / "alfworld" if options.is_sample else Path(options.path).expanduser()
        self._root = given / "json_2.1.1" if (given / "json_2.1.1").is_dir() else given
        self._split = options.split
        self._prefix = "sample/alfworld" if options.is_sample else "alfworld"
        self._games = _games(self._root, options)
        if not self._games:
            raise InvalidInput(
                f"there are no solvable games in {self._root / options.split}: "
                "name the folder that alfworld-download filled"
            )

    @property
    def size(self) -> int:
        """Games that can be solved."""
        return len(self._games)

    @property
    def fingerprint(self) -> str:
        """Of the names of the games."""
        return fingerprint_of(*self._games)

    def prompt(self, index: int) -> Prompt:
        """Game number `index`."""
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
    """Folders of the games, below the root."""
    found = sorted(file.parent for file in (root / options.split).rglob("traj_data.json"))
    return [
        str(folder.relative_to(root))
        for folder in found
        if not any(word in str(folder.relative_to(root)) for word in _LEFT_OUT)
        and (folder / "game.tw-pddl").is_file()
        and _facts(folder)["task_type"] in options.task_types
        and _SOLVABLE.search((folder / "game.tw-pddl").read_bytes())
    ]


def _facts(folder: Path) -> dict[str, Json]:
    path = folder / "traj_data.json"
    try:
        facts = json.loads(path.read_bytes())
    except (OSError, ValueError) as problem:
        raise InvalidInput(f"{path} cannot be read: {problem}") from problem
    if not isinstance(facts, dict) or not isinstance(facts.get("task_type"), str):
        raise InvalidInput(f"{path} has no task_type: it is no game of ALFWorld")
    return facts


def _goal(facts: dict[str, Json], folder: Path) -> str:
    match facts.get("turk_annotations"):
        case {"anns": [{"task_desc": str(goal)}, *_]}:
            return goal.strip()
        case _:
            raise InvalidInput(
                f"{folder / 'traj_data.json'} has no turk_annotations.anns[0].task_desc: what is the goal?"
            )
