"""Settings of a recipe in the launch form: label, kind, bounds and choices, from the JSON schemas of the options."""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.contract.launching import FieldKind, FormField
from astraflow.recipe.config import Recipe
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.config.toml import Values, toml_text
from astraflow.runtime.plugins import Registry

SHORT_FORM = {
    "seed": "Seed",
    "stop.reward": "Target reward",
    "stop.window_steps": "Reward window (steps)",
    "stop.steps": "Maximum steps",
    "stop.*": "",
    "nodes.count": "Nodes",
    "nodes.capacity": "Node capacity",
    "nodes.engine.kind": "Engine",
    "policies.*.model.kind": "Model",
    "policies.*.model.path": "Model path",
    "policies.*.batch_groups": "Batch size (groups)",
    "policies.*.batch_tokens": "Batch size (distinct tokens)",
    "policies.*.max_staleness": "Staleness bound (versions)",
    "policies.*.backend.learning_rate": "Learning rate",
    "flows.*.dataset.kind": "Dataset",
    "flows.*.workflow.kind": "Workflow",
    "flows.*.reward.kind": "Reward",
    "flows.*.filters": "Filters",
    "policies.*.algorithm.advantages": "Advantages",
    "flows.*.group_size": "Group size (episodes)",
    "flows.*.workflow.max_new_tokens": "Maximum answer length (tokens)",
    "flows.*.workflow.temperature": "Temperature",
    "dataflow.pools.*": "",
    "fleet.pools.*.mode": "Pool mode",
    "fleet.pools.*.nodes": "Initial nodes",
    "fleet.pools.*.min_nodes": "Minimum nodes",
    "fleet.pools.*.max_nodes": "Maximum nodes",
    "fleet.pools.*.usd_per_hour_max": "Pool budget ($/hour)",
    "fleet.pools.*.usd_per_day_max": "Pool budget ($/day)",
    "fleet.budget.usd_per_hour_max": "Total budget ($/hour)",
    "fleet.budget.usd_per_day_max": "Total budget ($/day)",
}
"""Settings of the short form with their labels. An empty label is derived from the key. Other settings are collapsed.
The first matching pattern applies."""

UNITS = {"s": "s", "bytes": "bytes", "tokens": "tokens", "per_hour": "$/hour", "versions": "versions"}
"""Suffixes of keys that name a unit, with the unit."""

_OWNER = re.compile(r"^(?:policies|flows|evaluations|dataflow\.pools|fleet\.pools|fleet\.providers|mirrors)\.([^.]+)\.")


_KINDS: Mapping[str, FieldKind] = {"boolean": "boolean", "number": "number", "integer": "integer", "string": "text"}
"""Kinds of form fields by type in the schema; the first match applies."""

_VALUE_KINDS: tuple[tuple[type, FieldKind], ...] = (
    (bool, "boolean"),
    (float, "number"),
    (int, "integer"),
    (str, "text"),
)
"""Kinds by value, for settings whose schema has none of those types."""


def form_field(
    path: tuple[str, ...], value: Any, schema: Values, *, settable_by: SettableBy, kinds: Sequence[str] = ()
) -> FormField | None:
    """Returns the field of a setting; None if the form has none for it.

    schema: JSON schema of the setting; empty if unknown. kinds: of plugins, for a setting that selects one.
    """
    parts = schema.get("anyOf", [schema])
    types = {part.get("type") for part in parts}
    choices = tuple(kinds) or tuple(str(choice) for part in parts for choice in part.get("enum", ()))
    kind = next((kind for type_, kind in _KINDS.items() if type_ in types), None)
    kind = kind or next((kind for type_, kind in _VALUE_KINDS if isinstance(value, type_)), None)
    if kind is None and not choices:
        return None
    return _field(
        ".".join(path),
        kind or "text",
        value,
        schema,
        choices=choices,
        minimum=_bound(parts, "minimum", "exclusiveMinimum"),
        maximum=_bound(parts, "maximum", "exclusiveMaximum"),
        is_optional=value is None or "null" in types,
        settable_by=settable_by.value,
    )


def list_field(path: tuple[str, ...], registry: Registry[Any], specs: Sequence[Mapping[str, Any]]) -> FormField:
    """Returns the field of a list of plugins, with their kinds in order."""
    return _field(
        ".".join(path),
        "plugins",
        ", ".join(str(spec.get("kind")) for spec in specs),
        schema_at(recipe_schema(), path),
        choices=tuple(registry.kinds()),
        is_optional=True,
        settable_by=SettableBy.AGENT.value,
        entries=tuple(toml_text(dict(spec)) for spec in specs),
    )


def _field(
    key: str,
    kind: FieldKind,
    value: bool | int | float | str | None,
    schema: Values,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    **facts: Any,
) -> FormField:
    return FormField(
        key=key,
        title=title_of(key),
        owner=owner_of(key),
        kind=kind,
        value=value,
        description=" ".join(schema.get("description", "").split()),
        minimum=minimum,
        maximum=maximum,
        is_basic=any(fnmatchcase(key, pattern) for pattern in SHORT_FORM),
        **facts,
    )


def _bound(parts: Sequence[Values], *names: str) -> float | None:
    return next((part[name] for part in parts for name in names if name in part), None)


@cache
def recipe_schema() -> Values:
    """Returns the JSON schema of recipes, without the options of their plugins."""
    return Recipe.model_json_schema()


def plugin_schema(registry: Registry[Any], spec: Mapping[str, Any]) -> Values | None:
    """Returns the JSON schema of a plugin's options; None if it cannot be imported here or takes long to import."""
    kind = str(spec.get("kind"))
    if registry.has_heavy_module(kind):
        return None
    try:
        return registry.options(kind).model_json_schema()
    except InvalidInput:
        return None


def schema_at(root: Values, path: Sequence[str]) -> Values:
    """Returns the part of a JSON schema at a path, with the description that stands there; empty if unknown."""
    schema = root
    for key in path:
        inside = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
        if not isinstance(inside, dict):
            return {}
        schema = _resolved(root, inside) | {"description": inside.get("description", "")}
    return schema


def _resolved(root: Values, schema: Values) -> Values:
    """Returns a schema with the types that it names, also one that may be null."""
    if reference := schema.get("$ref"):
        resolved: Values = root["$defs"][reference.rpartition("/")[2]]
        return resolved
    (first, *others) = schema.get("anyOf", [schema])
    is_table = "$ref" in first and others == [{"type": "null"}]
    resolved = _resolved(root, first) if is_table else schema
    return resolved if not is_table or "properties" in resolved else {"anyOf": [resolved, *others]}


def title_of(key: str) -> str:
    """Returns the label of a setting.

    >>> title_of("stop.steps"), title_of("policies.solver.backend.step_s"), title_of("nodes.engine.text_share")
    ('Maximum steps', 'Step (s)', 'Text share')
    >>> title_of("evaluations.progress.dataset.kind")
    'Dataset kind'
    """
    return next((title for pattern, title in SHORT_FORM.items() if fnmatchcase(key, pattern)), "") or _title_from_key(
        key
    )


def owner_of(key: str) -> str:
    """Returns the policy, flow, evaluation or pool of a setting; empty for a setting of the whole run.

    >>> owner_of("flows.train.group_size"), owner_of("seed")
    ('train', '')
    """
    match = _OWNER.match(key)
    return match[1] if match else ""


def _title_from_key(key: str) -> str:
    *parents, last = key.split(".")
    if last == "kind" and parents:
        return f"{_words(parents[-1] if not parents[-1].isdecimal() else parents[-2]).capitalize()} kind"
    for ending, unit in UNITS.items():
        if last.endswith(f"_{ending}"):
            return f"{_words(last.removesuffix(f'_{ending}')).capitalize()} ({unit})"
    return _words(last).capitalize()


def _words(name: str) -> str:
    return name.replace("_", " ")
