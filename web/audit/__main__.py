"""`python -m web.audit verify|export`: the audit in a page's folder, from the command line.

It reads what a page wrote: `astraflow audit` gives it a copy, so that the page may run meanwhile and nothing changes.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.runtime.clock import SystemClock
from astraflow.runtime.service import EXIT_FAILED, exit_code, print_error
from web.audit import queries as audit_queries
from web.audit.entries import Trail
from web.audit.queries import RESULTS, AuditFilter, filter_from
from web.db import DATABASE, SECRET, URL, Database, open_database
from web.present.audit import as_csv, as_ndjson, chain_view, csv_head


def main(arguments: Sequence[str] | None = None) -> int:
    """Do it; returns the exit code: 1 for a chain that is broken."""
    chosen = _parser().parse_args(arguments)
    try:
        database = _opened(chosen.directory, os.environ.get(URL, ""))
        try:
            return asyncio.run(_verify(database) if chosen.what == "verify" else _export(database, chosen))
        finally:
            database.close()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read has read enough
        return 0
    except AstraFlowError as problem:
        print_error(problem)
        return exit_code(problem)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m web.audit", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    verify = commands.add_parser("verify", help="check the chain from end to end")
    export = commands.add_parser("export", help="write what matches to standard output")
    for command in (verify, export):
        command.add_argument("--directory", required=True, type=Path, help="where the page keeps its database")
    export.add_argument("--format", choices=("ndjson", "csv"), default="ndjson")
    for field in fields(AuditFilter):
        export.add_argument(f"--{field.name}", default="")
    return parser


def _opened(directory: Path, url: str) -> Database:
    """What is there; nothing is made. Raises: InvalidInput."""
    absent = [name for name in (SECRET, *(() if url else (DATABASE,))) if not (directory / name).is_file()]
    if absent:
        raise InvalidInput(f"{directory} has no {' and no '.join(absent)}: name the folder where a page keeps them")
    return open_database(directory, url)


async def _verify(database: Database) -> int:
    verdict = await Trail(database, clock=SystemClock()).verify()
    print(chain_view(verdict).sentence)  # noqa: T201 (for a person)
    if verdict.problem:
        held = f"{verdict.checked} before it hold" if verdict.checked else "none before it holds"
        print(  # noqa: T201 (the same)
            f"Of {verdict.first_sequence} to {verdict.last_sequence}, {held}. What comes after the first break proves "
            "nothing: compare with an export, or a copy, of before.",
            file=sys.stderr,
        )
        return EXIT_FAILED
    if verdict.checked:
        print(f"The newest hash: {verdict.last_hash}")  # noqa: T201 (the same)
    return 0


async def _export(database: Database, chosen: argparse.Namespace) -> int:
    asked = _filter(vars(chosen))
    render = as_csv if chosen.format == "csv" else as_ndjson
    if chosen.format == "csv":
        sys.stdout.write(csv_head())
    async for batch in audit_queries.everything(database, asked):
        sys.stdout.write(render(batch))
    sys.stdout.flush()
    return 0


def _filter(given: Mapping[str, str]) -> AuditFilter:
    """Which entries. Raises: InvalidInput for what is not understood: all of them would not be what was asked for."""
    asked = filter_from(given)
    for name, known in (("result", ", ".join(RESULTS)), ("since", "2026-11-21"), ("until", "2026-11-21")):
        if given[name] and not getattr(asked, name):
            raise InvalidInput(f"--{name} {given[name][:40]!r} is not understood; as in: {known}")
    return asked


if __name__ == "__main__":
    sys.exit(main())
