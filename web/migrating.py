"""`python -m web.migrating`: gives the page's database today's tables, and ends.

What migrates is needed once, and would stay in the memory of a process that runs for weeks. So that one starts this.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.logs import get_logger
from astraflow.runtime.service import print_error
from web.db import URL, is_current, open_database

log = get_logger()


def migrate_apart(directory: Path, url: str) -> None:
    """Start such a process and wait for it, if the tables are not today's.

    Where it fails, whoever opens the database next tries again, and says what is wrong.
    Raises: InvalidInput when the database cannot be used.
    """
    if is_current(directory, url):
        return
    command = [sys.executable, "-m", "web.migrating", "--directory", str(directory)]
    done = subprocess.run(  # noqa: S603 (this program, with a list of arguments)
        command, env=os.environ | {URL: url}, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        log.warning("not_migrated", code=done.returncode, said=done.stderr.strip())


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m web.migrating", description=__doc__)
    parser.add_argument("--directory", required=True, type=Path, help="where logins and recorded charts are kept")
    chosen = parser.parse_args(arguments)
    try:
        open_database(chosen.directory, os.environ.get(URL, "")).close()
    except InvalidInput as problem:
        print_error(problem)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
