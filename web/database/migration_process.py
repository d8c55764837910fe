"""`python -m web.database.migration_process`: migrates the page's database, and ends.

The libraries for migrations are needed once and would stay in the memory of the web process, so it starts this one.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from astraflow.contract.errors import AstraFlowError
from astraflow.runtime.logs import get_logger
from astraflow.runtime.service import print_error
from web.database.db import DATABASE_URL_VARIABLE, is_current, open_database

log = get_logger()


def migrate_in_process(directory: Path, url: str) -> None:
    """Migrates in a child process and waits for it, if the tables are not current.

    If it fails, opening the database migrates again and reports the cause.
    Raises: InvalidInput if the database is unusable, Unavailable if its server cannot be reached.
    """
    if is_current(directory, url):
        return
    command = [sys.executable, "-m", "web.database.migration_process", "--directory", str(directory)]
    result = subprocess.run(  # noqa: S603 (this program, with a list of arguments)
        command,
        env=os.environ | {DATABASE_URL_VARIABLE: url},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        log.warning("migration_failed", code=result.returncode, said=result.stderr.strip())


def main(arguments: list[str] | None = None) -> int:
    """Runs the migration; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m web.database.migration_process", description=__doc__)
    parser.add_argument("--directory", required=True, type=Path, help="directory of accounts and recorded charts")
    options = parser.parse_args(arguments)
    try:
        open_database(options.directory, os.environ.get(DATABASE_URL_VARIABLE, "")).close()
    except AstraFlowError as problem:
        print_error(problem)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
