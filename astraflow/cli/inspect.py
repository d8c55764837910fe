"""Commands that look: `report` on a run, `recipes` there are, `doctor` about this machine."""

from typing import Annotated

import typer

from astraflow.cli.options import Address, TlsCa, TlsClientCertificate, TlsClientKey, Token, TokenFile


def report(
    address: Address = "",
    once: Annotated[bool, typer.Option("--once", help="Print the report as it is now and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for each report.")] = False,
    token: Token = "",
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """Watch a run in the terminal."""
    from astraflow.cli.local import find_run
    from astraflow.cli.roles import client_tls
    from astraflow.cli.viewer import view

    door = find_run(address, token, token_file)
    tls = client_tls(tls_ca, tls_client_certificate, tls_client_key) or door.tls
    raise typer.Exit(view(door, tls=tls, once=once, as_json=as_json))


def recipes() -> None:
    """List the recipes that come with AstraFlow."""
    from rich.console import Console
    from rich.table import Table

    from astraflow.recipe import find_recipe, packaged_recipes, summary_of

    table = Table("recipe", "what it does", box=None)
    for name in packaged_recipes():
        table.add_row(name, summary_of(find_recipe(name)))
    Console().print(table)


def doctor() -> None:
    """Say what this machine can run, and what is missing."""
    from rich.console import Console

    from astraflow.cli.doctor import examine, table

    findings = examine()
    Console().print(table(findings))
    raise typer.Exit(1 if any(finding.is_needed and not finding.is_good for finding in findings) else 0)
