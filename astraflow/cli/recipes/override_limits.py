"""Limits on the settings that the web page and the REST API may override. Settings that are not allowed are refused.

The page passes the role of the user and its data locations; `refusals` is called before a recipe with overrides is
composed for any use other than comparison, so that a refused override accesses no provider, file or variable.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.dataflow.config import DataflowConfig
from astraflow.recipe.config import Recipe
from astraflow.recipe.loading import snapshot
from astraflow.recipe.plugins import outer_plugin_specs, plugin_lists
from astraflow.runtime.config.setting_permissions import SettableBy, declared_class, settable_by
from astraflow.runtime.config.toml import merge_tables, parse_override
from astraflow.runtime.folders.data_locations import location_problem
from astraflow.runtime.plugins import Registry
from astraflow.trainer.config import TrainerConfig

Path = tuple[str, ...]
"""Keys that lead to a setting; for a list, the index."""

FLEET_CLASSES: tuple[tuple[Path, SettableBy], ...] = (
    (("pools", "*", "nodes"), SettableBy.OPERATOR),
    (("pools", "*", "capacity"), SettableBy.OPERATOR),
    (("pools", "*", "drain_s"), SettableBy.OPERATOR),
    (("pools", "*", "provider"), SettableBy.RECIPE),
    (("pools", "*", "engine"), SettableBy.RECIPE),
    (("pools", "*", "options"), SettableBy.RECIPE),
    (("pools", "*"), SettableBy.ADMIN),
    (("budget",), SettableBy.ADMIN),
    (("limits",), SettableBy.ADMIN),
    (("times",), SettableBy.ADMIN),
    (("retire_on_stop",), SettableBy.ADMIN),
    ((), SettableBy.RECIPE),
)
"""Trust classes of the table `fleet`, whose types belong to the fleet service. The first pattern that is a prefix of
a path applies."""

_ROLES: Mapping[str, Any] = {"dataflow": DataflowConfig, "trainer": TrainerConfig}
"""Types of the tables that a recipe passes to a role. The table of the maintainer is missing: only the recipe sets
it."""

_ABSENT = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Role and data places that limit the overrides of a user."""

    role: str
    """`agent`, `operator` or `admin`."""
    data_locations: tuple[str, ...] = ()
    """Data locations that the page was started with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Refused override of a setting."""

    key: str
    message: str


def refusals(plain: Recipe, overrides: Sequence[str], limits: Limits) -> list[Refusal]:
    """Returns the settings that these overrides change without permission. plain: the recipe without overrides.

    Compares values, so the form of an override does not matter: key by key, as a table, or inside a list.
    """
    messages = (
        (path, _refusal_message(class_, value, limits)) for path, class_, value in _changed_settings(plain, overrides)
    )
    return [Refusal(key=".".join(path), message=message) for path, message in messages if message]


def needs_admin(plain: Recipe, overrides: Sequence[str]) -> bool:
    """Returns whether the overrides change a setting that only an admin may override."""
    return any(class_ is SettableBy.ADMIN for _, class_, _ in _changed_settings(plain, overrides))


def _changed_settings(plain: Recipe, overrides: Sequence[str]) -> Iterator[tuple[Path, SettableBy, Any]]:
    """Yields the settings that the overrides change, with their classes and new values."""
    if not overrides:
        return
    before: Mapping[str, Any] = json.loads(snapshot(plain))
    after = before
    for override in overrides:
        after = merge_tables(after, parse_override(override))
    classes = SettingClasses(plain, after, imports_heavy=True)
    for path, value in _changes(before, after):
        yield path, classes.class_of(path), value


class SettingClasses:
    """Trust classes of the settings of a recipe, with the kinds of plugins that its values name."""

    def __init__(self, recipe: Recipe, values: Mapping[str, Any], *, imports_heavy: bool) -> None:
        """values: the whole recipe with overrides. imports_heavy: True to import plugins that take seconds to load."""
        self._plugins = {_pattern(path): registry for path, registry, _ in outer_plugin_specs(recipe)}
        self._lists = {_pattern(path): registry for path, registry, _ in plugin_lists(recipe)}
        self._values = values
        self._imports_heavy = imports_heavy

    def class_of(self, path: Path) -> SettableBy:
        table, *rest = path
        if table == "fleet":
            return next(class_ for pattern, class_ in FLEET_CLASSES if _is_prefix(pattern, rest))
        if table in _ROLES:
            return settable_by(_ROLES[table], rest)
        declared = declared_class(Recipe, path)
        if declared is not None:
            return declared
        if _pattern(path) in self._lists:
            return SettableBy.AGENT
        for depth in range(1, len(path)):
            if registry := self._registry(path[:depth]):
                return self._of_plugin(registry, path, depth)
        return settable_by(Recipe, path)

    def _registry(self, path: Path) -> Registry[Any] | None:
        return self._plugins.get(_pattern(path)) or (self._lists.get(_pattern(path[:-1])) if len(path) > 1 else None)

    def _of_plugin(self, registry: Registry[Any], path: Path, depth: int) -> SettableBy:
        """Returns the class of a setting of the plugin at `path[:depth]`. The class that an option declares applies to
        the plugins inside it, their kinds included."""
        if path[depth:] == ("kind",):
            return SettableBy.AGENT
        kind = str(_value_at(self._values, (*path[:depth], "kind")))
        if not self._imports_heavy and registry.has_heavy_module(kind):
            return SettableBy.AGENT
        try:
            options = registry.options(kind)
        except InvalidInput:
            return SettableBy.RECIPE
        inner = registry.inner_registry(kind, path[depth])
        inner_depth = depth + (2 if path[depth + 1 : depth + 2] and path[depth + 1].isdecimal() else 1)
        if inner is None or inner_depth >= len(path) or declared_class(options, path[depth : depth + 1]) is not None:
            return settable_by(options, path[depth:])
        return self._of_plugin(inner, path, inner_depth)


def _refusal_message(class_: SettableBy, value: Any, limits: Limits) -> str:
    """Returns cause and remedy of a refusal; empty for an allowed override."""
    if class_ is SettableBy.DATA_LOCATION and class_.allows(limits.role):
        return (
            location_problem(value, limits.data_locations)
            if isinstance(value, str)
            else "the value is not a text; write a path"
        )
    if class_.allows(limits.role):
        return ""
    if class_ in (SettableBy.ADMIN, SettableBy.OPERATOR):
        return f"the role {limits.role!r} may not change it; ask an {class_.value}"
    return "only the recipe sets it; launch a recipe with the value"


def _changes(before: Any, after: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yields the settings whose values differ, with their new values; removed ones of a plugin, which get their
    defaults, with None."""
    if isinstance(after, Mapping):
        before_items = before if isinstance(before, Mapping) and before.get("kind") == after.get("kind") else {}
        if not after and not isinstance(before, Mapping):
            yield path, after
        for key, value in after.items():
            yield from _changes(before_items.get(key, _ABSENT), value, (*path, key))
        for key in sorted(before_items.keys() - after.keys()):
            yield (*path, key), None
    elif isinstance(after, list) and any(isinstance(item, Mapping) for item in after):
        before_list = before if isinstance(before, list) else []
        for index, value in enumerate(after):
            if value not in before_list:
                yield from _changes(_item_of_kind(before_list, value), value, (*path, str(index)))
    elif before is _ABSENT or before != after:
        yield path, after


def _item_of_kind(items: Sequence[Any], wanted: Any) -> Any:
    """Returns the first plugin of the list that has the kind of another one; `_ABSENT` without any."""
    kind = wanted.get("kind") if isinstance(wanted, Mapping) else None
    return next((item for item in items if isinstance(item, Mapping) and item.get("kind") == kind), _ABSENT)


def _pattern(path: Sequence[str]) -> Path:
    """Returns the path with `*` for names of policies, flows and evaluations and for indices of lists."""
    has_name = path[0] in ("policies", "flows", "evaluations")
    return tuple(
        "*" if (index == 1 and has_name) or (index > 1 and part.isdecimal()) else part
        for index, part in enumerate(path)
    )


def _is_prefix(pattern: Path, path: Sequence[str]) -> bool:
    return len(pattern) <= len(path) and all(wanted in ("*", part) for wanted, part in zip(pattern, path, strict=False))


def _value_at(values: Any, path: Path) -> Any:
    for part in path:
        if isinstance(values, list) and part.isdecimal() and int(part) < len(values):
            values = values[int(part)]
        elif isinstance(values, Mapping):
            values = values.get(part)
        else:
            return None
    return values
