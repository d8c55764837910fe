"""Checks of an Arrow schema's columns before rows are read from it."""

from collections.abc import Iterator, Sequence
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.datasets.tables.base import RequiredFields, joined_names, type_names
from astraflow.datasets.tables.optional_imports import import_optional


def chosen_columns(schema: Any, required_fields: RequiredFields, fields: Sequence[str], where: str) -> list[str]:
    """Returns the columns to read: `fields` (empty: all columns) and the required columns.

    Raises: InvalidInput when a column is missing, has a type other than the required one, or has values without a JSON
    form.
    """
    for field in (*required_fields, *fields):
        if field not in schema.names:
            raise InvalidInput(
                f"cannot read {where}: it has no column {field!r}; choose from {joined_names(schema.names)}",
                code="dataset.wrong_field",
            )
    for field, kinds in required_fields.items():
        kind = schema.field(field).type
        if _python_type(kind) not in kinds:
            raise InvalidInput(
                f"cannot read {where}: column {field!r} is {kind}, expected {type_names(kinds)}; choose another column",
                code="dataset.wrong_field",
            )
    columns = [name for name in schema.names if not fields or name in fields or name in required_fields]
    for name in columns:
        if _has_bytes(schema.field(name).type):
            others = joined_names(set(columns) - {name})
            raise InvalidInput(
                f"cannot read {where}: column {name!r} contains bytes, which have no JSON form; choose other columns "
                f"with `fields`: {others}",
                code="dataset.wrong_field",
            )
    return columns


def _python_type(kind: Any) -> type | None:
    """Returns the Python type of an Arrow type's values; None for types that no field may require."""
    types = import_optional("pyarrow").types
    if types.is_dictionary(kind):
        return _python_type(kind.value_type)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return str
    if types.is_integer(kind):
        return int
    if types.is_floating(kind):
        return float
    if types.is_struct(kind):
        return dict
    return list if types.is_list(kind) or types.is_large_list(kind) else None


def _has_bytes(kind: Any) -> bool:
    types = import_optional("pyarrow").types
    is_bytes = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
    return any(test(kind) for test in is_bytes) or any(_has_bytes(inner) for inner in _inner_types(kind))


def _inner_types(kind: Any) -> Iterator[Any]:
    types = import_optional("pyarrow").types
    if types.is_dictionary(kind):
        yield kind.value_type
    elif types.is_nested(kind):
        for index in range(kind.num_fields):
            yield kind.field(index).type
