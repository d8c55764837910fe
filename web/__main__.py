"""`python -m web`: the web process. Prints `ready URL`; a link that logs in once is in the file `login-link`.

What a process prints ends in log files, and a login link belongs in none: it is printed to a terminal only.
"""

import argparse
import asyncio
import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from astraflow.contract.errors import InvalidInput
from astraflow.runtime import logs
from astraflow.runtime.service import run_process
from web.accounts.links import address_of, keep_link
from web.db import URL
from web.migrating import migrate_apart
from web.service import serve
from web.settings import Settings

TOKEN = "ASTRAFLOW_TOKEN"  # noqa: S105 (the variable's name, not a secret)
FLEET_TOKEN = "ASTRAFLOW_FLEET_TOKEN"  # noqa: S105 (the variable's name, not a secret)
PROVIDER_SECRET = "ASTRAFLOW_OIDC_SECRET"  # noqa: S105 (the variable's name, not a secret)

COLLECT_AFTER = (10_000, 20, 20)
"""Reports of thousands of nodes are many objects without cycles: looking for cycles as often as usual takes as long as
reading them. Pages and sockets that ended are cycles, though: waiting for 50,000 objects keeps 4 MB of them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal, or the parent's end; returns the exit code."""
    chosen = _parser().parse_args(arguments)
    logs.configure()

    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)

    async def run(stop: asyncio.Event) -> None:
        settings = _settings(chosen)
        await asyncio.to_thread(migrate_apart, settings.directory, settings.database)
        await serve(settings, stop=stop, on_ready=lambda link: _say_ready(settings.directory, link))

    return run_process(run, has_large_messages=False)


_LIMITS = {
    "reads_a_minute": "requests that only look, of one session or token",
    "changes_a_minute": "requests that may change something, of one session or token",
    "exports_a_minute": "files and launches, of one session or token",
    "strangers_a_minute": "requests of one address without a login",
    "sockets_a_user": "live pages of one user that are open at once",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m web", description="Shows and steers a run of AstraFlow.")
    parser.add_argument("--dataflow", default="", metavar="HOST:PORT", help="the dataflow service to follow")
    parser.add_argument(
        "--all-runs", action="store_true", dest="follows_all", help="follow all runs of this machine and user"
    )
    parser.add_argument(
        "--read-only", action="store_true", dest="is_read_only", help="show what was recorded, and change nothing"
    )
    parser.add_argument("--fleet", default="", metavar="HOST:PORT", help="the fleet service to show and steer")
    parser.add_argument("--directory", required=True, type=Path, help="where logins and recorded charts are kept")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", default=0, type=int, help="port to listen on; 0 takes a free one (default)")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="the run's directory, when it is on this machine")
    parser.add_argument("--recipe", default="", help="name of the run's recipe, to show")
    parser.add_argument("--authority", type=Path, metavar="DIR", help="the run's certificate authority, for TLS")
    parser.add_argument("--ca-hash", default="", metavar="sha256:...", help="pin of that authority, to join with")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where the page's own credential is kept")
    parser.add_argument("--behind-proxy", default="", metavar="URL", help="public https:// address of a proxy in front")
    parser.add_argument("--name", action="append", default=[], dest="names", help="a host name that browsers use")
    parser.add_argument("--tls-certificate", type=Path, metavar="FILE", help="certificate and chain, PEM: speak TLS")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key, PEM")
    parser.add_argument(
        "--recipes", action="append", default=[], type=Path, metavar="DIR", help="folder with recipes to launch"
    )
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="PLACE",
        help="folder or address of data for launches",
    )
    parser.add_argument(
        "--join-host", default="", metavar="ADDRESS", help="where launched runs listen that have machines elsewhere"
    )
    parser.add_argument("--join-name", default="", metavar="NAME", help="under which name those machines reach it")
    parser.add_argument("--provider", type=Path, metavar="FILE", help="TOML file about an OpenID provider to log in by")
    for name, what in _LIMITS.items():
        field = Settings.model_fields[name]
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=int, default=field.default, metavar="N", help=f"{what} (default %(default)s)")
    return parser


def _settings(chosen: argparse.Namespace) -> Settings:
    token = os.environ.get(TOKEN, "")
    if chosen.dataflow and not token:
        raise InvalidInput(f"the environment variable {TOKEN} is empty: set it to the token of the run")
    secrets = {
        "token": token,
        "fleet_token": os.environ.get(FLEET_TOKEN, ""),
        "database": os.environ.get(URL, ""),
        "provider_secret": os.environ.get(PROVIDER_SECRET, ""),
    }
    return Settings.parse(vars(chosen) | secrets, where="")


def _say_ready(directory: Path, link: str) -> None:
    keep_link(directory, link)
    print(f"ready {address_of(link)}", flush=True)  # noqa: T201 (what the process that started this one waits for)
    if sys.stdout.isatty():
        print(f"log in, once, at {link}", flush=True)  # noqa: T201 (for the person at the terminal)


if __name__ == "__main__":
    sys.exit(main())
