"""Commands that act on a run: `plugins` shows its data algorithms, and has others take over."""

from typing import Annotated

import typer

from astraflow.cli.options import Address, Authority, TlsCa, TlsClientCertificate, TlsClientKey, Token, TokenFile

Flow = Annotated[str, typer.Option(help="Change the selector or the filters of this flow.")]
Policy = Annotated[str, typer.Option(help="Change the sampler of this policy's stream.")]
Selector = Annotated[str, typer.Option(metavar="JSON", help="""Of a flow, as in '{"kind": "greso"}'.""")]
Filters = Annotated[
    str, typer.Option(metavar="JSON", help="""Of a flow, all of them in order, as in '[{"kind": "informative"}]'.""")
]
Sampler = Annotated[
    str, typer.Option(metavar="JSON", help="""Of a policy, as in '{"kind": "replay", "ratio": 0.3}'.""")
]
Reason = Annotated[str, typer.Option(help="Why; it stands in the run's events, with your name. A change needs one.")]


def plugins(
    address: Address = "",
    flow: Flow = "",
    policy: Policy = "",
    selector: Selector = "",
    filters: Filters = "",
    sampler: Sampler = "",
    reason: Reason = "",
    token: Token = "",
    token_file: TokenFile = None,
    authority: Authority = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """Show a run's data algorithms, or have others take over with the next version, without a restart."""
    from astraflow.cli.local import find_run
    from astraflow.cli.plugins import change_plugins, read_change, show_plugins
    from astraflow.cli.roles import client_tls

    change = read_change(flow=flow, policy=policy, selector=selector, filters=filters, sampler=sampler, reason=reason)
    door = find_run(address, token, token_file)
    tls = client_tls(tls_ca, tls_client_certificate, tls_client_key, authority) or door.tls
    if change is None:
        show_plugins(door, tls=tls)
    else:
        change_plugins(door, change, tls=tls)
