"""`python -m maintainer.fleet`: process of the fleet service. Prints `ready HOST:PORT` once it listens."""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from astraflow.access.authority import Authority
from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.runtime import logs
from astraflow.runtime.config.toml import read_values
from astraflow.runtime.http.hosts import is_loopback
from astraflow.runtime.service import exit_code, print_error, run_process
from astraflow.wire.server import ListenOptions, authority_tls
from maintainer.fleet.config import FleetConfig
from maintainer.fleet.service import serve

TOKEN = "ASTRAFLOW_TOKEN"  # noqa: S105 (the variable's name, not a secret)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until a signal or the parent's end; returns the exit code."""
    options = _parser().parse_args(arguments)
    logs.configure()
    logs.bind(role="fleet")
    try:
        config, token = read_config(options.config), _token()
        listen = _listen_options(options, token)
    except AstraFlowError as problem:
        print_error(problem)
        return exit_code(problem)

    async def run(stop: asyncio.Event) -> None:
        await serve(
            config,
            dataflow=options.dataflow,
            join_address=options.join_address or options.dataflow,
            token=token,
            authority=options.authority if listen.tls else None,
            listen=listen,
            directory=options.directory,
            stop=stop,
            on_ready=_print_ready,
        )

    return run_process(run)


def read_config(path: Path) -> FleetConfig:
    """Reads the configuration from a TOML file, or from a run's JSON file. Raises: InvalidInput."""
    return FleetConfig.parse(read_values(path), where="")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m maintainer.fleet", description="Starts and stops the instances of a run's pools."
    )
    parser.add_argument("--config", required=True, type=Path, help="TOML file with providers and pools")
    parser.add_argument("--dataflow", required=True, metavar="HOST:PORT", help="the run's dataflow service")
    parser.add_argument("--directory", required=True, type=Path, help="directory of the ledger")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", default=0, type=int, help="port to listen on; 0 takes a free one (default)")
    parser.add_argument("--join-address", default="", metavar="HOST:PORT", help="address where nodes join the run")
    parser.add_argument("--authority", type=Path, metavar="DIR", help="the run's certificate authority")
    parser.add_argument(
        "--tls", action=argparse.BooleanOptionalAction, default=None, help="mutual TLS; beyond loopback by default"
    )
    parser.add_argument("--advertise", action="append", default=[], help="additional host name for the certificate")
    return parser


def _token() -> str:
    token = os.environ.get(TOKEN, "")
    if not token:
        raise InvalidInput(
            f"cannot start the fleet service: the environment variable {TOKEN} is empty; set it to the run token",
            code="fleet.missing_token",
        )
    return token


def _listen_options(options: argparse.Namespace, token: str) -> ListenOptions:
    """Returns the listener's options. Raises: InvalidInput for TLS without the run's authority."""
    authority = Authority.load(options.authority) if options.authority is not None else None
    is_tls = not is_loopback(options.host) if options.tls is None else options.tls
    if is_tls and authority is None:
        raise InvalidInput(
            "cannot listen with TLS: no certificate authority; pass the run's folder `authority` as --authority",
            code="fleet.missing_authority",
        )
    tls = authority_tls(authority, options.host, tuple(options.advertise)) if is_tls and authority is not None else None
    return ListenOptions(host=options.host, port=options.port, token=token, tls=tls, authority=authority)


def _print_ready(address: str) -> None:
    print(f"ready {address}", flush=True)  # noqa: T201 (the parent process waits for it)


if __name__ == "__main__":
    sys.exit(main())
