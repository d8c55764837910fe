"""Response models with the fields of a contract type, and the meanings of these fields in the API's document.

    @fields_of(NodeReport, without=("links",))
    class NodeResponse(ResponseModel):
        lag: dict[str, int] = Field(description="Versions behind the trainer, by policy.")

A route returns the contract object itself when the model has no fields of its own, else
`NodeResponse.values_of(node, lag=...)`. Fields whose types are contract types need no model. The meanings are read from
the sources when the document is made.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast, get_args, get_type_hints

from pydantic import BaseModel, create_model
from pydantic.fields import FieldInfo

from astraflow.runtime.config.field_meanings import field_meanings
from web.rest.common import ResponseModel

M = TypeVar("M", bound=ResponseModel)

_SOURCES: dict[type[ResponseModel], type] = {}
"""Types whose fields models have."""

_NUMBER = {"type": "number"}
_NUMBER_OR_NULL = {"anyOf": [_NUMBER, {"type": "null"}]}


def fields_of(source: type, *, without: Collection[str] = ()) -> Callable[[type[M]], type[M]]:
    """Puts the fields of a type before the model's own, which replace those of the same name. without: left out.

    source: a dataclass, a pydantic model or a table.
    """

    def decorate(model: type[M]) -> type[M]:
        hints = get_type_hints(source, include_extras=True)
        derived: dict[str, Any] = {name: (hints[name], FieldInfo()) for name in _names(source) if name not in without}
        own: dict[str, Any] = {name: (field.annotation, field) for name, field in model.model_fields.items()}
        fields = derived | own
        base: Any = model.__base__
        return _registered(
            create_model(model.__name__, __base__=base, __module__=model.__module__, __doc__=model.__doc__, **fields),
            source,
        )

    return decorate


def _registered(model: type[M], source: type) -> type[M]:
    _SOURCES[model] = source
    return model


def add_meanings(schemas: Mapping[str, dict[str, Any]]) -> None:
    """Adds the meanings of fields that come from other types. schemas: components of the document, by name.

    Lists and maps of numbers may contain null: a number of a report that is not finite.
    """
    models = list(_models(ResponseModel))
    annotations = [field.annotation for model in models for field in model.model_fields.values()]
    for kind in _dataclasses(annotations):
        _add(schemas.get(kind.__name__, {}), field_meanings(kind), {})
    for model in models:
        for source in (_SOURCES[base] for base in model.__mro__ if base in _SOURCES):
            _add(schemas.get(model.__name__, {}), field_meanings(source), model.model_fields)


def _add(schema: Mapping[str, Any], meanings: Mapping[str, str], own: Mapping[str, FieldInfo]) -> None:
    """Adds the meanings to the fields of a schema. own: fields whose descriptions are kept."""
    for name, field in schema.get("properties", {}).items():
        if name in meanings and (name not in own or own[name].description is None):
            field["description"] = re.sub(r"\bNone\b", "null", meanings[name])
        for items in ("items", "additionalProperties"):
            if field.get(items) == _NUMBER:
                field[items] = _NUMBER_OR_NULL
        field.pop("propertyNames", None)  # the type of the keys, which is in the meaning


def _models(base: type[ResponseModel]) -> Iterator[type[ResponseModel]]:
    for model in base.__subclasses__():
        yield model
        yield from _models(model)


def _names(source: type) -> list[str]:
    if issubclass(source, BaseModel):
        return list(source.model_fields)
    return [field.name for field in dataclasses.fields(cast("type[Any]", source))]


def _dataclasses(annotations: Iterable[Any]) -> Iterator[type]:
    """Yields the dataclasses in annotations and in those of their fields, at any depth."""
    pending, known = list(annotations), set[Any]()
    while pending:
        annotation = pending.pop()
        if annotation in known:
            continue
        known.add(annotation)
        pending += get_args(annotation)
        if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
            pending += get_type_hints(annotation).values()
            yield annotation
