"""Loading of a recipe with overrides, and its snapshot."""

import json
from collections.abc import Sequence
from enum import Enum

from astraflow.contract.errors import InvalidInput
from astraflow.recipe.checks import check_names, check_node_policies, check_plugins, check_roles_of
from astraflow.recipe.config import Recipe
from astraflow.recipe.files import find_recipe, layers_of
from astraflow.recipe.plugins import plugin_specs
from astraflow.recipe.sources import local_values, warm_start_values
from astraflow.runtime.config.base import ValueOrigin, suggest_name
from astraflow.runtime.config.toml import ConfigLayer, Values, layer_origin, merge_layers, parse_override


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
    recipe = _parsed(merge_layers(layers), origin)
    if recipe.data_root:
        local = local_values(plugin_specs(recipe), recipe.data_root, recipe=name_or_path)
        layers.append(ConfigLayer("data_root", local))
        recipe = Recipe.parse(merge_layers(layers), where="", origin=origin)
    if warm_starts := warm_start_values(plugin_specs(recipe)):
        recipe = Recipe.parse(merge_layers([*layers, ConfigLayer("data", warm_starts)]), where="", origin=origin)
    check_names(recipe, origin)
    check_roles_of(recipe, origin)
    check_node_policies(recipe, origin)
    if check is not Check.NONE:
        check_plugins(recipe, origin, with_heavy=check is Check.ALL)
    return recipe


def _parsed(values: Values, origin: ValueOrigin) -> Recipe:
    """Returns the recipe. Raises: InvalidInput, with a hint for a policy that only a misspelled name can explain."""
    try:
        return Recipe.parse(values, where="", origin=origin)
    except InvalidInput as problem:
        hints = _misspelled_policies(values)
        lines = [
            next((line + hints[end] for end in hints if line.endswith(end)), line) for line in str(problem).split("\n")
        ]
        raise InvalidInput("\n".join(lines), code=problem.code) from None


def _misspelled_policies(values: Values) -> dict[str, str]:
    """Returns a hint for each policy without a model and with a similar name, by the end of the line about it."""
    policies = values.get("policies")
    tables = policies if isinstance(policies, dict) else {}
    known = [name for name, table in tables.items() if isinstance(table, dict) and "model" in table]
    hints = {
        f"policies.{name}.model: missing; it has no default": suggest_name(name, known)
        for name in tables
        if name not in known
    }
    return {end: f"; {hint}" for end, hint in hints.items() if hint.startswith("did you mean")}


def snapshot(recipe: Recipe) -> str:
    """Returns the complete recipe as JSON; `load_recipe` reads it back from a file that ends in `.json`."""
    process_defaults = {"name", "hardware"} - recipe.nodes.model_fields_set
    return json.dumps(recipe.model_dump(mode="json", exclude={"nodes": process_defaults}), indent=2)
