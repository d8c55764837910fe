"""`astraflow evaluate`: starts an evaluation round of a run and waits for its result."""

from typing import Annotated

import typer

from astraflow.cli.options import Address, Authority, TlsCa, TlsClientCertificate, TlsClientKey, Token, TokenFile


def evaluate(
    name: Annotated[str, typer.Argument(help="Name of an evaluation of the run's recipe.")],
    address: Address = "",
    version: Annotated[
        list[str],
        typer.Option(
            metavar="[POLICY=]VERSION", help="Version to evaluate, once for each policy; default: the newest."
        ),
    ] = [],  # noqa: B006 (typer copies it)
    reason: Annotated[str, typer.Option(help="Reason, for the journal.")] = "requested on the command line",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
    token: Token = "",
    token_file: TokenFile = None,
    authority: Authority = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """Evaluate a version while training continues. Ctrl-C ends the waiting, not the evaluation."""
    from astraflow.cli.evaluation_rounds import request_and_follow
    from astraflow.cli.run_endpoints import client_tls, find_run

    endpoint = find_run(address, token, token_file)
    tls = client_tls(tls_ca, tls_client_certificate, tls_client_key, authority) or endpoint.tls
    raise typer.Exit(request_and_follow(endpoint, name, version, tls=tls, reason=reason, as_json=as_json))
