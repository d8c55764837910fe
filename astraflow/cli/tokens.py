"""`astraflow token`: let a node, a trainer or another service join a run, list the tokens, and take them back."""

import asyncio
import getpass
import json
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from astraflow.cli.options import Address, Authority, TlsCa, TlsClientCertificate, TlsClientKey, Token, TokenFile
from astraflow.contract.access import JoinToken, KnownJoinToken
from astraflow.contract.errors import InvalidInput

if TYPE_CHECKING:
    from astraflow.client.control_plane import ControlPlaneClient

T = TypeVar("T")

OWNER_ONLY = "600"


def token(
    address: Address = "",
    pool: Annotated[str, typer.Option(help="For a node: the pool it joins; with --role, the only one to touch.")] = "",
    policy: Annotated[str, typer.Option(help="For a trainer: the policy it trains.")] = "",
    role: Annotated[
        str, typer.Option(help="For a service that is a viewer, operator, agent or page; with --name.")
    ] = "",
    name: Annotated[str, typer.Option(help="Who may use it: the only name a node may take, or a service's.")] = "",
    minutes: Annotated[float, typer.Option(min=0, max=24 * 60, help="How long it is good for.")] = 15.0,
    reusable: Annotated[
        bool, typer.Option("--reusable", help="With --pool: any number of its nodes may join with it, again and again.")
    ] = False,
    hours: Annotated[
        float, typer.Option(min=0, max=30 * 24, help="With --reusable: how long it is good for; 7 days by default.")
    ] = 7 * 24.0,
    uses: Annotated[int, typer.Option(min=0, help="With --reusable: how often it may be used; 0 for no limit.")] = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the token into this file instead of printing it.")
    ] = None,
    mode: Annotated[str, typer.Option(metavar="OCTAL", help="With --out: permissions of the file.")] = OWNER_ONLY,
    reason: Annotated[str, typer.Option(help="Why; it stands in the run's events, with your name.")] = "by hand",
    revoke: Annotated[
        str, typer.Option(metavar="ID|ROLE/NAME", help="Instead: take back a join token, or let a holder in no more.")
    ] = "",
    list_: Annotated[bool, typer.Option("--list", help="Instead: show the join tokens that have not expired.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts: one JSON value.")] = False,
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
    from astraflow.wire.channel import dial

    door = find_run(address, token, token_file)
    tls = client_tls(tls_ca, tls_client_certificate, tls_client_key, authority) or door.tls
    actor = getpass.getuser()

    def asked(call: Callable[["ControlPlaneClient"], Awaitable[T]]) -> T:
        async def answered() -> T:
            async with dial(door.address, token=door.token, tls=tls) as link:
                return await call(ControlPlaneClient(link))

        return asyncio.run(answered())

    if list_:
        _show(asked(lambda client: client.join_tokens()), as_json=as_json)
        return
    if revoke:
        typer.echo(asked(lambda client: _revoke(client, revoke, actor=actor, reason=reason)))
        return
    joins_as = _role(pool=pool, policy=policy, role=role)
    permissions = _permissions(mode)
    if uses and not reusable:
        raise InvalidInput(
            "cannot mint a token for several uses: it is for one use; add --reusable, or leave --uses out"
        )
    minted = asked(
        lambda client: client.mint_join_token(
            joins_as,
            pool=pool,
            name=policy or name,
            valid_s=3600 * hours if reusable else 60 * minutes,
            actor=actor,
            reason=reason,
            is_reusable=reusable,
            most_uses=uses,
        )
    )
    where = f"{door.advertised or door.address.rpartition(':')[0]}:{minted.port}"
    if out is not None:
        _write(out, minted.token, permissions)
    if as_json:
        typer.echo(json.dumps(_said(minted, where, out)))
        return
    until = datetime.fromtimestamp(minted.expires_at).astimezone()
    often = f"Good{f' {uses} times' if uses else ''}" if reusable else "Good once"
    typer.echo(
        f"{often}, until {until:%Y-%m-%d %H:%M:%S}; to take it back: astraflow token --revoke {minted.id}", err=True
    )
    typer.echo(_command(joins_as, policy, where, minted, out))


def _role(*, pool: str, policy: str, role: str) -> str:
    """Who is to join. Raises: InvalidInput when the options name none, or several."""
    chosen = [one for one in ("node" if pool and not role else "", "trainer" if policy else "", role) if one]
    if len(chosen) != 1:
        known = "--pool POOL, --policy POLICY, --role ROLE --name NAME (and --pool POOL)"
        raise InvalidInput(f"say who is to join, one of: {known}")
    return chosen[0]


async def _revoke(client: "ControlPlaneClient", what: str, *, actor: str, reason: str) -> str:
    holder, slash, named = what.partition("/")
    if slash:
        return await client.revoke_credential(holder, named, actor=actor, reason=reason)
    return await client.revoke_join_token(what, actor=actor, reason=reason)


def _command(role: str, policy: str, where: str, minted: JoinToken, out: Path | None) -> str:
    """The command that joins with a token, or where and with what."""
    if role == "trainer":
        secret = f"ASTRAFLOW_TOKEN_FILE={out}" if out else f"ASTRAFLOW_TOKEN={minted.token}"
        return f"{secret} astraflow serve trainer RECIPE --policy {policy} --dataflow {where}"
    if role == "node":
        return f"astraflow join {where} " + (f"--token-file {out}" if out else f"--token {minted.token}")
    return f"{where} {out or minted.token}"


def _said(minted: JoinToken, where: str, out: Path | None) -> dict[str, object]:
    secret = {"file": str(out)} if out else {"token": minted.token}
    return {"address": where, **secret, "id": minted.id, "expires_at": minted.expires_at}


def _show(tokens: Iterable[KnownJoinToken], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([asdict(token) for token in tokens]))
        return
    for one in tokens:
        until = datetime.fromtimestamp(one.expires_at).astimezone()
        limit = f" of {one.most_uses}" if one.most_uses else ""
        what = " ".join(filter(None, (one.role, one.name, f"pool {one.pool}" if one.pool else "")))
        kind = "reusable" if one.is_reusable else "single use"
        typer.echo(f"{one.id}  {what}  {kind}  {one.state}  used {one.uses}{limit}  until {until:%Y-%m-%d %H:%M:%S}")


def _permissions(mode: str) -> int:
    """Raises: InvalidInput for what is no file mode, or would let everyone change the file."""
    try:
        permissions = int(mode, 8)
    except ValueError:
        permissions = -1
    if not 0o400 <= permissions <= 0o777 or permissions & 0o022 or permissions & 0o111:
        raise InvalidInput(f"cannot write a token with mode {mode[:20]!r}: give octal digits such as 600, 640 or 444")
    return permissions


def _write(file: Path, secret: str, permissions: int) -> None:
    """Replaces the file in one step; until then, only its owner can read it. Raises: InvalidInput."""
    partial = file.with_name(f".{file.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(f"{secret}\n")
            os.fchmod(descriptor, permissions)
            stream.flush()
            os.fsync(descriptor)
        partial.replace(file)
    except OSError as problem:
        raise InvalidInput(f"cannot write the token to {file}: {problem.strerror}; choose another --out") from None
