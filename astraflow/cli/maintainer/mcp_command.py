"""`astraflow mcp`: serves the maintainer's tools to any agent over MCP."""

from pathlib import Path
from typing import Annotated

import typer

from astraflow.cli.options import Advertise, Authority, TlsCertificate, TlsKey, TokenFile, read_token
from astraflow.contract.errors import InvalidInput

DEFAULT_HTTP = "127.0.0.1:4750"


def mcp(
    is_http: Annotated[bool, typer.Option("--http", help="Serve HTTP with a token instead of stdio.")] = False,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address to listen on, with --http.")] = DEFAULT_HTTP,
    is_read_only: Annotated[bool, typer.Option("--read-only", help="Only tools that read.")] = False,
    is_non_destructive: Annotated[
        bool, typer.Option("--no-destructive", help="Refuse plans that remove nodes.")
    ] = False,
    shows_names: Annotated[
        bool, typer.Option("--show-names", help="Show names of pools, types and regions instead of tokens.")
    ] = False,
    name: Annotated[str, typer.Option(help="Name of the agent in the audit log.")] = "mcp",
    dataflow: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of dataflow; default: the run on this machine.")
    ] = "",
    fleet: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Address of the fleet service; default: the run on this machine."),
    ] = "",
    directory: Annotated[
        Path | None,
        typer.Option(help="Folder for transcripts and the token; default: the folder of the run on this machine."),
    ] = None,
    token_file: TokenFile = None,
    authority: Authority = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    behind_proxy: Annotated[
        str, typer.Option(metavar="URL", help="Public https:// address of a reverse proxy that terminates TLS.")
    ] = "",
    advertise: Advertise = [],  # noqa: B006 (typer copies it)
    shows_settings: Annotated[
        bool, typer.Option("--settings", help="Print a settings file for Claude Code (.claude/settings.json) and exit.")
    ] = False,
    shows_command: Annotated[
        bool,
        typer.Option(
            "--command",
            help="Print a command file for Claude Code (.claude/commands/astraflow-oncall.md) and exit.",
        ),
    ] = False,
) -> None:
    """Serve the fleet tools to an agent such as Claude Code: claude mcp add astraflow -- astraflow mcp."""
    from astraflow.cli.run_endpoints import find_planes
    from astraflow.cli.services.roles import run_maintainer

    if shows_settings and shows_command:
        raise InvalidInput(
            "cannot print two files: --settings and --command each print one; give only one of them",
            code="cli.conflicting_options",
        )
    if shows_settings or shows_command:
        run_maintainer("claude", None, arguments=["settings" if shows_settings else "command"])
    planes = find_planes(dataflow, fleet, read_token(token_file), authority)
    arguments = ["--name", name, *(["--http", listen] if is_http else [])]
    flags = (("--read-only", is_read_only), ("--no-destructive", is_non_destructive), ("--show-names", shows_names))
    arguments += [flag for flag, is_on in flags if is_on]
    for flag, file in (("--tls-certificate", tls_certificate), ("--tls-key", tls_key)):
        arguments += [flag, str(file)] if file is not None else []
    arguments += ["--behind-proxy", behind_proxy] if behind_proxy else []
    arguments += [part for name_or_address in advertise for part in ("--advertise", name_or_address)]
    run_maintainer("mcp", planes, directory=directory or planes.maintainer_directory, arguments=arguments)
