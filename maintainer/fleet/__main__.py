"""`python -m maintainer.fleet`: the fleet service's process. Prints `ready HOST:PORT` once it listens."""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from astraflow.access.authority import Authority
from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.runtime import logs
from astraflow.runtime.hosts import is_loopback
from astraflow.runtime.service import exit_code, print_error, run_process
from astraflow.runtime.toml import read_toml
from astraflow.wire.server import Listen, authority_tls
from maintainer.fleet.config import FleetConfig
from maintainer.fleet.service import serve

TOKEN = "ASTRAFLOW_TOKEN"  # noqa: S105 (the variable's name, not a secret)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal, or the parent's end; returns the exit code."""
    chosen = _parser().parse_args(arguments)
    logs.configure()
    logs.bind(role="fleet")
    try:
        config, token = read_config(chosen.config), _token()
        listen = _listening(chosen, token)
    except AstraFlowError as problem:
        print_error(problem)
        return exit_code(problem)

    async def run(stop: asyncio.Event) -> None:
        await serve(
            config,
            dataflow=chosen.dataflow,
            join_address=chosen.join_address or chosen.dataflow,
            token=token,
            authority=chosen.authority if listen.tls else None,
            listen=listen,
            directory=chosen.directory,
            stop=stop,
            on_ready=_say_ready,
        )

    return run_process(run)


def read_config(path: Path) -> FleetConfig:
    """The configuration in a TOML file, or in the JSON that a run wrote down. Raises: InvalidInput."""
    values = read_toml(path) if path.suffix != ".json" else _read_json(path)
    return FleetConfig.parse(values, where="")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise InvalidInput(f"{path} cannot be read: {problem}") from None
    if not isinstance(found, dict):
        raise InvalidInput(f"{path} holds no table")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m maintainer.fleet", description="Starts and stops machines.")
    parser.add_argument("--config", required=True, type=Path, help="TOML file with providers and pools")
    parser.add_argument("--dataflow", required=True, metavar="HOST:PORT", help="the run's dataflow service")
    parser.add_argument("--directory", required=True, type=Path, help="where the ledger is kept")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", default=0, type=int, help="port to listen on; 0 takes a free one (default)")
    parser.add_argument("--join-address", default="", metavar="HOST:PORT", help="where machines join the run")
    parser.add_argument("--authority", type=Path, metavar="DIR", help="the run's certificate authority")
    parser.add_argument(
        "--tls", action=argparse.BooleanOptionalAction, default=None, help="mutual TLS; beyond loopback by default"
    )
    parser.add_argument("--advertise", action="append", default=[], help="another name that this host is known by")
    return parser


def _token() -> str:
    token = os.environ.get(TOKEN, "")
    if not token:
        raise InvalidInput(f"the environment variable {TOKEN} is empty: set it to the token of the run")
    return token


def _listening(chosen: argparse.Namespace, token: str) -> Listen:
    """Raises: InvalidInput for TLS without the run's authority."""
    authority = Authority.opened(chosen.authority) if chosen.authority is not None else None
    is_tls = not is_loopback(chosen.host) if chosen.tls is None else chosen.tls
    if is_tls and authority is None:
        raise InvalidInput("TLS needs the run's --authority (the folder `authority` of its directory)")
    tls = authority_tls(authority, chosen.host, tuple(chosen.advertise)) if is_tls and authority is not None else None
    return Listen(host=chosen.host, port=chosen.port, token=token, tls=tls, authority=authority)


def _say_ready(address: str) -> None:
    print(f"ready {address}", flush=True)  # noqa: T201 (what the process that started this one waits for)


if __name__ == "__main__":
    sys.exit(main())
