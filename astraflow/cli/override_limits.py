"""Limits on the settings that the web page and the REST API may override. Everything that is not allowed is refused.

The page passes the role of the user and its data places; `refusals` is called before a recipe with overrides is
composed for anything but comparison, so that no provider, file or environment variable is touched for a refused one.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.dataflow.config import DataflowConfig
from astraflow.recipe import Recipe, plugin_lists, plugin_specs, snapshot
from astraflow.runtime.data_places import refusal
from astraflow.runtime.overrides import SetBy, declared_class, set_by
from astraflow.runtime.plugins import Registry
from astraflow.runtime.toml import assignment, merged
from astraflow.trainer.config import TrainerConfig

Path = tuple[str, ...]
"""Keys that lead to a setting; in a list, the index."""

FLEET: tuple[tuple[Path, SetBy], ...] = (
    (("pools", "*", "nodes"), SetBy.OPERATOR),
    (("pools", "*", "capacity"), SetBy.OPERATOR),
    (("pools", "*", "drain_s"), SetBy.OPERATOR),
    (("pools", "*", "provider"), SetBy.RECIPE),
    (("pools", "*", "engine"), SetBy.RECIPE),
    (("pools", "*", "options"), SetBy.RECIPE),
    (("pools", "*"), SetBy.ADMIN),
    (("budget",), SetBy.ADMIN),
    (("envelope",), SetBy.ADMIN),
    (("times",), SetBy.ADMIN),
    (("retire_on_stop",), SetBy.ADMIN),
    ((), SetBy.RECIPE),
)
"""Classes of the table `fleet`, whose types are the fleet service's. The first pattern that begins a path counts."""

_ROLES: Mapping[str, Any] = {"dataflow": DataflowConfig, "trainer": TrainerConfig}
"""Types of the tables that a recipe hands on to a role. The maintainer's has none here: only the recipe sets it."""

_ABSENT = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Role and data places that limit the overrides of a user."""

    role: str
    """`agent`, `operator` or `admin`."""
    places: tuple[str, ...] = ()
    """Data places that the page was started with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A setting that may not be overridden so."""

    key: str
    message: str


def refusals(plain: Recipe, overrides: Sequence[str], limits: Limits) -> list[Refusal]:
    """Returns the settings that these overrides change and may not. plain: the recipe without them.

    Compares values, so it does not matter how an override is written: key by key, as a table, or inside a list.
    """
    before: Mapping[str, Any] = json.loads(snapshot(plain))
    after = before
    for override in overrides:
        after = merged(after, assignment(override))
    classes = Classes(plain, after, imports_heavy=True)
    found = ((path, _why_not(classes.of(path), value, limits)) for path, value in _changes(before, after))
    return [Refusal(key=".".join(path), message=message) for path, message in found if message]


class Classes:
    """Trust classes of the settings of a recipe, with the kinds of plugins that its values name."""

    def __init__(self, recipe: Recipe, values: Mapping[str, Any], *, imports_heavy: bool) -> None:
        """values: of the whole recipe, with overrides. imports_heavy: whether plugins that take seconds are asked."""
        self._plugins = {_pattern(path): registry for path, registry, _ in plugin_specs(recipe)}
        self._lists = {_pattern(path): registry for path, registry, _ in plugin_lists(recipe)}
        self._values = values
        self._imports_heavy = imports_heavy

    def of(self, path: Path) -> SetBy:
        """Returns the class of a setting."""
        table, *rest = path
        if table == "fleet":
            return next(found for pattern, found in FLEET if _begins(pattern, rest))
        if table in _ROLES:
            return set_by(_ROLES[table], rest)
        declared = declared_class(Recipe, path)
        if declared is not None:
            return declared
        if _pattern(path) in self._lists:
            return SetBy.AGENT
        for depth in range(len(path) - 1, 0, -1):
            if registry := self._registry(path[:depth]):
                return self._of_plugin(registry, path, depth)
        return set_by(Recipe, path)

    def _registry(self, path: Path) -> Registry[Any] | None:
        return self._plugins.get(_pattern(path)) or (self._lists.get(_pattern(path[:-1])) if len(path) > 1 else None)

    def _of_plugin(self, registry: Registry[Any], path: Path, depth: int) -> SetBy:
        if path[depth:] == ("kind",):
            return SetBy.AGENT
        kind = str(_at(self._values, (*path[:depth], "kind")))
        if registry.is_heavy(kind) and not self._imports_heavy:
            return SetBy.AGENT
        try:
            return set_by(registry.options(kind), path[depth:])
        except InvalidInput:
            return SetBy.RECIPE


def _why_not(class_: SetBy, value: Any, limits: Limits) -> str:
    """The cause of a refusal and what to do about it; empty where there is none."""
    if class_ is SetBy.PLACE and class_.allows(limits.role):
        return refusal(value, limits.places) if isinstance(value, str) else "the value is no text; write a path"
    if class_.allows(limits.role):
        return ""
    if class_ in (SetBy.ADMIN, SetBy.OPERATOR):
        return f"the role {limits.role} may not change it; ask an {class_.value}"
    return "only the recipe sets it; launch a recipe that has the value that you want"


def _changes(before: Any, after: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Settings whose values differ, with the values that they have now. What is gone is no setting any more."""
    if isinstance(after, Mapping):
        known = before if isinstance(before, Mapping) and before.get("kind") == after.get("kind") else {}
        if not after and not isinstance(before, Mapping):
            yield path, after
        for key, value in after.items():
            yield from _changes(known.get(key, _ABSENT), value, (*path, key))
    elif isinstance(after, list) and any(isinstance(one, Mapping) for one in after):
        known_ones = before if isinstance(before, list) else []
        for index, value in enumerate(after):
            if value not in known_ones:
                yield from _changes(_ABSENT, value, (*path, str(index)))
    elif before is _ABSENT or before != after:
        yield path, after


def _pattern(path: Sequence[str]) -> Path:
    """A path of which names of policies, flows and evaluations, and indices of lists, are left open."""
    has_name = path[0] in ("policies", "flows", "evaluations")
    return tuple(
        "*" if (place == 1 and has_name) or (place > 1 and part.isdecimal()) else part
        for place, part in enumerate(path)
    )


def _begins(pattern: Path, path: Sequence[str]) -> bool:
    return len(pattern) <= len(path) and all(wanted in ("*", part) for wanted, part in zip(pattern, path, strict=False))


def _at(values: Any, path: Path) -> Any:
    for part in path:
        if isinstance(values, list) and part.isdecimal() and int(part) < len(values):
            values = values[int(part)]
        elif isinstance(values, Mapping):
            values = values.get(part)
        else:
            return None
    return values
