"""What is known of a setting of a recipe: its kind, bounds and choices, from the class that it is a field of."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from astraflow.contract.errors import InvalidInput
from astraflow.recipe import Recipe

FieldKind = Literal["whole", "number", "text", "yes_no", "plugins"]

KINDS: tuple[tuple[type, FieldKind], ...] = (
    (bool, "yes_no"),
    (float, "number"),
    (int, "whole"),
    (str, "text"),
    (Path, "text"),
)
"""What a value of a type is in a form; the first that fits."""


def kind_of(value: Any, info: FieldInfo | None) -> FieldKind | None:
    """What it is in a form; None for what a form has no field for."""
    annotations = (info.annotation, *get_args(info.annotation)) if info else ()
    for type_, kind in KINDS:
        if type_ in annotations:
            return kind
    return next((kind for type_, kind in KINDS if isinstance(value, type_)), None)


def options_type(registry: Any, spec: Mapping[str, Any]) -> type[BaseModel] | None:
    """What a plug-in can be told; None for one that cannot be imported here, or takes long to."""
    kind = str(spec.get("kind"))
    if registry.is_heavy(kind):
        return None
    try:
        known: type[BaseModel] = registry.options(kind)
    except InvalidInput:
        return None
    return known


def field_info(path: tuple[str, ...], options: Mapping[tuple[str, ...], type[BaseModel] | None]) -> FieldInfo | None:
    """What is known of a setting: from the plug-in it belongs to, else from the recipe."""
    for depth in range(len(path) - 1, 0, -1):
        if path[:depth] in options:
            return walk(options[path[:depth]], path[depth:])
    return walk(Recipe, path)


def walk(model: Any, path: Sequence[str]) -> FieldInfo | None:
    """The field of a model that a path leads to; None where it leads to none."""
    info: FieldInfo | None = None
    inside: Any = model
    for part in path:
        if isinstance(inside, type) and issubclass(inside, BaseModel):
            info = inside.model_fields.get(part)
            if info is None:
                return None
            inside = _bare(info.annotation)
        elif get_origin(inside) is dict:
            info, inside = None, _bare(get_args(inside)[-1])
        else:
            return None
    return info


def _bare(annotation: Any) -> Any:
    """Without an `| None`."""
    inner = [argument for argument in get_args(annotation) if argument is not type(None)]
    return inner[0] if type(None) in get_args(annotation) and len(inner) == 1 else annotation


def literals(info: FieldInfo | None) -> tuple[str, ...]:
    """The values of a closed choice; empty for any other."""
    bare = _bare(info.annotation) if info else None
    return tuple(str(choice) for choice in get_args(bare)) if get_origin(bare) is Literal else ()


def bounds(info: FieldInfo | None) -> tuple[float | None, float | None]:
    """The least and the most that it may be."""
    least = most = None
    for rule in info.metadata if info else ():
        least = getattr(rule, "ge", getattr(rule, "gt", least))
        most = getattr(rule, "le", getattr(rule, "lt", most))
    return least, most
