"""Generated crafting tasks: recipes and a goal, for which the policy must find a plan.

The world follows TextCraft (ADaPT, arXiv:2311.05772): `get 2 oak log` takes an item that no recipe makes, `craft 4 oak
plank using 1 oak log` makes other items. TextCraft uses the recipes of a game that models know from text. The recipes
here are invented, so that the plan must be derived from the task.
"""

import random
from dataclasses import dataclass, field
from itertools import count
from typing import Self

from pydantic import Field, model_validator

from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.values import Json
from astraflow.datasets import datasets
from astraflow.datasets.base import ANSWER, QUESTION, GeneratedDataset
from astraflow.runtime.config.base import Config

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
    """Number of tasks and their difficulty."""

    size: int = Field(default=1000, ge=1)
    """Number of tasks."""
    min_depth: int = Field(default=2, ge=1)
    """Recipes on the longest path from raw items to the goal, in the easiest tasks."""
    max_depth: int = Field(default=4, le=5)
    """The same in the hardest tasks; all depths in between are equally frequent."""
    max_inputs: int = Field(default=3, ge=1, le=3)
    """Maximum of different inputs of a recipe."""
    max_count: int = Field(default=2, ge=1, le=8)
    """Maximum count of each item in a recipe."""
    max_crafts: int = Field(default=32, ge=16)
    """Maximum of craft commands in a plan; a task that needs more is drawn again."""
    distractors: int = Field(default=6, ge=0, le=64)
    """Recipes that do not lead to the goal."""
    items: int = Field(default=len(_NAMES), ge=1, le=len(_NAMES))
    """Number of different items in all tasks together. The fewer, the easier for a model from scratch."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.min_depth > self.max_depth:
            raise ValueError("min_depth must not exceed max_depth")
        needed = sum(self.max_inputs**depth for depth in range(self.max_depth + 1)) + self.distractors
        if self.items < needed:
            raise ValueError(f"items must be at least {needed}, because a task may have so many")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all items, with materials and forms as different as possible."""
        return _NAMES[:: len(_NAMES) // self.items][: self.items]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One recipe, as the task lists it."""

    item: str
    count: int
    inputs: tuple[tuple[str, int], ...]

    @property
    def command(self) -> str:
        """Text of the command, such as `craft 4 oak plank using 1 oak log, 2 iron nail`."""
        return f"craft {self.count} {self.item} using {', '.join(f'{count} {item}' for item, count in self.inputs)}"

    @property
    def facts(self) -> dict[str, Json]:
        """The recipe as JSON."""
        inputs: list[Json] = [{"item": item, "count": count} for item, count in self.inputs]
        return {"item": self.item, "count": self.count, "inputs": inputs}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A goal, recipes, and a plan of commands that reaches the goal."""

    goal: str
    goal_count: int
    recipes: tuple[Recipe, ...]
    plan: tuple[str, ...]

    @property
    def craft_count(self) -> int:
        return sum(command.startswith("craft") for command in self.plan)


@datasets.register("textcraft", options=TextcraftOptions)
class Textcraft(GeneratedDataset):
    """Generated crafting tasks.

    Fields: question, answer (commands that reach the goal), goal, recipes, depth, crafts (in that answer).
    """

    def __init__(self, options: TextcraftOptions, seed: int) -> None:
        super().__init__(options.size)
        self._options = options
        self._names = options.names
        self._seed = seed

    def _prompt(self, index: int) -> Prompt:
        task = next(
            task for attempt in count() if (task := self._task(index, attempt)).craft_count <= self._options.max_crafts
        )
        commands = "\n".join(recipe.command for recipe in task.recipes)
        fields: dict[str, Json] = {
            QUESTION: f"Crafting commands:\n{commands}\n\nGoal: craft {task.goal_count} {task.goal}.",
            ANSWER: "\n".join(task.plan),
            "goal": {"item": task.goal, "count": task.goal_count},
            "recipes": [recipe.facts for recipe in task.recipes],
            "depth": self._depth(index),
            "crafts": task.craft_count,
        }
        return Prompt(id=PromptId(f"textcraft:{index}"), fields=fields)

    def _task(self, index: int, attempt: int) -> Task:
        rng = random.Random(f"textcraft/{self._seed}/{index}/{attempt}")
        builder = _RecipeBuilder(rng, self._options, self._names)
        goal, number = builder.item(self._depth(index)), rng.randint(1, self._options.max_count)
        recipes = [*builder.recipes.values(), *builder.distractors()]
        rng.shuffle(recipes)
        return Task(goal=goal, goal_count=number, recipes=tuple(recipes), plan=tuple(builder.plan(goal, number)))

    def _depth(self, index: int) -> int:
        return self._options.min_depth + index % (self._options.max_depth - self._options.min_depth + 1)


@dataclass(slots=True)
class _RecipeBuilder:
    """Items of one task. Each is raw or made by one recipe, and each made item is an input of one other recipe."""

    rng: random.Random
    options: TextcraftOptions
    all_names: tuple[str, ...]
    recipes: dict[str, Recipe] = field(default_factory=dict)
    raw_items: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    def item(self, depth: int) -> str:
        """Creates an item whose longest path has `depth` recipes; returns its name."""
        name = self._new_name()
        if depth == 0:
            self.raw_items.append(name)
            return name
        others = [self._side_item(depth) for _ in range(self.rng.randint(0, self.options.max_inputs - 1))]
        self.recipes[name] = self._recipe(name, [self.item(depth - 1), *others])
        return name

    def plan(self, goal: str, number: int) -> list[str]:
        """Returns the commands that make the goal, raw items first; recipes are repeated as needed."""
        takes: dict[str, int] = {}
        crafts: list[str] = []
        self._plan_item(goal, number, takes, crafts)
        return [*(f"get {needed} {item}" for item, needed in takes.items()), *crafts]

    def distractors(self) -> list[Recipe]:
        """Returns recipes of items that no other recipe needs."""
        recipes = []
        for _ in range(self.options.distractors):
            inputs = self.rng.sample(
                self.raw_items, min(len(self.raw_items), self.rng.randint(1, self.options.max_inputs))
            )
            recipes.append(self._recipe(self._new_name(), inputs))
        return recipes

    def _plan_item(self, item: str, number: int, takes: dict[str, int], crafts: list[str]) -> None:
        recipe = self.recipes.get(item)
        if recipe is None:
            takes[item] = takes.get(item, 0) + number
            return
        times = -(-number // recipe.count)
        for input_item, input_count in recipe.inputs:
            self._plan_item(input_item, input_count * times, takes, crafts)
        crafts.extend([recipe.command] * times)

    def _side_item(self, depth: int) -> str:
        return self.item(self.rng.randint(0, depth - 1))

    def _recipe(self, name: str, inputs: list[str]) -> Recipe:
        counted = tuple((item, self._count()) for item in inputs)
        return Recipe(item=name, count=self._count(), inputs=counted)

    def _count(self) -> int:
        return self.rng.randint(1, self.options.max_count)

    def _new_name(self) -> str:
        while True:
            name = self.rng.choice(self.all_names)
            if name not in self.names:
                self.names.add(name)
                return name
