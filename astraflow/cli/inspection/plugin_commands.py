"""`astraflow plugins`: shows and changes the data algorithms of a run."""

from typing import Annotated

import typer

from astraflow.cli.options import Address, Authority, TlsCa, TlsClientCertificate, TlsClientKey, Token, TokenFile

Flow = Annotated[str, typer.Option(help="Change the selector or the filters of this flow.")]
Policy = Annotated[str, typer.Option(help="Change the sampler of this policy's stream.")]
Selector = Annotated[str, typer.Option(metavar="JSON", help="""Selector of a flow, such as '{"kind": "greso"}'.""")]
Filters = Annotated[
    str, typer.Option(metavar="JSON", help="""All filters of a flow in order, such as '[{"kind": "informative"}]'.""")
]
Sampler = Annotated[
    str, typer.Option(metavar="JSON", help="""Sampler of a policy, such as '{"kind": "replay", "ratio": 0.3}'.""")
]
File = Annotated[
    str, typer.Option(metavar="FILE", help="Python file on the host of dataflow that registers the new plugins.")
]
Reason = Annotated[
    str, typer.Option(help="Reason, recorded in the run's events with your name; required for a change.")
]


def plugins(
    address: Address = "",
    flow: Flow = "",
    policy: Policy = "",
    selector: Selector = "",
    filters: Filters = "",
    sampler: Sampler = "",
    file: File = "",
    reason: Reason = "",
    token: Token = "",
    token_file: TokenFile = None,
    authority: Authority = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """Show the data algorithms of a run, or change them from the next version on, without a restart."""
    from astraflow.cli.inspection.plugins import change_plugins, read_change, show_plugins
    from astraflow.cli.run_endpoints import client_tls, find_run

    change = read_change(
        flow=flow, policy=policy, selector=selector, filters=filters, sampler=sampler, file=file, reason=reason
    )
    endpoint = find_run(address, token, token_file)
    tls = client_tls(tls_ca, tls_client_certificate, tls_client_key, authority) or endpoint.tls
    if change is None:
        show_plugins(endpoint, tls=tls)
    else:
        change_plugins(endpoint, change, tls=tls)
