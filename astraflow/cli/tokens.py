"""`astraflow token`: let a node, a trainer or another service join a run, and take that back."""

import asyncio
import getpass
import json
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, TypeVar

import typer

from astraflow.cli.options import Address, Authority, TlsCa, TlsClientCertificate, TlsClientKey, Token, TokenFile

T = TypeVar("T")


def token(
    address: Address = "",
    pool: Annotated[str, typer.Option(help="For a node: the pool it joins; with --role, the only one to touch.")] = "",
    policy: Annotated[str, typer.Option(help="For a trainer: the policy it trains.")] = "",
    role: Annotated[str, typer.Option(help="For a service that is a viewer, operator or agent; with --name.")] = "",
    name: Annotated[str, typer.Option(help="Who may use it: the only name a node may take, or a service's.")] = "",
    minutes: Annotated[float, typer.Option(min=0, max=24 * 60, help="How long it is good for.")] = 15.0,
    reason: Annotated[str, typer.Option(help="Why; it stands in the run's events, with your name.")] = "by hand",
    revoke: Annotated[
        str, typer.Option(metavar="ID|ROLE/NAME", help="Instead: take back a join token, or let a holder in no more.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For scripts: one JSON object.")] = False,
    token: Token = "",
    token_file: TokenFile = None,
    authority: Authority = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """Mint a join token: good once, for 15 minutes, and for what it says. Prints the command that joins with it."""
    from astraflow.cli.local import find_run
    from astraflow.cli.roles import client_tls
    from astraflow.client.control_plane import ControlPlaneClient
    from astraflow.contract.access import JoinToken
    from astraflow.contract.errors import InvalidInput
    from astraflow.wire.channel import dial

    door = find_run(address, token, token_file)
    tls = client_tls(tls_ca, tls_client_certificate, tls_client_key, authority) or door.tls
    actor = getpass.getuser()

    async def asked(call: Callable[[ControlPlaneClient], Awaitable[T]]) -> T:
        async with dial(door.address, token=door.token, tls=tls) as link:
            return await call(ControlPlaneClient(link))

    async def minted(client: ControlPlaneClient) -> JoinToken:
        chosen = [one for one in ("node" if pool and not role else "", "trainer" if policy else "", role) if one]
        if len(chosen) != 1:
            known = "--pool POOL, --policy POLICY, --role ROLE --name NAME (and --pool POOL)"
            raise InvalidInput(f"say who is to join, one of: {known}")
        return await client.mint_join_token(
            chosen[0], pool=pool, name=policy or name, valid_s=60 * minutes, actor=actor, reason=reason
        )

    async def revoked(client: ControlPlaneClient) -> str:
        holder, slash, named = revoke.partition("/")
        if slash:
            return await client.revoke_credential(holder, named, actor=actor, reason=reason)
        return await client.revoke_join_token(revoke, actor=actor, reason=reason)

    if revoke:
        typer.echo(asyncio.run(asked(revoked)))
        return
    made = asyncio.run(asked(minted))
    where = f"{door.advertised or door.address.rpartition(':')[0]}:{made.port}"
    if as_json:
        typer.echo(json.dumps({"address": where, "token": made.token, "id": made.id, "expires_at": made.expires_at}))
        return
    until = datetime.fromtimestamp(made.expires_at).astimezone()
    typer.echo(f"Good once, until {until:%H:%M:%S}; to take it back: astraflow token --revoke {made.id}", err=True)
    if policy:
        typer.echo(f"ASTRAFLOW_TOKEN={made.token} astraflow serve trainer RECIPE --policy {policy} --dataflow {where}")
    else:
        typer.echo(f"astraflow join {where} --token {made.token}" if pool and not role else f"{where} {made.token}")
