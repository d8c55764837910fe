"""Commands that show a live run (`report`) or an ended run (`view`)."""

from pathlib import Path
from typing import Annotated

import typer

from astraflow.cli.options import (
    Address,
    Authority,
    Port,
    TlsCa,
    TlsClientCertificate,
    TlsClientKey,
    Token,
    TokenFile,
)


def report(
    address: Address = "",
    once: Annotated[bool, typer.Option("--once", help="Print the current report and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for each report.")] = False,
    token: Token = "",
    token_file: TokenFile = None,
    authority: Authority = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """Watch an active run in the terminal. `astraflow view RUN` shows an ended one."""
    from astraflow.cli.inspection.report_viewer import view
    from astraflow.cli.run_endpoints import client_tls, find_run

    endpoint = find_run(address, token, token_file)
    tls = client_tls(tls_ca, tls_client_certificate, tls_client_key, authority) or endpoint.tls
    raise typer.Exit(view(endpoint, tls=tls, once=once, as_json=as_json))


def view(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Folder or name of a run.")],
    port: Port = 0,
) -> None:
    """Show an ended run: serves its page read-only from a copy of the recorded data, without the services."""
    from astraflow.cli.inspection.archive_viewer import view_archived_run
    from astraflow.cli.run_directory import find_run_folder

    raise typer.Exit(view_archived_run(find_run_folder(run_dir), port=port, print_message=typer.echo))
