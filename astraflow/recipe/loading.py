"""Loading of a recipe with overrides, and its snapshot."""

import json
from collections.abc import Sequence
from enum import Enum

from astraflow.recipe.checks import check_names, check_node_policies, check_plugins, check_roles_of
from astraflow.recipe.config import Recipe
from astraflow.recipe.files import find_recipe, layers_of
from astraflow.recipe.plugins import plugin_specs
from astraflow.recipe.sources import local_values
from astraflow.runtime.config.toml import ConfigLayer, layer_origin, merge_layers, parse_override


class Check(Enum):
    """Plugins whose kinds and options are checked when a recipe is loaded; the check imports their modules."""

    NONE = "none"
    """No plugins; they are checked when they are built."""
    LIGHT = "light"
    """Plugins that import quickly; the processes that build the others check them at start."""
    ALL = "all"


def load_recipe(name_or_path: str, overrides: Sequence[str] = (), *, check: Check = Check.ALL) -> Recipe:
    """Loads a recipe with `key=value` overrides.

    Raises: InvalidInput with one line for each mistake, each with the file it is in.
    """
    layers = [
        *layers_of(find_recipe(name_or_path)),
        *(ConfigLayer("--set", parse_override(text)) for text in overrides),
    ]
    origin = layer_origin(layers)
    recipe = Recipe.parse(merge_layers(layers), where="", origin=origin)
    if recipe.data_root:
        local = local_values(plugin_specs(recipe), recipe.data_root, recipe=name_or_path)
        layers.append(ConfigLayer("data_root", local))
        recipe = Recipe.parse(merge_layers(layers), where="", origin=origin)
    check_names(recipe, origin)
    check_roles_of(recipe, origin)
    check_node_policies(recipe, origin)
    if check is not Check.NONE:
        check_plugins(recipe, origin, with_heavy=check is Check.ALL)
    return recipe


def snapshot(recipe: Recipe) -> str:
    """Returns the complete recipe as JSON; `load_recipe` reads it back from a file that ends in `.json`."""
    process_defaults = {"name", "hardware"} - recipe.nodes.model_fields_set
    return json.dumps(recipe.model_dump(mode="json", exclude={"nodes": process_defaults}), indent=2)
