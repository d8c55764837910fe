"""`astraflow health`: whether a service of a run answers, for whoever starts again what does not."""

from typing import TYPE_CHECKING, Annotated

import typer

from astraflow.cli.options import Authority, TlsCa, TlsClientCertificate, TlsClientKey, TokenFile, read_token

if TYPE_CHECKING:
    from astraflow.wire.channel import Link

ROLES = ("dataflow", "weights", "fleet", "web")

TIMEOUT_S = 10.0


def health(
    role: Annotated[str, typer.Argument(metavar="|".join(ROLES), help="What it is.")],
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="HOST:PORT; of the page https://HOST:PORT.")],
    token_file: TokenFile = None,
    authority: Authority = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """Ask a service for something that it has at hand; ends with 0 when it answers."""
    import asyncio

    from astraflow.cli.roles import client_tls
    from astraflow.contract.errors import InvalidInput
    from astraflow.wire.channel import dial

    tls = client_tls(tls_ca, tls_client_certificate, tls_client_key, authority)

    async def ask() -> None:
        async with dial(address, token=read_token(token_file), tls=tls) as link:
            await _ask(role, link)

    if role not in ROLES:
        raise InvalidInput(f"{role[:40]!r} is nothing that can be asked: {', '.join(ROLES)}")
    if role == "web":
        _ask_page(address, tls.ca if tls is not None else None)
    else:
        asyncio.run(ask())
    typer.echo(f"{role} at {address} answers")


async def _ask(role: str, link: "Link") -> None:
    """Raises: as the clients do."""
    from astraflow.client.control_plane import ControlPlaneClient
    from astraflow.client.fleet_plane import FleetPlaneClient
    from astraflow.client.weight_plane import WeightPlaneClient
    from astraflow.contract.ids import PolicyId

    match role:
        case "dataflow":
            await ControlPlaneClient(link).report()
        case "weights":
            await WeightPlaneClient(link).versions(PolicyId("health"))  # none: the store is asked, not the run
        case _:
            await FleetPlaneClient(link).status()


def _ask_page(address: str, ca: bytes | None) -> None:
    """ca: PEM of who must have signed its certificate; the machine's own authorities when None.

    Raises: InvalidInput for no such address, Unavailable.
    """
    import ssl
    import urllib.error
    import urllib.request
    from urllib.parse import urlsplit

    from astraflow.contract.errors import InvalidInput, Unavailable

    if urlsplit(address).scheme not in ("http", "https"):
        raise InvalidInput(f"{address[:80]!r} is no address of a page, as in https://127.0.0.1:8443")
    trusted = ssl.create_default_context(cadata=ca.decode() if ca is not None else None)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted))
    try:
        with opener.open(f"{address.rstrip('/')}/healthz", timeout=TIMEOUT_S) as reply:
            reply.read()
    except urllib.error.HTTPError as problem:
        problem.close()
        raise Unavailable(f"the page at {address} is not well: it answers {problem.code}") from None
    except OSError as problem:
        raise Unavailable(f"the page at {address} does not answer: {getattr(problem, 'reason', problem)}") from None
