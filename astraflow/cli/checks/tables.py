"""Table of the results of a check."""

from typing import TYPE_CHECKING

import typer

from astraflow.contract.plugins import CheckResult, Outcome

if TYPE_CHECKING:
    from rich.table import Table

_FILE_COLUMNS = 160
"""Width of the table in a file or pipe."""


def print_results(results: list[CheckResult], *, part: str) -> None:
    """Prints the table. Raises: typer.Exit with code 1 when a check failed."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_FILE_COLUMNS)
    console.print(result_table(results, part=part))
    counts = {outcome: sum(result.outcome is outcome for result in results) for outcome in Outcome}
    console.print(", ".join(f"{count} {outcome.value}" for outcome, count in counts.items()))
    if counts[Outcome.FAILED]:
        raise typer.Exit(1)


def result_table(results: list[CheckResult], *, part: str) -> "Table":
    """Returns a table with one row for each checked promise of the part."""
    from rich.table import Table
    from rich.text import Text

    styles = {Outcome.PASSED: "green", Outcome.FAILED: "red", Outcome.UNSUPPORTED: "yellow"}
    table = Table(box=None)
    table.add_column("", no_wrap=True)
    table.add_column(f"the {part}", no_wrap=True)
    is_timed = any(result.seconds for result in results)
    if is_timed:
        table.add_column("seconds", justify="right")
    table.add_column("detail", overflow="fold")
    for result in results:
        mark = Text(result.outcome.value, style=styles[result.outcome])
        seconds = [f"{result.seconds:.2f}"] if is_timed else []
        table.add_row(mark, Text(result.promise), *seconds, Text(result.detail))
    return table
