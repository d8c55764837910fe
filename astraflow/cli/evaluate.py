"""`evaluate`: how good is a version? Ask a run, and wait for the answer."""

from typing import Annotated

import typer

from astraflow.cli.options import Address, Authority, TlsCa, TlsClientCertificate, TlsClientKey, Token, TokenFile


def evaluate(
    name: Annotated[str, typer.Argument(help="Name of an evaluation of the run's recipe.")],
    address: Address = "",
    version: Annotated[
        list[str],
        typer.Option(metavar="[POLICY=]VERSION", help="What to evaluate; the newest by default. One for each policy."),
    ] = [],  # noqa: B006 (typer copies it)
    reason: Annotated[str, typer.Option(help="Why, for the journal.")] = "asked on the command line",
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as one JSON object.")] = False,
    token: Token = "",
    token_file: TokenFile = None,
    authority: Authority = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """Evaluate a version beside training, which goes on. Ctrl-C ends the waiting, not the evaluation."""
    from astraflow.cli.local import find_run
    from astraflow.cli.roles import client_tls
    from astraflow.cli.rounds import ask_and_follow

    door = find_run(address, token, token_file)
    tls = client_tls(tls_ca, tls_client_certificate, tls_client_key, authority) or door.tls
    raise typer.Exit(ask_and_follow(door, name, version, tls=tls, reason=reason, as_json=as_json))
