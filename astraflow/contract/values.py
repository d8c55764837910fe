"""Values of any JSON type. They travel as data, never as code."""

from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""A JSON value: plugin options, fields of dataset items."""
