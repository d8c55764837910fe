"""Kind, bounds and choices of a recipe's setting, from the class of its field."""

from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from astraflow.contract.errors import InvalidInput
from astraflow.contract.launching import FieldKind
from astraflow.recipe.config import Recipe

KINDS: tuple[tuple[type, FieldKind], ...] = (
    (bool, "boolean"),
    (float, "number"),
    (int, "integer"),
    (str, "text"),
    (Path, "text"),
)
"""Kinds of form fields by value type; the first match applies."""


def kind_of(value: Any, info: FieldInfo | None) -> FieldKind | None:
    """Returns the kind of the form field of a setting; None if the form has no field for it."""
    annotations = (info.annotation, *get_args(info.annotation)) if info else ()
    for type_, kind in KINDS:
        if type_ in annotations:
            return kind
    return next((kind for type_, kind in KINDS if isinstance(value, type_)), None)


def options_type(registry: Any, spec: Mapping[str, Any]) -> type[BaseModel] | None:
    """Returns the options class of a plugin; None if it cannot be imported here or takes long to import."""
    kind = str(spec.get("kind"))
    if registry.is_heavy(kind):
        return None
    try:
        options_class: type[BaseModel] = registry.options(kind)
    except InvalidInput:
        return None
    return options_class


def field_info(path: tuple[str, ...], options: Mapping[tuple[str, ...], type[BaseModel] | None]) -> FieldInfo | None:
    """Returns the field of a setting, from its plugin or from the recipe; None for an unknown setting."""
    for depth in range(len(path) - 1, 0, -1):
        if path[:depth] in options:
            return walk(options[path[:depth]], path[depth:])
    return walk(Recipe, path)


def walk(model: Any, path: Sequence[str]) -> FieldInfo | None:
    """Returns the field of a model at a path; None for an unknown path."""
    info: FieldInfo | None = None
    current_type: Any = model
    for part in path:
        if isinstance(current_type, type) and issubclass(current_type, BaseModel):
            info = current_type.model_fields.get(part)
            if info is None:
                return None
            current_type = _without_none(info.annotation)
        elif get_origin(current_type) is dict:
            info, current_type = None, _without_none(get_args(current_type)[-1])
        else:
            return None
    return info


def _without_none(annotation: Any) -> Any:
    """Returns the annotation without `| None`."""
    inner = [argument for argument in get_args(annotation) if argument is not type(None)]
    return inner[0] if type(None) in get_args(annotation) and len(inner) == 1 else annotation


def literals(info: FieldInfo | None) -> tuple[str, ...]:
    """Returns the values of a Literal type or an enumeration; empty for other types."""
    inner_type = _without_none(info.annotation) if info else None
    if isinstance(inner_type, type) and issubclass(inner_type, Enum):
        return tuple(str(choice.value) for choice in inner_type)
    return tuple(str(choice) for choice in get_args(inner_type)) if get_origin(inner_type) is Literal else ()


def bounds(info: FieldInfo | None) -> tuple[float | None, float | None]:
    """Returns the minimum and maximum of a setting; None without a bound."""
    minimum = maximum = None
    for rule in info.metadata if info else ():
        minimum = getattr(rule, "ge", getattr(rule, "gt", minimum))
        maximum = getattr(rule, "le", getattr(rule, "lt", maximum))
    return minimum, maximum
