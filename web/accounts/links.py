"""`python -m web.accounts.links`: prints a new link that logs the admin in, once, at the page that runs on a folder."""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.runtime.clock import SystemClock
from astraflow.runtime.service import be_private, exit_code
from web.accounts.sessions import ADMIN, Sessions
from web.accounts.vault import Vault
from web.audit.entries import Author, Deed, Trail
from web.db import SECRET, URL, Database, open_database
from web.door.roles import Role

LINK = "login-link"
"""File with the link of the present process, mode 0600, in the folder that the page keeps its state in."""


def keep_link(directory: Path, link: str) -> None:
    """Writes the link where only the page's user reads it, whole or not at all."""
    partial = directory / f".{LINK}.partial"
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(link)
    partial.replace(directory / LINK)


def address_of(link: str) -> str:
    """Returns the page's address.

    >>> address_of("https://page.example/login?token=abc")
    'https://page.example'
    """
    return link.partition("/login?")[0]


async def new_link(directory: Path, database: Database) -> str:
    """Makes another link, and enters that in the audit log. Raises: InvalidInput when no page was started there."""
    try:
        address = address_of((directory / LINK).read_text())
    except OSError as problem:
        raise InvalidInput(
            f"cannot make a login link: {directory / LINK}: {problem.strerror}; name the folder of a page that runs"
        ) from None
    clock = SystemClock()
    trail = Trail(database, clock=clock)
    token = await Sessions(Vault(database=database, clock=clock, trail=trail)).first_link()
    author = Author(name=ADMIN, role=Role.ADMIN.value, via="command line", came_from="")
    await trail.note(author, Deed(action="user.invite", target=ADMIN))
    return f"{address}/login?token={token}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the link; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m web.accounts.links", description=__doc__)
    parser.add_argument("--directory", required=True, type=Path, help="where the page keeps its database")
    directory: Path = parser.parse_args(arguments).directory
    be_private()
    try:
        if not (directory / SECRET).is_file():
            raise InvalidInput(f"cannot make a login link: {directory} has no {SECRET}; name the --directory of a page")
        database = open_database(directory, os.environ.get(URL, ""))
        try:
            print(asyncio.run(new_link(directory, database)))  # noqa: T201 (its output)
        finally:
            database.close()
    except AstraFlowError as problem:
        print(f"error: {problem}", file=sys.stderr)  # noqa: T201 (for a person)
        return exit_code(problem)
    return 0


if __name__ == "__main__":
    sys.exit(main())
