"""`python -m web`: the web process. Prints `ready URL`; the file `login-link` holds a link that logs in once.

Log files must not contain a login link: it is printed to a terminal, and to a pipe for a page on loopback.
"""

import argparse
import asyncio
import gc
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from astraflow.contract.errors import InvalidInput
from astraflow.runtime import logs
from astraflow.runtime.http.hosts import may_show_link
from astraflow.runtime.service import FOLLOW_PARENT, run_process
from web.accounts.login_links import address_of, write_link
from web.database.db import DATABASE_URL_VARIABLE, open_database
from web.process_settings import Settings
from web.service import serve

TOKEN = "ASTRAFLOW_TOKEN"  # noqa: S105 (the variable's name, not a secret)
FLEET_TOKEN = "ASTRAFLOW_FLEET_TOKEN"  # noqa: S105 (the variable's name, not a secret)
PROVIDER_SECRET = "ASTRAFLOW_OIDC_SECRET"  # noqa: S105 (the variable's name, not a secret)
MAIL_PASSWORD = "ASTRAFLOW_MAIL_PASSWORD"  # noqa: S105 (the variable's name, not a secret)

GC_THRESHOLDS = (10_000, 5, 80)
"""Thresholds of the garbage collector. Reports of thousands of nodes are many objects without cycles: collecting as
often as usual takes as long as reading them. Requests wait for a collection: that of the second generation takes 12 ms
every 50,000 objects, and took 55 ms every 200,000 on a loaded machine."""

THREAD_SWITCH_S = 0.0005
"""Longest time for which a thread waits for the interpreter while another one computes. A request reads the database in
threads, which wait for the interpreter after each statement; with Python's 5 ms these waits add up while thousands of
nodes are decoded."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until a signal or the end of the parent process; returns the exit code."""
    options = _parser().parse_args(arguments)
    logs.configure()

    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(THREAD_SWITCH_S)

    async def run(stop: asyncio.Event) -> None:
        settings = _settings(options)
        _migrate_database(settings)
        await serve(settings, stop=stop, on_ready=lambda link: _print_ready(settings.directory, link))

    return run_process(run, has_large_messages=False)


def _migrate_database(settings: Settings) -> None:
    """Creates or migrates the database in a child process, so that this one does not keep the 11 MB of the migration.
    `serve` opens it again, and reports what is wrong with it."""
    if child := os.fork():
        os.waitpid(child, 0)
        return
    try:
        settings.check()
        open_database(settings.directory, settings.database).close()
    finally:
        os._exit(0)


_ENVIRONMENT = {
    "token": TOKEN,
    "fleet_token": FLEET_TOKEN,
    "database": DATABASE_URL_VARIABLE,
    "mail_password": MAIL_PASSWORD,
    "provider_secret": PROVIDER_SECRET,
}
"""Variable of each setting that is no option."""

_NAMES = {"names": "name", "runs": "show_run", "is_read_only": "read_only"}
"""Names of options that differ from their setting's."""


def _parser() -> argparse.ArgumentParser:
    """Returns a parser with one option for each setting; those that are left out keep the setting's default."""
    parser = argparse.ArgumentParser(
        prog="python -m web", description="Shows and steers a run of AstraFlow.", argument_default=argparse.SUPPRESS
    )
    for name, field in Settings.model_fields.items():
        if name in _ENVIRONMENT:
            continue
        action = "store_true" if field.annotation is bool else "append" if field.default == () else "store"
        flag = f"--{_NAMES.get(name, name).replace('_', '-')}"
        parser.add_argument(flag, action=action, dest=name, required=field.is_required(), help=field.description)
    return parser


def _settings(options: argparse.Namespace) -> Settings:
    secrets = {name: os.environ.get(variable, "") for name, variable in _ENVIRONMENT.items()}
    settings = Settings.parse(vars(options) | secrets, where="")
    if settings.dataflow and not settings.token:
        raise InvalidInput(
            f"cannot authenticate at dataflow: the variable {TOKEN} is empty; set it to the token of the run",
            code="web.token_missing",
        )
    return settings


def _print_ready(directory: Path, link: str) -> None:
    write_link(directory, link)
    print(f"ready {address_of(link)}", flush=True)  # noqa: T201 (the parent process waits for it)
    if FOLLOW_PARENT in os.environ:
        return  # the run prints the link
    if may_show_link(link, sys.stdout):
        print(f"log in, once, at {link}", flush=True)  # noqa: T201 (for a person)
    else:
        command = shlex.join(["astraflow", "login-link", str(directory)])
        print(f"`{command}` prints a login link", file=sys.stderr, flush=True)  # noqa: T201 (for a person)


if __name__ == "__main__":
    sys.exit(main())
