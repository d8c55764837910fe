"""Values that may be anything: they travel as data, never as code."""

from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""A JSON value: options of plug-ins, fields of data sets."""
