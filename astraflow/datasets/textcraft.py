"""Crafting tasks, made on the spot: recipes, a goal, and nothing but thought between them.

The world is that of TextCraft (ADaPT, arXiv:2311.05772): `get 2 oak log` takes what no recipe makes, `craft 4 oak plank
using 1 oak log` makes the rest. Its recipes are those of a game that models have read about; these are made up, so that
the way to the goal has to be found in the task.
"""

import random
from dataclasses import dataclass, field
from itertools import count
from typing import Self

from pydantic import Field, model_validator

from astraflow.contract.ids import PromptId
from astraflow.contract.tasks import Prompt
from astraflow.contract.values import Json
from astraflow.datasets import datasets
from astraflow.datasets.base import ANSWER, QUESTION, check_index, sampled_fingerprint
from astraflow.runtime.config import Config

_MATERIALS = (
    "amber ashen azure birch bronze cedar chalk clay cobalt copper coral cotton crystal ebony elm fern flint glass "
    "granite hemp iron ivory jade larch leather linen maple marble mossy oak onyx opal pine quartz reed rubber sandy "
    "silver slate straw walnut willow"
)
_FORMS = (
    "arch axle basket beam blade board bolt bowl brick cable chain cloth coil cord cup disc frame gear grate handle "
    "hook ingot knob ladder lamp lens lever mould nail panel pipe plank plate post ring rod rope shard spring wedge"
)
_NAMES = tuple(f"{material} {form}" for material in _MATERIALS.split() for form in _FORMS.split())


class TextcraftOptions(Config):
    """How many tasks, and how hard."""

    size: int = Field(default=1000, ge=1)
    """Tasks."""
    min_depth: int = Field(default=2, ge=1)
    """Recipes between what is taken and the goal, along the longest way, in the easiest tasks."""
    max_depth: int = Field(default=4, le=5)
    """The same in the hardest; all between are equally frequent."""
    max_inputs: int = Field(default=3, ge=1, le=3)
    """Different things that a recipe needs, at most."""
    max_count: int = Field(default=2, ge=1, le=8)
    """Of each thing in a recipe, at most."""
    max_crafts: int = Field(default=32, ge=16)
    """Recipes that have to be followed, counting each time; a task that takes more is drawn again."""
    distractors: int = Field(default=6, ge=0, le=64)
    """Recipes that lead nowhere."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_depth > self.max_depth:
            raise ValueError("min_depth must not be above max_depth")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One command, as the task lists it."""

    item: str
    count: int
    inputs: tuple[tuple[str, int], ...]

    @property
    def command(self) -> str:
        """`craft 4 oak plank using 1 oak log, 2 iron nail`."""
        return f"craft {self.count} {self.item} using {', '.join(f'{count} {item}' for item, count in self.inputs)}"

    @property
    def facts(self) -> dict[str, Json]:
        """As JSON."""
        inputs: list[Json] = [{"item": item, "count": count} for item, count in self.inputs]
        return {"item": self.item, "count": self.count, "inputs": inputs}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A goal, recipes, and commands that reach the one by the others."""

    goal: str
    number: int
    recipes: tuple[Recipe, ...]
    plan: tuple[str, ...]

    @property
    def crafts(self) -> int:
        """Times that a recipe is followed."""
        return sum(command.startswith("craft") for command in self.plan)


@datasets.register("textcraft", options=TextcraftOptions)
class Textcraft:
    """Fields: question, answer (commands that reach the goal), goal, recipes, depth, crafts (of that answer)."""

    def __init__(self, options: TextcraftOptions, seed: int) -> None:
        self._options = options
        self._seed = seed

    @property
    def size(self) -> int:
        """As many as were asked for."""
        return self._options.size

    @property
    def fingerprint(self) -> str:
        """Of the prompts."""
        return sampled_fingerprint(self)

    def prompt(self, index: int) -> Prompt:
        """Task number `index`."""
        check_index(index, self.size)
        task = next(
            task for attempt in count() if (task := self._task(index, attempt)).crafts <= self._options.max_crafts
        )
        commands = "\n".join(recipe.command for recipe in task.recipes)
        fields: dict[str, Json] = {
            QUESTION: f"Crafting commands:\n{commands}\n\nGoal: craft {task.number} {task.goal}.",
            ANSWER: "\n".join(task.plan),
            "goal": {"item": task.goal, "count": task.number},
            "recipes": [recipe.facts for recipe in task.recipes],
            "depth": self._depth(index),
            "crafts": task.crafts,
        }
        return Prompt(id=PromptId(f"textcraft:{index}"), fields=fields)

    def _task(self, index: int, attempt: int) -> Task:
        chance = random.Random(f"textcraft/{self._seed}/{index}/{attempt}")
        world = _World(chance, self._options)
        goal, number = world.item(self._depth(index)), chance.randint(1, self._options.max_count)
        recipes = [*world.recipes.values(), *world.distractors()]
        chance.shuffle(recipes)
        return Task(goal=goal, number=number, recipes=tuple(recipes), plan=tuple(world.plan(goal, number)))

    def _depth(self, index: int) -> int:
        return self._options.min_depth + index % (self._options.max_depth - self._options.min_depth + 1)


@dataclass(slots=True)
class _World:
    """The things of one task. Each is made by one recipe, or taken, and each made one goes into one other."""

    chance: random.Random
    options: TextcraftOptions
    recipes: dict[str, Recipe] = field(default_factory=dict)
    taken: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    def item(self, depth: int) -> str:
        """A new thing that takes so many recipes along the longest way."""
        name = self._new_name()
        if depth == 0:
            self.taken.append(name)
            return name
        others = [self._side_item(depth) for _ in range(self.chance.randint(0, self.options.max_inputs - 1))]
        self.recipes[name] = self._recipe(name, [self.item(depth - 1), *others])
        return name

    def plan(self, goal: str, number: int) -> list[str]:
        """Commands that make the goal, what is taken first: a recipe is followed as often as it must be."""
        takes: dict[str, int] = {}
        crafts: list[str] = []
        self._need(goal, number, takes, crafts)
        return [*(f"get {needed} {item}" for item, needed in takes.items()), *crafts]

    def distractors(self) -> list[Recipe]:
        """Recipes of things that nobody needs."""
        found = []
        for _ in range(self.options.distractors):
            inputs = self.chance.sample(
                self.taken, min(len(self.taken), self.chance.randint(1, self.options.max_inputs))
            )
            found.append(self._recipe(self._new_name(), inputs))
        return found

    def _need(self, item: str, number: int, takes: dict[str, int], crafts: list[str]) -> None:
        recipe = self.recipes.get(item)
        if recipe is None:
            takes[item] = takes.get(item, 0) + number
            return
        times = -(-number // recipe.count)
        for part, each in recipe.inputs:
            self._need(part, each * times, takes, crafts)
        crafts.extend([recipe.command] * times)

    def _side_item(self, depth: int) -> str:
        return self.item(self.chance.randint(0, depth - 1))

    def _recipe(self, name: str, inputs: list[str]) -> Recipe:
        counted = tuple((item, self._count()) for item in inputs)
        return Recipe(item=name, count=self._count(), inputs=counted)

    def _count(self) -> int:
        return self.chance.randint(1, self.options.max_count)

    def _new_name(self) -> str:
        while True:
            name = self.chance.choice(_NAMES)
            if name not in self.names:
                self.names.add(name)
                return name
