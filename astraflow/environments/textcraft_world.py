"""World of crafting tasks: recipes, an inventory and a budget of steps, which several agents may share."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.values import Json
from astraflow.datasets.worlds.textcraft import Recipe

MAX_ACTION_CHARACTERS = 2000
"""Longest command that is read."""
MAX_COUNT = 9999
"""Largest count in a command."""

_GET = re.compile(r"get (\d{1,4}) ([a-z' ]+)")
_CRAFT = re.compile(r"craft (\d{1,4}) ([a-z' ]+?) using (.+)")
_INPUT = re.compile(r"(\d{1,4}) ([a-z' ]+)")
_EXPECTED = "Use `get COUNT ITEM`, `craft COUNT ITEM using COUNT ITEM, ...` or `inventory`."


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """Result of one command."""

    text: str
    is_malformed: bool = False
    """The command could not be read; it took no step."""
    is_performed: bool = False
    """The command did what it says."""
    took: tuple[str, int] | None = None
    """Item and count that the command added to the inventory."""


@dataclass(slots=True, kw_only=True)
class CraftingWorld:
    """State of one episode. Commands are performed one after another, in the order of the calls.

    Agents that share the world take from one inventory and one budget. An agent with targets of its own asks `has`
    for them when it finishes.
    """

    recipes: Mapping[str, Recipe]
    """Recipe of each item that can be crafted."""
    raw_items: frozenset[str]
    """Items that can only be taken."""
    goal: tuple[str, int]
    """Item and count."""
    steps_left: int | None = None
    """Commands that may still be performed, by all agents together; None: any number."""
    inventory: Counter[str] = field(default_factory=Counter)

    @property
    def is_won(self) -> bool:
        """Returns whether the inventory holds the goal."""
        return self.has({self.goal[0]: self.goal[1]})

    @property
    def inventory_text(self) -> str:
        """Inventory as text, in alphabetical order."""
        items = [f"{count} {item}" for item, count in sorted(self.inventory.items()) if count]
        return f"Inventory: {', '.join(items) or 'nothing'}."

    def has(self, targets: Mapping[str, int]) -> bool:
        """Returns whether the inventory holds these counts of items."""
        return all(self.inventory[item] >= count for item, count in targets.items())

    def perform(self, command: str) -> CommandResult:
        """Performs a command, and takes a step for it unless the command cannot be read.

        With no steps left nothing is performed.
        """
        action = self._parsed(command)
        if action is None:
            return CommandResult(text=f"Cannot read the command. {_EXPECTED}", is_malformed=True)
        if self.steps_left is not None:
            if self.steps_left <= 0:
                return CommandResult(text="No steps are left.")
            self.steps_left -= 1
        verb, count, item, inputs = action
        if verb == "inventory":
            return CommandResult(text=self.inventory_text, is_performed=True)
        return self._get(item, count) if verb == "get" else self._craft(item, count, inputs)

    def _parsed(self, command: str) -> tuple[str, int, str, Counter[str]] | None:
        """Returns verb, count, item and inputs."""
        if len(command) > MAX_ACTION_CHARACTERS:
            return None
        text = " ".join(command.lower().split()).rstrip(".")
        if text == "inventory":
            return "inventory", 0, "", Counter()
        if match := _GET.fullmatch(text):
            return "get", int(match[1]), match[2], Counter()
        if match := _CRAFT.fullmatch(text):
            parts = [_INPUT.fullmatch(part.strip()) for part in match[3].split(",")]
            inputs: Counter[str] = Counter()
            for part in parts:
                if part is None:
                    return None
                inputs[part[2]] += int(part[1])
            return "craft", int(match[1]), match[2], inputs
        return None

    def _get(self, item: str, count: int) -> CommandResult:
        if item not in self.raw_items or count == 0:
            reason = "it must be crafted" if item in self.recipes else "there is none"
            return CommandResult(text=f"Cannot get {count} {item}: {reason if count else 'ask for at least 1'}.")
        if self.inventory[item] + count > MAX_COUNT:
            return CommandResult(text=f"Cannot get {count} {item}: at most {MAX_COUNT} fit into the inventory.")
        self.inventory[item] += count
        return CommandResult(text=f"Got {count} {item}.", is_performed=True, took=(item, count))

    def _craft(self, item: str, count: int, inputs: Counter[str]) -> CommandResult:
        recipe = self.recipes.get(item)
        if recipe is None or recipe.count != count or _counted(recipe.inputs) != inputs:
            return CommandResult(text=f"Cannot craft {item}: no such recipe.")
        if not self.has(inputs):
            missing = inputs - self.inventory
            names = ", ".join(f"{lacking} {name}" for name, lacking in missing.items())
            return CommandResult(text=f"Cannot craft {item}: {names} missing.")
        self.inventory -= inputs
        self.inventory[item] += count
        return CommandResult(text=f"Crafted {count} {item}.", is_performed=True, took=(item, count))


def world_of(prompt: Prompt, *, max_steps: int | None = None) -> CraftingWorld:
    """Returns the world of a prompt of the dataset `textcraft`, with an empty inventory.

    max_steps: budget of commands; None without one. Raises: InvalidInput for a prompt of another dataset.
    """
    goal, rows = prompt.fields.get("goal"), prompt.fields.get("recipes")
    try:
        recipes = {recipe.item: recipe for recipe in map(_recipe, _list(rows))}
        target = _counted_item(goal)
    except (KeyError, TypeError, ValueError) as problem:
        raise InvalidInput(
            f"cannot build the crafting world of prompt {str(prompt.id)!r}: its fields `goal` and `recipes` are not "
            "those of the dataset `textcraft`; use that dataset",
            code="environment.wrong_prompt",
        ) from problem
    inputs = {name for recipe in recipes.values() for name, _ in recipe.inputs}
    raw_items = frozenset(inputs - recipes.keys())
    return CraftingWorld(recipes=recipes, raw_items=raw_items, goal=target, steps_left=max_steps)


def _recipe(row: Json) -> Recipe:
    item, count = _counted_item(row)
    if not isinstance(row, dict):
        raise TypeError("not an object")
    return Recipe(item=item, count=count, inputs=tuple(_counted_item(part) for part in _list(row["inputs"])))


def _counted_item(row: Json) -> tuple[str, int]:
    if not isinstance(row, dict):
        raise TypeError("not an object")
    item, count = row["item"], row["count"]
    if not isinstance(item, str) or not isinstance(count, int) or count < 1:
        raise ValueError("an item is text, and its count at least 1")
    return item, count


def _list(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise TypeError("not a list")
    return value


def _counted(parts: Sequence[tuple[str, int]]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for item, count in parts:
        counts[item] += count
    return counts
