"""`astraflow token`: tokens with which nodes, trainers and services join a run; `astraflow keys`: keys of a run."""

import getpass
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from astraflow.cli.option_groups import CallGroup, with_groups
from astraflow.cli.options import Address, Json
from astraflow.contract.errors import InvalidInput
from astraflow.contract.nodes import JoinToken, KnownJoinToken
from astraflow.runtime.folders.private_files import write_private

if TYPE_CHECKING:
    from rich.console import RenderableType

    from astraflow.client.control_plane import ControlPlaneClient


OWNER_ONLY = "600"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """Options of the token to create."""

    pool: Annotated[str, typer.Option(help="For a node: its pool; with --role: the only pool it may change.")] = ""
    policy: Annotated[str, typer.Option(help="For a trainer: its policy.")] = ""
    role: Annotated[str, typer.Option(help="For a service: viewer, operator, agent or page; with --name.")] = ""
    name: Annotated[str, typer.Option(help="Name of the service, or the only name that the node may use.")] = ""
    minutes: Annotated[float, typer.Option(min=0, max=24 * 60, help="Validity in minutes.")] = 15.0
    reusable: Annotated[
        bool, typer.Option("--reusable", help="With --pool: any number of nodes may join with it, repeatedly.")
    ] = False
    hours: Annotated[
        float, typer.Option(min=0, max=30 * 24, help="With --reusable: validity in hours; default: 7 days.")
    ] = 7 * 24.0
    uses: Annotated[int, typer.Option(min=0, help="With --reusable: maximum number of uses; 0: no limit.")] = 0
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the token into this file instead of printing it.")
    ] = None
    mode: Annotated[str, typer.Option(metavar="OCTAL", help="With --out: permissions of the file.")] = OWNER_ONLY

    def joins_as(self) -> str:
        """Returns the role that joins. Raises: InvalidInput for options that name none or several, or contradict."""
        role = _role(pool=self.pool, policy=self.policy, role=self.role)
        if self.uses and not self.reusable:
            raise InvalidInput(
                "cannot create a token for several uses: it is for single use; add --reusable, or omit --uses",
                code="token.single_use",
            )
        return role

    async def mint(self, client: "ControlPlaneClient", *, actor: str, reason: str) -> JoinToken:
        """Creates the token at dataflow. Raises: the errors of the client."""
        return await client.mint_join_token(
            self.joins_as(),
            pool=self.pool,
            name=self.policy or self.name,
            valid_s=3600 * self.hours if self.reusable else 60 * self.minutes,
            actor=actor,
            reason=reason,
            is_reusable=self.reusable,
            max_uses=self.uses,
        )

    @property
    def validity(self) -> str:
        """How often the token is valid, as the beginning of a sentence."""
        return f"Valid{f' {self.uses} times' if self.uses else ''}" if self.reusable else "Valid once"


@with_groups
def token(
    access: CallGroup,
    new: NewToken,
    address: Address = "",
    reason: Annotated[str, typer.Option(help="Reason, recorded in the run's events with your name.")] = "by hand",
    revoke: Annotated[
        str, typer.Option(metavar="ID|ROLE/NAME", help="Revoke a join token, or the credential of a holder, instead.")
    ] = "",
    list_: Annotated[bool, typer.Option("--list", help="List the unexpired join tokens instead.")] = False,
    as_json: Json = False,
) -> None:
    """Create a join token, valid once and for 15 minutes by default. Prints the command that joins with it."""
    from astraflow.cli.output import show
    from astraflow.client.control_plane import ControlPlaneClient

    endpoint = access.find_run(address)
    actor = getpass.getuser()
    if list_:
        show(endpoint.call(ControlPlaneClient, lambda client: client.join_tokens()), _token_table, as_json=as_json)
        return
    if revoke:
        typer.echo(
            endpoint.call(ControlPlaneClient, lambda client: _revoke(client, revoke, actor=actor, reason=reason))
        )
        return
    joins_as, permissions = new.joins_as(), _permissions(new.mode)
    minted = endpoint.call(ControlPlaneClient, lambda client: new.mint(client, actor=actor, reason=reason))
    join_address = f"{endpoint.advertised or endpoint.address.rpartition(':')[0]}:{minted.port}"
    if new.out is not None:
        _write(new.out, minted.token, permissions)
    if as_json:
        typer.echo(json.dumps(_token_json(minted, join_address, new.out)))
        return
    typer.echo(_validity_line(minted, new.validity), err=True)
    typer.echo(_command(joins_as, new.policy, join_address, minted, new.out))


def _validity_line(minted: JoinToken, validity: str) -> str:
    until = datetime.fromtimestamp(minted.expires_at).astimezone()
    return f"{validity}, until {until:%Y-%m-%d %H:%M:%S}; to revoke it: astraflow token --revoke {minted.id}"


def _role(*, pool: str, policy: str, role: str) -> str:
    """Returns the role that joins. Raises: InvalidInput when the options name none or several."""
    chosen = [
        role_option
        for role_option in ("node" if pool and not role else "", "trainer" if policy else "", role)
        if role_option
    ]
    if len(chosen) != 1:
        choices = "--pool POOL, --policy POLICY, --role ROLE --name NAME (and --pool POOL)"
        raise InvalidInput(
            f"cannot create a token: the options do not name exactly one role; use one of {choices}",
            code="token.role_required",
        )
    return chosen[0]


async def _revoke(client: "ControlPlaneClient", subject: str, *, actor: str, reason: str) -> str:
    holder, slash, name = subject.partition("/")
    if slash:
        return await client.revoke_credential(holder, name, actor=actor, reason=reason)
    return await client.revoke_join_token(subject, actor=actor, reason=reason)


def _command(role: str, policy: str, where: str, minted: JoinToken, out: Path | None) -> str:
    """Returns the command that joins with a token; for a service, its address and token."""
    if role == "trainer":
        secret = f"ASTRAFLOW_TOKEN_FILE={out}" if out else f"ASTRAFLOW_TOKEN={minted.token}"
        return f"{secret} astraflow serve trainer RECIPE --policy {policy} --dataflow {where}"
    if role == "node":
        return f"astraflow join {where} " + (f"--token-file {out}" if out else f"--token {minted.token}")
    return f"{where} {out or minted.token}"


def _token_json(minted: JoinToken, where: str, out: Path | None) -> dict[str, object]:
    secret = {"file": str(out)} if out else {"token": minted.token}
    return {"address": where, **secret, "id": minted.id, "expires_at": minted.expires_at}


def _token_table(tokens: Iterable[KnownJoinToken]) -> "RenderableType":
    from astraflow.cli.output import Table

    table = Table("token", "role", "name", "pool", "kind", "state", "used", "until", wrapped=())
    for token in tokens:
        until = datetime.fromtimestamp(token.expires_at).astimezone()
        used = f"{token.uses} of {token.max_uses}" if token.max_uses else str(token.uses)
        kind = "reusable" if token.is_reusable else "single use"
        table.add(token.id, token.role, token.name, token.pool, kind, token.state, used, f"{until:%Y-%m-%d %H:%M:%S}")
    return table


def _permissions(mode: str) -> int:
    """Parses a file mode. Raises: InvalidInput for an invalid mode, or a mode that lets other users change the file."""
    try:
        permissions = int(mode, 8)
    except ValueError:
        permissions = -1
    if not 0o400 <= permissions <= 0o777 or permissions & 0o022 or permissions & 0o111:
        raise InvalidInput(
            f"cannot write a token with mode {mode[:20]!r}: it is invalid or lets others change the file; use octal "
            "digits such as 600, 640 or 444",
            code="token.invalid_mode",
        )
    return permissions


def _write(file: Path, secret: str, permissions: int) -> None:
    """Replaces the file atomically; until then, only its owner can read it. Raises: InvalidInput."""
    try:
        write_private(file, f"{secret}\n", permissions=permissions, is_durable=True)
    except OSError as problem:
        raise InvalidInput(
            f"cannot write the token to {str(file)!r}: {problem.strerror}; choose another --out",
            code="storage.unusable",
        ) from None


WORLD_READABLE = 0o644
WORLD_TRAVERSABLE = 0o755


def keys(
    directory: Annotated[
        Path, typer.Argument(help="Folder for the keys, owned by the user of the services; existing keys stay.")
    ],
    run: Annotated[str, typer.Option(help="Name of the run, for the certificate of its authority.")] = "run",
    public: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write the public files there: ca.pem, ca.hash, weights.pub."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create the certificate authority and the signing key of a run, for services that are started separately."""
    from astraflow.access.authority import CERTIFICATE, Authority
    from astraflow.cli.run_directory import SIGNING_KEY, WEIGHTS_KEY, make_signing_key, storage_error
    from astraflow.contract.ids import Name

    run = Name(run)
    folder = directory / "authority"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (directory / SIGNING_KEY).exists():
            make_signing_key(directory)
        if not (folder / CERTIFICATE).exists():  # written last, so a partly written authority is replaced
            Authority.create(folder, run=run)
        authority = Authority.load(folder)
        if public is not None:
            if not public.is_dir():
                public.mkdir(parents=True)
                public.chmod(WORLD_TRAVERSABLE)
            public_files = {"ca.pem": authority.pem.decode(), "ca.hash": authority.pin}
            for name, text in {**public_files, WEIGHTS_KEY: (directory / WEIGHTS_KEY).read_text()}.items():
                write_private(public / name, text)
                (public / name).chmod(WORLD_READABLE)
    except OSError as problem:
        raise storage_error(problem, f"the folder {directory}") from None
    if as_json:
        typer.echo(json.dumps({"folder": str(directory), "ca_hash": authority.pin}))
    else:
        typer.echo(f"{directory} has the authority of the run, {authority.pin}, and the signing key of its versions")
