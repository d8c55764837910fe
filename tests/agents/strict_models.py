"""Strict validation with the models of the SDKs, which themselves accept anything."""

from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, TypeAdapter

M = TypeVar("M")


def strictly(model: type[M], data: object, *, extra: tuple[str, ...] = ()) -> M:
    """Returns the validated data. extra: names of fields that the model does not have. Raises: ValidationError,
    AssertionError for further ones."""
    value = TypeAdapter(model).validate_json(orjson.dumps(data), strict=True)
    unknown = set(_unknown(value)) - set(extra)
    assert not unknown, f"{model} has no fields {unknown}"
    return value


def _unknown(value: Any) -> list[str]:
    if isinstance(value, BaseModel):
        own = list(value.model_extra or {})
        return own + [name for field in type(value).model_fields for name in _unknown(getattr(value, field))]
    if isinstance(value, list):
        return [name for item in value for name in _unknown(item)]
    return []
