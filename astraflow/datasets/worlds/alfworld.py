"""Household games of ALFWorld (arXiv:2010.03768), published or generated: the game and its goal. The world is the
environment `alfworld`."""

import json
import random
import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter, model_validator

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.values import Json
from astraflow.datasets import datasets
from astraflow.datasets.base import ANSWER, QUESTION, check_index, sampled_fingerprint
from astraflow.datasets.published.loading import SAMPLES
from astraflow.datasets.tables.base import fingerprint_of
from astraflow.datasets.worlds.alfworld_games import TASK_TYPES, HouseholdGame, generate_game, plan
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy

_EXCLUDED_NAMES = ("movable", "Sliced")
"""Parts of the names of games that the published loader excludes."""

_GAME = TypeAdapter(HouseholdGame)

_SOLVABLE = re.compile(rb'"solvable"\s*:\s*true')
_GOAL = re.compile(rb"Your task is to: ([^\"\\\\]+)")
"""Goal in the grammar of a published game."""
_DOWNLOAD = "run ALFWORLD_DATA=FOLDER alfworld-download (pip install alfworld), and set path to this folder"


class AlfworldOptions(Config):
    """Games to use."""

    path: Annotated[str, SettableBy.DATA_LOCATION] = ""
    """Folder that `alfworld-download` filled (ALFWORLD_DATA), on the machine that runs dataflow."""
    is_sample: Annotated[bool, SettableBy.AGENT] = False
    """Use a few invented games in the same layout."""
    generated: int = Field(default=0, ge=0)
    """Number of games to generate, instead of the published ones."""
    receptacles: int = Field(default=12, ge=3, le=40)
    """Receptacles in the room of a generated game. With fewer than six, some that are in every such
    room are missing. Count."""
    objects: int = Field(default=10, ge=3, le=60)
    """Objects in the room of a generated game, besides the lamp. Count."""
    split: Annotated[Literal["train", "valid_seen", "valid_unseen"], SettableBy.AGENT] = "train"
    """Training games; validation games in rooms of the training games (`valid_seen`) or in other rooms
    (`valid_unseen`)."""
    goals: Annotated[Literal["game", "people"], SettableBy.AGENT] = "game"
    """Goals of published games: those of the game files, which templates made and published results are about, or what
    a person wrote for the same task (`people`)."""
    task_types: Annotated[tuple[str, ...], SettableBy.AGENT] = TASK_TYPES
    """Types of games to use."""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (bool(self.path), self.is_sample, self.generated > 0).count(True) != 1:
            raise ValueError("set one of: path (of the published games), is_sample, generated (number of games)")
        if not self.task_types:
            raise ValueError("name at least one of task_types")
        if unknown := set(self.task_types) - set(TASK_TYPES):
            raise ValueError(f"unknown task types {', '.join(sorted(unknown))}; known: {', '.join(TASK_TYPES)}")
        return self


@datasets.register("alfworld", options=AlfworldOptions)
class Alfworld:
    """Household tasks of ALFWorld, as published games in the order of their paths or as generated games.

    Fields: question (the goal), answer (empty: the environment decides), game (path of its file below the folder),
    task_type, split.

    Generated games are numbered and alternate between the task types. Their field `game` holds the room and the goal,
    and `answer` holds actions that win, one per line."""

    def __init__(self, options: AlfworldOptions, seed: int) -> None:
        self._options = options
        self._seed = seed
        self._games: list[str] = []
        if not options.generated:
            self._find_games(options)

    def _find_games(self, options: AlfworldOptions) -> None:
        folder = SAMPLES / "alfworld" if options.is_sample else Path(options.path).expanduser()
        self._root = folder / "json_2.1.1" if (folder / "json_2.1.1").is_dir() else folder
        self._split = options.split
        self._prefix = "sample/alfworld" if options.is_sample else "alfworld"
        self._games = _games(self._root, options)
        if not self._games:
            raise InvalidInput(
                f"cannot load ALFWorld games: {str(self._root / options.split)!r} has no solvable games; {_DOWNLOAD}",
                code="dataset.empty",
            )

    @property
    def size(self) -> int:
        """Number of solvable games."""
        return self._options.generated or len(self._games)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the names of the games, or of generated games."""
        options = self._options
        return sampled_fingerprint(self) if options.generated else fingerprint_of(options.goals, *self._games)

    def prompt(self, index: int) -> Prompt:
        """Returns game number `index`."""
        check_index(index, self.size)
        return self._generated_prompt(index) if self._options.generated else self._published_prompt(self._games[index])

    def _generated_prompt(self, index: int) -> Prompt:
        task_type = self._options.task_types[index % len(self._options.task_types)]
        rng = random.Random(f"alfworld/{self._seed}/{index}")
        game = generate_game(rng, task_type, receptacles=self._options.receptacles, objects=self._options.objects)
        fields: dict[str, Json] = {
            QUESTION: game.goal,
            ANSWER: "\n".join(plan(game)),
            "game": _GAME.dump_python(game, mode="json"),
            "task_type": task_type,
            "split": "generated",
        }
        return Prompt(id=PromptId(f"alfworld:generated/{index}"), fields=fields)

    def _published_prompt(self, game: str) -> Prompt:
        facts = _facts(self._root / game)
        fields: dict[str, Json] = {
            QUESTION: _goal(self._root / game)
            if self._options.goals == "game"
            else _written_goal(facts, self._root / game),
            ANSWER: "",
            "game": f"{game}/game.tw-pddl",
            "task_type": facts["task_type"],
            "split": self._split,
        }
        return Prompt(id=PromptId(f"{self._prefix}:{game}"), fields=fields)


def _games(root: Path, options: AlfworldOptions) -> list[str]:
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


def _goal(folder: Path) -> str:
    path = folder / "game.tw-pddl"
    match = _GOAL.search(path.read_bytes())
    if match is None:
        raise InvalidInput(
            f"cannot read {str(path)!r}: its grammar states no goal; download the games again, or set goals to "
            "'people'",
            code="dataset.wrong_field",
        )
    return match[1].decode(errors="replace").strip()


def _written_goal(facts: dict[str, Json], folder: Path) -> str:
    match facts.get("turk_annotations"):
        case {"anns": [{"task_desc": str(goal)}, *_]}:
            return goal.strip()
        case _:
            raise InvalidInput(
                f"cannot read {str(folder / 'traj_data.json')!r}: it has no goal (turk_annotations.anns[0].task_desc); "
                "download the games again",
                code="dataset.wrong_field",
            )
