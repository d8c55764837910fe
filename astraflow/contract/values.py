"""Values of any JSON type. They travel as data, never as code."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
    """A JSON value: plugin options, fields of dataset items."""
else:
    Json = Any  # libraries that read annotations at run time cannot resolve an alias that refers to itself

Value = int | float | str
Values = Mapping[str, Value]
"""Figures and texts by name."""
