"""`astraflow set-aside`: data of a run that ended a trainer or could not be read, listed and exported."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from astraflow.archive.set_aside import SetAsideFile

_KEPT = ("weights/*/*.damaged", "dataflow/*.unreadable.sqlite")
"""Damaged files that the weight store and dataflow's archive keep beside the others."""


def set_aside(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Folder or name of a run, active or ended.")],
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Write the data there as JSON lines, one file each.")
    ] = None,
    names: Annotated[list[str], typer.Option("--name", metavar="NAME", help="Only this file; may be repeated.")] = [],  # noqa: B006 (typer copies it)
) -> None:
    """List the batches of a run that ended their trainer and the stored records that could not be read; export them.

    The first line of an exported file has a summary; each other line is a row of the batch, or a record.
    """
    from astraflow.archive.set_aside import SET_ASIDE_PATH, SetAsideFiles, export
    from astraflow.cli.run_directory import find_run_folder
    from astraflow.contract.errors import InvalidInput

    run = find_run_folder(run_dir).path
    folder = run / SET_ASIDE_PATH
    files = [file for file in SetAsideFiles(folder).files() if not names or file.name in names]
    unknown = set(names) - {file.name for file in files}
    if unknown:
        raise InvalidInput(
            f"cannot find {min(unknown)!r}: {str(folder)!r} has no such file; list the names without --name",
            code="set_aside.unknown",
        )
    kept = [] if names or to is not None else sorted(path for pattern in _KEPT for path in run.glob(pattern))
    if not files and not kept:
        typer.echo("nothing was set aside")
    for path in kept:
        typer.echo(f"{path.relative_to(run)}: damaged, {path.stat().st_size} bytes, no longer used")
    for file in files:
        typer.echo(_line(file) if to is None else f"exported {export(file, to)}")


def _line(file: "SetAsideFile") -> str:
    """Returns one file as text."""
    at = datetime.fromtimestamp(file.at, UTC)
    return f"{file.name}: {at:%Y-%m-%d %H:%M:%S} UTC, {file.summary or f'unreadable, {file.size_bytes} bytes'}"
