"""Launch form of a recipe: its settings, their current values, and the problems of the overrides."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from astraflow.cli.recipes.cards import LOOPBACK, checks, obstacles, recent_machine, simulated_kinds
from astraflow.cli.recipes.declared import check_declared_recipe
from astraflow.cli.recipes.fleet_form import FleetForm, Inspect, fleet_form, inspect_once
from astraflow.cli.recipes.override_limits import Limits, SettingClasses, needs_admin, refusals
from astraflow.cli.recipes.settings import form_field, list_field, plugin_schema, recipe_schema, schema_at
from astraflow.cli.recipes.toml_editor import line_of, overrides_of, recipe_text, setting_lines, text_problem
from astraflow.contract.errors import InvalidInput, NotPermitted
from astraflow.contract.launching import FormCheck, FormField, FormProblem, RecipeForm, RecipePreflight
from astraflow.recipe.config import Recipe
from astraflow.recipe.loading import Check, load_recipe, snapshot
from astraflow.recipe.plugins import plugin_lists, plugin_specs
from astraflow.runtime.config.toml import Values


def recipe_form(
    location: str,
    overrides: Sequence[str] = (),
    *,
    text: str | None = None,
    folders: Sequence[Path] = (),
    host: str = LOOPBACK,
    limits: Limits | None = None,
    inspect: Inspect = inspect_once,
) -> RecipeForm:
    """Returns the form of a recipe with overrides as in `--set`, including all their problems.

    text: the recipe as TOML text that the user edited, instead of overrides. folders: folders of declared recipes,
    which may use no other files. host: address at which a run with remote nodes would listen. limits: limits of the
    user; None for the local user. inspect: checks the settings of the fleet.
    Raises: InvalidInput for a recipe that cannot be loaded without the overrides.
    """
    _check_location(location, folders)
    unchanged = load_recipe(location, check=Check.NONE)
    problems: list[FormProblem] = []
    try:
        overrides = overrides if text is None else overrides_of(text, location)
    except InvalidInput as problem:
        problems.append(text_problem(problem))
    refused = _refused(unchanged, overrides, limits)
    chosen, invalid = (unchanged, []) if refused else _load_valid(location, unchanged, overrides)
    has_fleet = bool(chosen.fleet.get("providers") or chosen.fleet.get("pools"))
    fleet = fleet_form(chosen, inspect) if has_fleet else FleetForm()
    problems += [*refused, *invalid, *(_problem(line) for line in fleet.problems)]
    text = recipe_text(location, () if refused else overrides) if text is None else text
    lines = setting_lines(text)
    problems = [_with_line(problem, lines) for problem in problems]
    return RecipeForm(
        name=location,
        summary=unchanged.summary,
        simulated=simulated_kinds(chosen),
        fields=tuple(_fields(chosen, fleet)),
        problems=tuple(problems),
        refusals=tuple(_with_line(refusal, lines) for refusal in refused),
        overrides=tuple(overrides),
        needs_admin=not refused and needs_admin(unchanged, overrides),
        checks=(*checks(chosen, fleet, problems=len(problems), host=host), *_machine_checks(chosen, location)),
        toml=as_toml(location, () if refused else overrides),
        text=text,
        usd_per_hour=chosen.nodes.count * chosen.nodes.price_per_hour,
        has_fleet=has_fleet,
        pools=fleet.pools,
        usd_per_hour_max=fleet.usd_per_hour_max,
        usd_per_day_max=fleet.usd_per_day_max,
    )


def _load_valid(location: str, unchanged: Recipe, overrides: Sequence[str]) -> tuple[Recipe, list[FormProblem]]:
    """Returns the recipe with the overrides that are valid, and the problems of the others.

    A check ends at its first problems, so it is repeated without the overrides that these are about.
    """
    chosen, problems, remaining = unchanged, dict[FormProblem, None](), list(overrides)
    while True:
        try:
            chosen = load_recipe(location, remaining, check=Check.NONE)
            is_heavy = _changes_heavy_plugin(unchanged, chosen)
            load_recipe(location, remaining, check=Check.ALL if is_heavy else Check.LIGHT)
        except InvalidInput as problem:
            lines = [_problem(line) for line in str(problem).splitlines()]
            problems |= dict.fromkeys(lines)
            valid = [override for override in remaining if not any(_is_about(line, override) for line in lines)]
            if len(valid) < len(remaining):
                remaining = valid
                continue
        return chosen, list(problems)


def _is_about(problem: FormProblem, override: str) -> bool:
    """Returns whether a problem is about the setting of an override, or about a setting inside or around it."""
    key = problem.key.removesuffix(".kind")  # without its kind, a plugin's other options mean nothing
    changed = override.partition("=")[0].strip()
    return bool(key) and (f"{changed}.".startswith(f"{key}.") or f"{key}.".startswith(f"{changed}."))


def _with_line(problem: FormProblem, lines: Mapping[str, int]) -> FormProblem:
    """Returns a problem with its line in the text, if it has one."""
    return problem if problem.line else replace(problem, line=line_of(problem.key, lines))


def _changes_heavy_plugin(unchanged: Recipe, chosen: Recipe) -> bool:
    """Returns whether `chosen` has a plugin that takes seconds to import, with options that `plain` does not have."""
    before = {path: spec for path, _, spec in plugin_specs(unchanged)}
    return any(
        registry.has_heavy_module(str(spec.get("kind"))) and before.get(path) != spec
        for path, registry, spec in plugin_specs(chosen)
    )


def preflight_recipe(
    location: str, overrides: Sequence[str] = (), *, folders: Sequence[Path] = (), limits: Limits | None = None
) -> RecipePreflight:
    """Returns pools with prices and the preflight checks of the recipe's providers; takes seconds.

    Raises: InvalidInput for invalid fleet settings, NotPermitted beyond `limits`, DeadlineExceeded.
    """
    _check_location(location, folders)
    if refused := _refused(load_recipe(location, check=Check.NONE), overrides, limits):
        message = "; ".join(f"cannot override {refusal.key}: {refusal.message}" for refusal in refused)
        raise NotPermitted(message, code="recipe.override_refused")
    fleet = fleet_form(load_recipe(location, overrides, check=Check.NONE), partial(inspect_once, calls_providers=True))
    if fleet.problems:
        raise InvalidInput("\n".join(fleet.problems), code="recipe.invalid_fleet")
    return RecipePreflight(pools=fleet.pools, checks=fleet.checks)


def _machine_checks(recipe: Recipe, location: str) -> Iterator[FormCheck]:
    """Yields a check for each reason why this machine cannot run the recipe as it is."""
    for obstacle in dict.fromkeys(obstacles(recipe, location, recent_machine())):
        yield FormCheck(name="Machine", is_ok=False, message=f"{obstacle.cause}; {obstacle.remedy}")


def _refused(unchanged: Recipe, overrides: Sequence[str], limits: Limits | None) -> tuple[FormProblem, ...]:
    refused = refusals(unchanged, overrides, limits) if limits is not None and overrides else []
    return tuple(FormProblem(key=refusal.key, message=refusal.message) for refusal in refused)


def _check_location(location: str, folders: Sequence[Path]) -> None:
    """Checks that a declared recipe uses only files in the folders. Raises: InvalidInput."""
    if any(Path(location).is_relative_to(folder.resolve()) for folder in folders):
        check_declared_recipe(Path(location), folders)


def as_toml(location: str, overrides: Sequence[str]) -> str:
    """Returns a recipe file with these overrides.

    >>> print(as_toml("reverse", ["stop.steps=50", "flows.train.reward={kind = 'exact_match'}", "summary=a look"]))
    extends = "reverse"
    stop.steps = 50
    flows.train.reward = {kind = 'exact_match'}
    summary = "a look"
    """
    lines = [f'extends = "{location}"']
    for override in overrides:
        key, _, text = override.partition("=")
        lines.append(f"{key.strip()} = {_toml_value(text.strip())}")
    return "\n".join(lines)


def _toml_value(text: str) -> str:
    try:
        tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text


def _problem(line: str) -> FormProblem:
    """Splits a line of an error into the key of the setting and the message."""
    match = re.search(r"(?:^|: )(?P<key>[a-z_]+(?:\.[\w-]+)*): (?P<message>.+)$", line)
    return FormProblem(key=match["key"], message=match["message"]) if match else FormProblem(key="", message=line)


def _fields(recipe: Recipe, fleet: FleetForm) -> Iterator[FormField]:
    values = json.loads(snapshot(recipe))
    if fleet.values is not None:
        values["fleet"] = fleet.values
    classes = SettingClasses(recipe, values, imports_heavy=False)
    specs = list(plugin_specs(recipe))
    kinds = {(*path, "kind"): registry.kinds() for path, registry, _ in specs}
    schemas = {path: plugin_schema(registry, spec) for path, registry, spec in specs}
    for path, _, spec in specs:
        table = _table_at(values, path)
        if table is not None:
            _add_defaults(table, schemas[path], spec)
    schemas = {(): recipe_schema(), ("fleet",): fleet.schema, **schemas}
    for path, value in _leaves(values):
        above = next(path[:depth] for depth in range(len(path) - 1, -1, -1) if path[:depth] in schemas)
        schema = schema_at(schemas[above] or {}, path[len(above) :])
        field = form_field(path, value, schema, settable_by=classes.class_of(path), kinds=kinds.get(path, ()))
        if field is not None:
            yield field
    yield from (list_field(*plugin_list) for plugin_list in plugin_lists(recipe))


def _table_at(values: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any] | None:
    """Returns the table at a path; None inside a list, whose entries have no fields of their own."""
    table: Any = values
    for part in path:
        table = table.get(part) if isinstance(table, dict) else None
    return table if isinstance(table, dict) else None


def _add_defaults(table: dict[str, Any], schema: Values | None, spec: Mapping[str, Any]) -> None:
    """Adds the missing options of a plugin to its table: their defaults, None without one."""
    for name, option in (schema or {}).get("properties", {}).items():
        if name not in spec:
            default = option.get("default")
            table[name] = default if isinstance(default, bool | int | float | str) else None


def _leaves(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from _leaves(value, (*path, str(key)))
    elif not isinstance(values, list) and path not in (("name",), ("summary",)):
        yield path, values
