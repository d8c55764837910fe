"""Page of the options of a recipe, from the configuration classes of all roles."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, get_args

from pydantic.fields import FieldInfo

from astraflow.algorithms.config import AlgorithmConfig
from astraflow.dataflow.config import DataflowConfig
from astraflow.recipe.config import Recipe, dataflow_values, trainer_values
from astraflow.recipe.loading import Check, load_recipe
from astraflow.runtime.config.base import Config
from astraflow.trainer.config import TrainerConfig
from docs.generate.page import Page, anchor, default_of, first_sentence, plugin_type, table, type_of
from maintainer.agent.config import MaintainerConfig
from maintainer.fleet.config import FleetConfig

_PLUGINS = {
    "model": "model",
    "backend": "backend",
    "sampler": "sampler",
    "dataset": "dataset",
    "workflow": "workflow",
    "reward": "reward",
    "selector": "selector",
    "filters": "filter",
    "engine": "engine",
    "engines": "engine",
    "preemption": "notice",
    "storage": "storage",
    "providers": "provider",
}
"""Option whose value is a plugin -> heading on the page of plugins."""


def _body() -> Iterator[str]:
    recipe = load_recipe("smoke", check=Check.NONE)
    policy = next(iter(recipe.policies))
    sections = [
        *_sections(Recipe, "", without=("trainer", "dataflow", "fleet", "maintainer")),
        *_sections(TrainerConfig, "trainer", without=trainer_values(recipe, policy).keys()),
        *_sections(DataflowConfig, "dataflow", without=dataflow_values(recipe).keys()),
        *_sections(FleetConfig, "fleet"),
        *_sections(MaintainerConfig, "maintainer"),
    ]
    yield from table(
        ("table", "content"),
        (
            (f"[{name if ' ' in name else f'`{name}`'}](#{anchor(name)})", first_sentence(options.__doc__ or ""))
            for name, options, _ in sections
        ),
    )
    for name, options, without in sections:
        yield from (f"\n## {name if ' ' in name else f'`{name}`'}\n", " ".join((options.__doc__ or "").split()), "")
        fields = {key: field for key, field in options.model_fields.items() if key not in without}
        rows = (
            (f"`{key}`", _type(key, field, name), default_of(field), field.description or "")
            for key, field in fields.items()
        )
        yield from table(("option", "type", "default", "meaning"), rows)


Section = tuple[str, type[Config], Collection[str]]
"""Table header, its options, and those that belong to another table."""


def _sections(options: type[Config], path: str, *, without: Collection[str] = ()) -> Iterator[Section]:
    """Yields the table at `path` and the tables below it."""
    yield (f"[{path}]" if path else "The file itself"), options, without
    for key, field in options.model_fields.items():
        inner = _inner_options(field.annotation)
        if inner is not None and inner is not AlgorithmConfig and key not in without:
            yield from _sections(inner, f"{path}.{key}".lstrip(".") + (".NAME" if _is_map(field) else ""))


def _inner_options(annotation: Any) -> type[Config] | None:
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return annotation
    return next(filter(None, map(_inner_options, get_args(annotation))), None)


def _is_map(field: FieldInfo) -> bool:
    return field.annotation is not None and issubclass(getattr(field.annotation, "__origin__", object), Mapping)


def _type(key: str, field: FieldInfo, section: str) -> str:
    inner = _inner_options(field.annotation)
    if inner is AlgorithmConfig:
        return "[table](algorithms.md)"
    if inner is not None:
        path = f"{section.strip('[]')}.{key}" if section.startswith("[") else key
        name = f"[{path}{'.NAME' if _is_map(field) else ''}]"
        return f"[{'tables' if _is_map(field) else 'table'}](#{anchor(name)})"
    if key == "model" and section == "[maintainer]":
        return plugin_type("maintainer model")
    if key == "reward" and section.endswith("group_reward]"):
        return plugin_type("group_reward")
    if key in _PLUGINS and "dict" in str(field.annotation):
        words = plugin_type(_PLUGINS[key], many="tuple" in str(field.annotation))
        return f"{words} by name" if key in ("engines", "providers") else words
    return type_of(field)


PAGE = Page(name="recipe", body=_body, is_committed=True)
