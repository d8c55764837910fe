"""Data in the terminal: as a table whose cells are never cut, or as JSON."""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Literal, TypeVar

from pydantic_core import to_json
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table as WrappedTable
from rich.text import Text

T = TypeVar("T")

UNLIMITED = 100_000
"""Columns of an output that is no terminal."""
_ALIGNED = 48
"""Widest cell that the column after it is aligned to, where each row is a line."""
_WRAPPED = 24
"""Narrowest column in which text is wrapped."""


def console() -> Console:
    """Returns a console for standard output. A pipe or file has lines of any length, unless COLUMNS says otherwise."""
    out = Console(highlight=False)
    return out if out.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=UNLIMITED)


def show(value: T, render: Callable[[T], RenderableType], *, as_json: bool) -> None:
    """Prints a value as one line of JSON, or as `render` shows it. Texts are never interpreted as markup."""
    if as_json:
        print(json_text(value), flush=True)  # noqa: T201 (machine-readable output)
    else:
        console().print(render(value), crop=False)


def json_text(value: object) -> str:
    """Returns JSON of dataclasses, enums, mappings and sequences; numbers that are not finite become null."""
    return to_json(value, inf_nan_mode="null", fallback=_json_value).decode()


def _json_value(value: object) -> object:
    if hasattr(value, "keys"):  # a mapping that is no dict
        return dict(value)  # type: ignore[call-overload]  # any mapping
    return str(value)


class Table:
    """Rows, each in one line where the console is wide enough for all of them. Otherwise the texts of the columns
    `wrapped` are wrapped; and where that leaves too little room, each cell of a row has its own line."""

    def __init__(
        self,
        *columns: str,
        right: Collection[str] = (),
        wrapped: Collection[str] | None = None,
    ) -> None:
        """columns: titles; no line of titles if all are empty. right: columns of numbers. wrapped: by default the
        last."""
        self._columns = columns
        self._right = right
        self._wrapped = columns[-1:] if wrapped is None else wrapped
        self._rows: list[tuple[Text, ...]] = []

    def add(self, *cells: str | Text) -> None:
        self._rows.append(tuple(cell if isinstance(cell, Text) else Text(cell) for cell in cells))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        titles = [tuple(Text(column, style="bold") for column in self._columns)] if any(self._columns) else []
        widths = [max((cell.cell_len for cell in cells), default=0) for cells in zip(*titles, *self._rows, strict=True)]
        lines = [self._line(row, widths) for row in (*titles, *self._rows)]
        whole = [width for name, width in zip(self._columns, widths, strict=False) if name not in self._wrapped]
        if max((line.cell_len for line in lines), default=0) <= options.max_width:
            yield from lines
        elif sum(whole) + 2 * len(self._columns) + _WRAPPED * len(self._wrapped) <= options.max_width:
            yield self._wrapped_table()
        else:
            for row in self._rows:
                yield from self._stacked(row)

    def _line(self, row: Sequence[Text], widths: Sequence[int]) -> Text:
        line, start = Text(no_wrap=True), 0
        for name, cell, width in zip(self._columns, row, widths, strict=True):
            column = min(width, _ALIGNED)
            gap = max(start - line.cell_len, 2 if start else 0)
            indent = max(0, column - cell.cell_len) if name in self._right else 0
            line.append(" " * (gap + indent)).append_text(cell)
            start += column + 2
        line.rstrip()
        return line

    def _wrapped_table(self) -> WrappedTable:
        table = WrappedTable(box=None, pad_edge=False, show_header=any(self._columns), padding=(0, 2, 0, 0))
        for name in self._columns:
            side: Literal["left", "right"] = "right" if name in self._right else "left"
            table.add_column(name, no_wrap=name not in self._wrapped, overflow="fold", justify=side)
        for row in self._rows:
            table.add_row(*row)
        return table

    def _stacked(self, row: Sequence[Text]) -> Iterator[RenderableType]:
        first, *others = row
        yield Text.assemble(first, no_wrap=True, overflow="ignore")
        for name, cell in zip(self._columns[1:], others, strict=True):
            if cell.cell_len and name in self._wrapped:
                yield Padding(cell, (0, 0, 0, 4))
            elif cell.cell_len:
                yield Text.assemble("    ", f"{name}: " if name else "", cell, no_wrap=True, overflow="ignore")
