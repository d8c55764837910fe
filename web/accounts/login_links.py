"""`python -m web.accounts.login_links`: prints a new single-use admin login link for a running page."""

import argparse
import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.runtime.clock import SystemClock
from astraflow.runtime.folders.private_files import write_private
from astraflow.runtime.service import exit_code, make_files_private
from web.accounts.queries import AccountStore
from web.accounts.sessions import ADMIN, Sessions
from web.database.db import DATABASE_URL_VARIABLE, SECRET, Database, open_database
from web.security.audit_log import AuditedCommand, AuditLog, Author
from web.security.roles import Role

LINK_FILE = "login-link"
"""File with the current login link, mode 0600, in the page's directory."""


CONNECT_S = 2.0
"""Time limit of the check that the page answers, in seconds."""


def write_link(directory: Path, link: str) -> None:
    """Writes the link atomically, readable by the page's user only."""
    write_private(directory / LINK_FILE, link)


def address_of(link: str) -> str:
    """Base URL of a login link.

    >>> address_of("https://page.example/login?token=abc")
    'https://page.example'
    """
    return link.partition("/login?")[0]


async def new_link(directory: Path, database: Database) -> str:
    """Creates a login link and audits it. Raises: InvalidInput if no page was started in the directory."""
    try:
        address = address_of((directory / LINK_FILE).read_text())
    except OSError as problem:
        raise InvalidInput(
            f"cannot make a login link: {directory / LINK_FILE}: {problem.strerror}; give the folder of a running page",
            code="login.no_page",
        ) from None
    clock = SystemClock()
    audit_log = AuditLog(database, clock=clock)
    token = await Sessions(AccountStore(database=database, clock=clock, audit_log=audit_log)).first_link()
    author = Author(name=ADMIN, role=Role.ADMIN.value, via="command line", came_from="")
    await audit_log.write(author, AuditedCommand(action="user.invite", target=ADMIN))
    return f"{address}/login?token={token}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a login link; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m web.accounts.login_links", description=__doc__)
    parser.add_argument("--directory", required=True, type=Path, help="directory of the page")
    directory: Path = parser.parse_args(arguments).directory
    make_files_private()
    try:
        if not (directory / SECRET).is_file():
            raise InvalidInput(
                f"cannot make a login link: {directory} has no {SECRET}; give the --directory of a page",
                code="login.no_page",
            )
        database = open_database(directory, os.environ.get(DATABASE_URL_VARIABLE, ""))
        try:
            link = asyncio.run(new_link(directory, database))
            print(link)  # noqa: T201 (the command's output)
        finally:
            database.close()
    except AstraFlowError as problem:
        print(f"error: {problem}", file=sys.stderr)  # noqa: T201 (for a person)
        return exit_code(problem)
    if not _answers(address_of(link)):
        note = "note: nothing answers at this address now; the link works once the page runs there (astraflow runs)"
        print(note, file=sys.stderr)  # noqa: T201 (for a person)
    return 0


def _answers(address: str) -> bool:
    """Returns whether a server accepts a connection at the address of a link."""
    url = urlsplit(address)
    try:
        with socket.create_connection((url.hostname, url.port or (443 if url.scheme == "https" else 80)), CONNECT_S):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
