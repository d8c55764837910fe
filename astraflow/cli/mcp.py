"""`astraflow mcp`: the maintainer's tools for any agent, over MCP."""

from pathlib import Path
from typing import Annotated

import typer

from astraflow.cli.options import Advertise, Authority, TlsCertificate, TlsKey, TokenFile, read_token
from astraflow.contract.errors import InvalidInput

DEFAULT_HTTP = "127.0.0.1:4750"


def mcp(
    is_http: Annotated[bool, typer.Option("--http", help="Over HTTP with a token; over stdio by default.")] = False,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where, with --http.")] = DEFAULT_HTTP,
    is_read_only: Annotated[bool, typer.Option("--read-only", help="Only tools that read.")] = False,
    is_sparing: Annotated[
        bool, typer.Option("--no-destructive", help="Nothing takes a node away: plans that would are refused.")
    ] = False,
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
    directory: Annotated[
        Path | None,
        typer.Option(help="For transcripts and the token; that of the run on this machine by default."),
    ] = None,
    token_file: TokenFile = None,
    authority: Authority = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    behind_proxy: Annotated[
        str, typer.Option(metavar="URL", help="Public https:// address of a proxy in front, which speaks TLS.")
    ] = "",
    advertise: Advertise = [],  # noqa: B006 (typer copies it)
    shows_settings: Annotated[
        bool, typer.Option("--settings", help="Print a settings file for Claude Code (.claude/settings.json), and end.")
    ] = False,
    shows_command: Annotated[
        bool,
        typer.Option(
            "--command",
            help="Print a command file for Claude Code (.claude/commands/astraflow-oncall.md), and end.",
        ),
    ] = False,
) -> None:
    """Give an agent (Claude Code, for one) the tools of the fleet: claude mcp add astraflow -- astraflow mcp."""
    from astraflow.cli.local import find_planes
    from astraflow.cli.roles import run_maintainer

    if shows_settings and shows_command:
        raise InvalidInput("--settings and --command print a file each: ask for one at a time")
    if shows_settings or shows_command:
        run_maintainer("claude", None, arguments=["settings" if shows_settings else "command"])
    planes = find_planes(dataflow, fleet, read_token(token_file), authority)
    arguments = ["--name", name, *(["--http", listen] if is_http else [])]
    flags = (("--read-only", is_read_only), ("--no-destructive", is_sparing), ("--show-names", shows_names))
    arguments += [flag for flag, is_on in flags if is_on]
    for flag, file in (("--tls-certificate", tls_certificate), ("--tls-key", tls_key)):
        arguments += [flag, str(file)] if file is not None else []
    arguments += ["--behind-proxy", behind_proxy] if behind_proxy else []
    arguments += [part for called in advertise for part in ("--advertise", called)]
    run_maintainer("mcp", planes, directory=directory or planes.maintainer, arguments=arguments)
