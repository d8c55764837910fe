"""Tiny recipes train the same task as the full recipes beside them, with another model and other sizes."""

from collections.abc import Mapping
from typing import Any

import pytest

from astraflow.recipe.config import Recipe
from astraflow.recipe.files import packaged_recipes
from astraflow.recipe.loading import Check, load_recipe
from benchmarks.recipe_curves import tiny_recipes

TINY = tiny_recipes()


def full_name(name: str) -> str:
    """Returns the name of the full recipe: `x` of `x/tiny`, `x/y` of `x/tiny_y`."""
    folder, _, variant = name.replace("/tiny_", "/tiny/").partition("/tiny")
    return folder + variant


TWINS = [name for name in TINY if full_name(name) in packaged_recipes()]


@pytest.mark.parametrize("name", TINY)
def test_a_tiny_recipe_is_valid_and_has_a_goal(name: str) -> None:
    recipe = load_recipe(name)

    assert recipe.stop.reward is not None
    assert all(policy.model["kind"] == "tiny" for policy in recipe.policies.values())
    assert all(
        policy.model["warm_start"]["target_accuracy"] < recipe.stop.reward for policy in recipe.policies.values()
    )


@pytest.mark.parametrize("name", TWINS)
def test_a_tiny_recipe_has_workflow_reward_and_algorithm_of_the_full_one(name: str) -> None:
    tiny, full = load_recipe(name), load_recipe(full_name(name), check=Check.LIGHT)

    assert parts_of(tiny) == parts_of(full)


def parts_of(recipe: Recipe) -> dict[str, Any]:
    """Returns the kinds of what both recipes share."""
    flow = recipe.flows["train"]
    return {
        "workflow": flow.workflow["kind"],
        "tools": [tool["kind"] for tool in flow.workflow.get("tools", ())],
        "environment": _environment(flow.workflow.get("environment", {})),
        "reward": flow.reward["kind"],
        "algorithms": {
            name: ([part["kind"] for part in policy.algorithm.advantages], policy.algorithm.loss["kind"])
            for name, policy in recipe.policies.items()
        },
    }


def _environment(spec: Mapping[str, Any]) -> str | None:
    """Returns the environment that processes run, or a service serves; the service of WebShop is its environment."""
    if spec.get("kind") == "http":
        return "webshop"
    return _environment(spec["of"]) if "of" in spec else spec.get("kind")
