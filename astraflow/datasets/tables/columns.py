"""Checks of an Arrow schema's columns, and of the values in them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from astraflow.contract.errors import InvalidInput
from astraflow.contract.values import Json
from astraflow.datasets.tables.base import RequiredFields, as_json, import_optional, joined_names, type_names
from astraflow.datasets.tables.text_files import LARGEST_EXACT


def chosen_columns(schema: Any, required_fields: RequiredFields, fields: Sequence[str], where: str) -> list[str]:
    """Returns the columns to read: `fields` (empty: all columns) and the required columns.

    Raises: InvalidInput when a column is missing, has a type other than the required one, or has values without a JSON
    form.
    """
    columns = [name for name in schema.names if not fields or name in fields or name in required_fields]
    repeated = sorted({name for name in columns if columns.count(name) > 1})
    if repeated:
        raise InvalidInput(
            f"cannot read {where}: it has several columns {repeated[0]!r}; rename all but one, or choose other columns "
            "with `fields`",
            code="dataset.repeated_column",
        )
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
    for name in columns:
        if unusable := _without_json_form(schema.field(name).type):
            others = joined_names(set(columns) - {name})
            raise InvalidInput(
                f"cannot read {where}: column {name!r} contains {unusable}, which have no JSON form; choose other "
                f"columns with `fields`: {others}",
                code="dataset.wrong_field",
            )
    return columns


def _python_type(kind: Any) -> type | None:
    """Returns the Python type of an Arrow type's values; None for types that no field may require."""
    types = import_optional("pyarrow").types
    if types.is_dictionary(kind):
        return _python_type(kind.value_type)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind) or types.is_decimal(kind):
        return str
    if types.is_integer(kind):
        return int
    if types.is_floating(kind):
        return float
    if types.is_struct(kind):
        return dict
    return list if types.is_list(kind) or types.is_large_list(kind) else None


def _without_json_form(kind: Any) -> str:
    """Returns the values of a type that have no JSON form, as a noun; empty if all have one."""
    types = import_optional("pyarrow").types
    if any(test(kind) for test in (types.is_binary, types.is_large_binary, types.is_binary_view)):
        return "bytes"
    if types.is_fixed_size_binary(kind):
        return "bytes"
    if types.is_duration(kind) or types.is_interval(kind):
        return "durations"
    if types.is_union(kind):
        return "unions of types"
    names = [kind.field(index).name for index in range(kind.num_fields)] if types.is_struct(kind) else []
    if len(names) != len(set(names)):
        return "objects with a field twice"
    return next(filter(None, map(_without_json_form, _inner_types(kind))), "")


def check_values(rows: Any, required_fields: RequiredFields, where: Callable[[int], str]) -> None:
    """Checks that rows have usable values: those of required fields exist and are finite, and all can be converted.

    rows: `pyarrow.Table`. where: location of a row of it. Raises: InvalidInput with the first unusable row.
    """
    arrow, compute = import_optional("pyarrow"), import_optional("pyarrow.compute")
    for field in required_fields:
        column = rows.column(field)
        is_floating = arrow.types.is_floating(column.type)
        usable = compute.is_finite(column) if is_floating else compute.is_valid(column)
        index = compute.index(compute.fill_null(usable, False), False).as_py()
        if index >= 0:
            raise InvalidInput(
                f"cannot use {where(index)}: column {field!r} has no value, or no finite one; remove such rows, "
                "or choose another column",
                code="dataset.missing_values",
            )
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if not _is_convertible(column):
            index = next(index for index in range(len(column)) if not _is_convertible(column.slice(index, 1)))
            raise unusable_value(
                f"{where(index)}: column {name!r}",
                "a text is not UTF-8, a date is out of range, or its time zone is unknown",
            )


def is_rounded(column: Any) -> bool:
    """Returns whether a column has fractions so large that a whole number of the file may be another one here."""
    types, compute = import_optional("pyarrow").types, import_optional("pyarrow.compute")
    if types.is_floating(column.type):
        is_large = compute.greater_equal(compute.abs(column), float(LARGEST_EXACT))
        return bool(compute.any(compute.and_(is_large, compute.is_finite(column))).as_py())
    if types.is_list(column.type) or types.is_large_list(column.type):
        return is_rounded(compute.list_flatten(column))
    fields = range(column.type.num_fields) if types.is_struct(column.type) else ()
    return any(is_rounded(compute.struct_field(column, [index])) for index in fields)


def json_row(rows: Any, where: str) -> dict[str, Json]:
    """Returns the only row of an Arrow table. Raises: InvalidInput for a value that cannot be converted."""
    try:
        return {
            name: as_json(_shortest(column.to_pylist()[0], column.type), f"{where}: column {name!r}")
            for name, column in zip(rows.column_names, rows.columns, strict=True)
        }
    except (import_optional("pyarrow").ArrowException, ValueError, OverflowError, LookupError) as problem:
        raise unusable_value(where, str(problem)[:200]) from problem


def _shortest(value: Any, kind: Any) -> Any:
    """Returns a value whose numbers of half or single precision are the shortest doubles that stand for them: 0.1 stays
    0.1."""
    types = import_optional("pyarrow").types
    if value is None:
        return None
    if types.is_float32(kind) or types.is_float16(kind):
        return float(str(np.float32(value) if types.is_float32(kind) else np.float16(value)))
    if types.is_struct(kind):
        return {field.name: _shortest(value[field.name], field.type) for field in kind.fields}
    if types.is_map(kind):
        return [(key, _shortest(item, kind.item_type)) for key, item in value]
    return [_shortest(item, kind.value_type) for item in value] if types.is_nested(kind) else value


def unusable_value(where: str, cause: str) -> InvalidInput:
    """Returns the error of a value that cannot be converted."""
    return InvalidInput(
        f"cannot use {where}: {cause}; correct the row, or choose other columns with `fields`",
        code="dataset.unusable_value",
    )


def _is_convertible(column: Any) -> bool:
    arrow = import_optional("pyarrow")
    try:
        column.validate(full=True)
        if _has_times(column.type):
            column.to_pylist()
    except (arrow.ArrowException, ValueError, OverflowError, LookupError):  # the last for an unknown time zone
        return False
    return True


def _has_times(kind: Any) -> bool:
    types = import_optional("pyarrow").types
    return types.is_temporal(kind) or any(map(_has_times, _inner_types(kind)))


def _inner_types(kind: Any) -> Iterator[Any]:
    types = import_optional("pyarrow").types
    if types.is_dictionary(kind):
        yield kind.value_type
    elif types.is_nested(kind):
        for index in range(kind.num_fields):
            yield kind.field(index).type
