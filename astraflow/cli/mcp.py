"""`astraflow mcp`: the maintainer's tools for any agent, over MCP."""

from pathlib import Path
from typing import Annotated

import typer

from astraflow.cli.options import Advertise, Authority, Directory, TlsCertificate, TlsKey, TokenFile, read_token

DEFAULT_HTTP = "127.0.0.1:4750"


def mcp(
    is_http: Annotated[bool, typer.Option("--http", help="Over HTTP with a token; over stdio by default.")] = False,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where, with --http.")] = DEFAULT_HTTP,
    is_read_only: Annotated[bool, typer.Option("--read-only", help="Only tools that read.")] = False,
    shows_names: Annotated[
        bool, typer.Option("--show-names", help="Pools, types and regions by their names, not by tokens.")
    ] = False,
    name: Annotated[str, typer.Option(help="Of the agent, in the journal.")] = "mcp",
    dataflow: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of dataflow; of the run on this machine by default.")
    ] = "",
    fleet: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Address of the fleet service; of the run on this machine by default."),
    ] = "",
    directory: Directory = Path("maintainer-state"),
    token_file: TokenFile = None,
    authority: Authority = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    behind_proxy: Annotated[
        str, typer.Option(metavar="URL", help="Public https:// address of a proxy in front, which speaks TLS.")
    ] = "",
    advertise: Advertise = [],  # noqa: B006 (typer copies it)
) -> None:
    """Give an agent (Claude Code, for one) the tools of the fleet: claude mcp add astraflow -- astraflow mcp."""
    from astraflow.cli.local import find_planes
    from astraflow.cli.roles import run_maintainer

    planes = find_planes(dataflow, fleet, read_token(token_file), authority)
    arguments = ["--name", name, *(["--http", listen] if is_http else [])]
    arguments += [flag for flag, is_on in (("--read-only", is_read_only), ("--show-names", shows_names)) if is_on]
    for flag, file in (("--tls-certificate", tls_certificate), ("--tls-key", tls_key)):
        arguments += [flag, str(file)] if file is not None else []
    arguments += ["--behind-proxy", behind_proxy] if behind_proxy else []
    arguments += [part for called in advertise for part in ("--advertise", called)]
    run_maintainer("mcp", planes, directory=directory if is_http else None, arguments=arguments)
