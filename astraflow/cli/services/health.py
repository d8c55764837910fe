"""`astraflow health`: health check of a service, for service managers that restart it."""

from typing import TYPE_CHECKING, Annotated

import typer

from astraflow.cli.option_groups import ClientGroup, with_groups

if TYPE_CHECKING:
    from astraflow.wire.channel import ServiceChannel

ROLES = ("dataflow", "weights", "fleet", "web")

TIMEOUT_S = 10.0


@with_groups
def health(
    access: ClientGroup,
    role: Annotated[str, typer.Argument(metavar="|".join(ROLES), help="Role of the service.")],
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="HOST:PORT; for web https://HOST:PORT.")],
) -> None:
    """Check that a service answers; exit with code 0 if it does."""
    import asyncio

    from astraflow.contract.errors import InvalidInput
    from astraflow.wire.channel import dial

    tls = access.tls()

    async def check() -> None:
        async with dial(address, token=access.read_token(), tls=tls) as link:
            await _check_service(role, link)

    if role not in ROLES:
        raise InvalidInput(
            f"cannot check {role[:40]!r}: it is not a role with a health check; use one of {', '.join(ROLES)}",
            code="cli.unknown_role",
        )
    if role == "web":
        _check_page(address, tls.ca if tls is not None else None)
    else:
        asyncio.run(check())
    typer.echo(f"{role} at {address} answers")


async def _check_service(role: str, link: "ServiceChannel") -> None:
    """Makes one cheap call. Raises: the errors of the client."""
    match role:  # each client takes a tenth of a second to import
        case "dataflow":
            from astraflow.client.control_plane import ControlPlaneClient

            await ControlPlaneClient(link).report()
        case "weights":
            from astraflow.client.weight_plane import WeightPlaneClient
            from astraflow.contract.ids import PolicyId

            # an unknown policy has no versions, but the store answers
            await WeightPlaneClient(link).versions(PolicyId("health"))
        case _:
            from astraflow.client.fleet_plane import FleetPlaneClient

            await FleetPlaneClient(link).status()


def _check_page(address: str, ca: bytes | None) -> None:
    """Checks that the page answers. ca: PEM of the authority of its certificate; the system's authorities when None.

    Raises: InvalidInput for an invalid address, Unavailable.
    """
    import ssl
    import urllib.error
    import urllib.request
    from urllib.parse import urlsplit

    from astraflow.contract.errors import InvalidInput, Unavailable

    if urlsplit(address).scheme not in ("http", "https"):
        raise InvalidInput(
            f"cannot check {address[:80]!r}: it is not a web address; use the form https://127.0.0.1:8443",
            code="cli.invalid_web_address",
        )
    trusted = ssl.create_default_context(cadata=ca.decode() if ca is not None else None)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted))
    try:
        with opener.open(f"{address.rstrip('/')}/healthz", timeout=TIMEOUT_S) as reply:
            reply.read()
    except urllib.error.HTTPError as problem:
        problem.close()
        raise Unavailable(
            f"cannot use the page at {address!r}: it answered with status {problem.code}; read its log",
            code="page.unhealthy",
        ) from None
    except OSError as problem:
        cause = getattr(problem, "reason", problem)
        raise Unavailable(
            f"cannot reach the page at {address!r}: {cause}; check that it runs and the address",
            code="page.unreachable",
        ) from None
