"""Tables and JSON in the terminal."""

import io
import json
from enum import Enum
from types import MappingProxyType

import pytest
from rich.console import Console
from rich.text import Text

from astraflow.cli.output import Table, console, show

KEY = "policies.solver.model.warm_start.target_accuracy=0.25"
TEXT = "Share of sampled answers that would equal the example, at which the warm start stops."


def shown(table: Table, width: int) -> list[str]:
    out = Console(file=io.StringIO(), width=width)
    out.print(table, crop=False)
    assert isinstance(out.file, io.StringIO)
    return [line.rstrip() for line in out.file.getvalue().splitlines()]


def settings() -> Table:
    table = Table("setting", "description")
    table.add(KEY, TEXT)
    table.add("seed=0", "Seed.")
    return table


@pytest.mark.parametrize("width", [20, 40, 80, 120, 400])
def test_what_one_must_paste_is_whole_in_a_line_at_any_width(width: int) -> None:
    lines = shown(settings(), width)
    assert any(KEY in line for line in lines)
    assert "…" not in "".join(lines)
    assert " ".join(TEXT.split()) in " ".join(" ".join(line.split()) for line in lines).replace(KEY + " ", "")


def test_each_row_is_a_line_where_all_fit() -> None:
    lines = shown(settings(), 400)
    assert [line.split()[0] for line in lines] == ["setting", KEY, "seed=0"]


def test_numbers_are_aligned_right_and_texts_are_no_markup() -> None:
    table = Table("name", "GiB", "", right=("GiB",))
    table.add("[bold]a", "7.5", Text("yes", style="green"))
    table.add("b", "100.0", "")
    assert shown(table, 80) == ["name       GiB", "[bold]a    7.5  yes", "b        100.0"]


def test_a_long_cell_moves_only_its_own_row() -> None:
    table = Table("name", "state")
    table.add("x" * 60, "ready")
    table.add("y", "gone")
    assert shown(table, 100)[1:] == ["x" * 60 + "  ready", "y" + " " * 49 + "gone"]


def test_an_output_that_is_no_terminal_has_lines_of_any_length_unless_columns_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert console().width > 10_000
    monkeypatch.setenv("COLUMNS", "90")
    assert console().width == 90


def test_values_are_printed_as_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    class State(Enum):
        READY = "ready"

    value = {"state": State.READY, "share": float("nan"), "counts": MappingProxyType({"a": (1, 2)}), "é": "[bold]"}
    show(value, lambda _: Text(""), as_json=True)
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    assert json.loads(line) == {"state": "ready", "share": None, "counts": {"a": [1, 2]}, "é": "[bold]"}
