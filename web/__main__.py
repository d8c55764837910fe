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


_LIMITS = {
    "reads_a_minute": "read requests per minute of one session or token",
    "changes_a_minute": "write requests per minute of one session or token",
    "exports_a_minute": "exports and launches per minute of one session or token",
    "anonymous_requests_a_minute": "requests per minute of one address without a login",
    "sockets_a_user": "concurrent live pages of one user",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m web", description="Shows and steers a run of AstraFlow.")
    parser.add_argument("--dataflow", default="", metavar="HOST:PORT", help="the dataflow service to follow")
    parser.add_argument(
        "--read-only", action="store_true", dest="is_read_only", help="show recorded runs only; change nothing"
    )
    parser.add_argument(
        "--show-run", action="append", default=[], type=Path, dest="runs", metavar="DIR", help="show only this run"
    )
    parser.add_argument("--fleet", default="", metavar="HOST:PORT", help="the fleet service to show and steer")
    parser.add_argument("--directory", required=True, type=Path, help="directory of accounts and recorded charts")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", default=0, type=int, help="port to listen on; 0 (default) chooses a free one")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="the run's directory, when it is on this machine")
    parser.add_argument("--recipe", default="", help="name of the run's recipe, to show")
    parser.add_argument("--authority", type=Path, metavar="DIR", help="the run's certificate authority, for TLS")
    parser.add_argument("--ca-hash", default="", metavar="sha256:...", help="pin of that authority, to join with")
    parser.add_argument("--credential-folder", type=Path, metavar="DIR", help="directory for the page's own credential")
    parser.add_argument(
        "--behind-proxy",
        default="",
        metavar="URL",
        help="public https:// URL of a proxy in front, also with a path",
    )
    parser.add_argument("--name", action="append", default=[], dest="names", help="a host name that browsers use")
    parser.add_argument(
        "--tls-certificate", type=Path, metavar="FILE", help="certificate and chain (PEM), to serve TLS"
    )
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key, PEM")
    parser.add_argument(
        "--recipes", action="append", default=[], type=Path, metavar="DIR", help="folder with recipes to launch"
    )
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="LOCATION",
        help="folder or URL of data for launches",
    )
    parser.add_argument(
        "--join-host", default="", metavar="ADDRESS", help="address on which launched runs with remote nodes listen"
    )
    parser.add_argument("--join-name", default="", metavar="NAME", help="host name under which remote nodes reach it")
    parser.add_argument("--provider", type=Path, metavar="FILE", help="TOML file with the OpenID provider for logins")
    parser.add_argument("--alerts", type=Path, metavar="FILE", help="TOML file with rules of alerts")
    parser.add_argument("--mail", type=Path, metavar="FILE", help="TOML file with the mail server for alerts")
    for name, description in _LIMITS.items():
        field = Settings.model_fields[name]
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(
            flag, type=int, default=field.default, metavar="N", help=f"{description} (default %(default)s)"
        )
    return parser


def _settings(options: argparse.Namespace) -> Settings:
    token = os.environ.get(TOKEN, "")
    if options.dataflow and not token:
        raise InvalidInput(
            f"cannot authenticate at dataflow: the variable {TOKEN} is empty; set it to the token of the run",
            code="web.token_missing",
        )
    secrets = {
        "token": token,
        "fleet_token": os.environ.get(FLEET_TOKEN, ""),
        "database": os.environ.get(DATABASE_URL_VARIABLE, ""),
        "mail_password": os.environ.get(MAIL_PASSWORD, ""),
        "provider_secret": os.environ.get(PROVIDER_SECRET, ""),
    }
    return Settings.parse(vars(options) | secrets, where="")


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
