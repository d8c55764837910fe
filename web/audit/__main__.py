"""`python -m web.audit verify|export`: verifies or exports the audit log of a page's directory.

`astraflow audit` passes a copy of the database, so the page may run meanwhile and nothing is changed.
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
from web.audit.queries import RESULTS, AuditFilter, filter_from
from web.audit.views import as_csv, as_ndjson, chain_sentence, csv_header
from web.database.db import DATABASE, DATABASE_URL_VARIABLE, SECRET, Database, open_database
from web.security.audit_log import AuditLog


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code: 1 for a broken chain."""
    options = _parser().parse_args(arguments)
    try:
        database = _opened(options.directory, os.environ.get(DATABASE_URL_VARIABLE, ""))
        try:
            return asyncio.run(_verify(database) if options.what == "verify" else _export(database, options))
        finally:
            database.close()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has closed the pipe
        return 0
    except AstraFlowError as problem:
        print_error(problem)
        return exit_code(problem)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m web.audit", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    verify = commands.add_parser("verify", help="verify the hash chain")
    export = commands.add_parser("export", help="write matching entries to standard output")
    for command in (verify, export):
        command.add_argument("--directory", required=True, type=Path, help="directory of the page")
    export.add_argument("--format", choices=("ndjson", "csv"), default="ndjson")
    for field in fields(AuditFilter):
        export.add_argument(f"--{field.name}", default="")
    return parser


def _opened(directory: Path, url: str) -> Database:
    """Opens an existing database; creates nothing. Raises: InvalidInput."""
    absent = [name for name in (SECRET, *(() if url else (DATABASE,))) if not (directory / name).is_file()]
    if absent:
        raise InvalidInput(
            f"cannot open the audit log: {str(directory)!r} has no {' and no '.join(absent)}; give a page's folder",
            code="audit.not_found",
        )
    return open_database(directory, url)


async def _verify(database: Database) -> int:
    verdict = await AuditLog(database, clock=SystemClock()).verify()
    print(chain_sentence(verdict))  # noqa: T201 (for a person)
    if verdict.problem:
        valid_entries = (
            f"{verdict.checked} valid before the break" if verdict.checked else "none valid before the break"
        )
        print(  # noqa: T201 (the same)
            f"Entries {verdict.first_sequence} to {verdict.last_sequence}: {valid_entries}. Entries after the first "
            "break prove nothing: compare with an earlier export or copy.",
            file=sys.stderr,
        )
        return EXIT_FAILED
    if verdict.checked:
        print(f"Newest hash: {verdict.last_hash}")  # noqa: T201 (the same)
    return 0


async def _export(database: Database, options: argparse.Namespace) -> int:
    audit_filter = _filter(vars(options))
    render = as_csv if options.format == "csv" else as_ndjson
    if options.format == "csv":
        sys.stdout.write(csv_header())
    async for batch in audit_queries.everything(database, audit_filter):
        sys.stdout.write(render(batch))
    sys.stdout.flush()
    return 0


def _filter(options: Mapping[str, str]) -> AuditFilter:
    """Filter of the export. Raises: InvalidInput for an invalid value, which would otherwise export all entries."""
    audit_filter = filter_from(options)
    for name, example in (("result", ", ".join(RESULTS)), ("since", "2026-11-21"), ("until", "2026-11-21")):
        if options[name] and not getattr(audit_filter, name):
            raise InvalidInput(
                f"cannot filter by --{name} {options[name][:40]!r}: invalid value; use for example {example}",
                code="audit.invalid_filter",
            )
    return audit_filter


if __name__ == "__main__":
    sys.exit(main())
