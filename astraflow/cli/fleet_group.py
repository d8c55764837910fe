"""`astraflow fleet`: look at pools and change them, straight at the fleet service: the page may be away."""

from typing import Annotated

import typer

from astraflow.cli.options import Authority, TlsCa, TlsClientCertificate, TlsClientKey, Token, TokenFile

fleet = typer.Typer(
    help="Look at the machines of a run, and change how many there are.",
    no_args_is_help=True,
    add_completion=False,
)

At = Annotated[
    str,
    typer.Option("--at", metavar="HOST:PORT", help="The fleet service; by default that of the run on this machine."),
]
Json = Annotated[bool, typer.Option("--json", help="For scripts: one JSON value.")]
PoolName = Annotated[str, typer.Argument(help="Name of the pool.")]
PoolOption = Annotated[str, typer.Option("--pool", help="Of this pool only.")]
Reason = Annotated[str, typer.Option(help="Why; the journal keeps it with your name.")]
Key = Annotated[
    str,
    typer.Option(help="Idempotency key of an earlier try: what was done already is not done again."),
]


@fleet.command()
def status(
    at: At = "",
    as_json: Json = False,
    token: Token = "",
    token_file: TokenFile = None,
    authority: Authority = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """Pools: what there is, what is wanted, what it costs; the kill switch; what needs a person."""
    from astraflow.cli import fleet_calls, fleet_tables

    door = fleet_calls.find_fleet(at, token, token_file, authority, tls_ca, tls_client_certificate, tls_client_key)
    fleet_tables.show(fleet_calls.ask(door, lambda client: client.status()), fleet_tables.status_table, as_json=as_json)


@fleet.command()
def plan(
    pool: PoolName,
    reason: Reason,
    target: Annotated[int | None, typer.Option(min=0, help="Nodes it is to have.")] = None,
    retire: Annotated[list[str], typer.Option(metavar="ID", help="Instead: machines that are to go.")] = [],  # noqa: B006 (typer copies it)
    kill: Annotated[bool, typer.Option("--kill", help="Without a drain; for admins.")] = False,
    at: At = "",
    as_json: Json = False,
    token: Token = "",
    token_file: TokenFile = None,
    authority: Authority = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """What a change would do: launches, victims, time, dollars, and what the guard finds. Nothing happens."""
    from astraflow.cli import fleet_calls, fleet_tables

    door = fleet_calls.find_fleet(at, token, token_file, authority, tls_ca, tls_client_certificate, tls_client_key)
    asked = fleet_calls.plan_request(pool, target=target, retire=retire, is_kill=kill, reason=reason)
    made = fleet_calls.ask(door, lambda client: client.plan(asked))
    fleet_tables.show(made, fleet_tables.plan_table, as_json=as_json)


@fleet.command()
def apply(
    plan: Annotated[str, typer.Argument(help="Id of the plan, as `astraflow fleet plan` prints it.")],
    key: Key = "",
    at: At = "",
    as_json: Json = False,
    token: Token = "",
    token_file: TokenFile = None,
    authority: Authority = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """Do what was planned, within five minutes of it; applying is agreeing to it."""
    from astraflow.cli import fleet_calls, fleet_tables

    door = fleet_calls.find_fleet(at, token, token_file, authority, tls_ca, tls_client_certificate, tls_client_key)
    done = fleet_calls.apply(door, plan, key=key)
    fleet_tables.show(done, fleet_tables.applied_line, as_json=as_json)


@fleet.command()
def hold(
    pool: PoolName,
    reason: Reason,
    minutes: Annotated[float, typer.Option(min=0, max=60, help="For how long; 0 ends a hold.")] = 30.0,
    key: Key = "",
    at: At = "",
    as_json: Json = False,
    token: Token = "",
    token_file: TokenFile = None,
    authority: Authority = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """Take no node of a pool away for so long."""
    from astraflow.cli import fleet_calls, fleet_tables

    door = fleet_calls.find_fleet(at, token, token_file, authority, tls_ca, tls_client_certificate, tls_client_key)
    done = fleet_calls.hold(door, pool, minutes=minutes, key=key, reason=reason)
    fleet_tables.show(done, fleet_tables.decision_line, as_json=as_json)


@fleet.command()
def kill(
    switch: Annotated[str, typer.Argument(metavar="on|off", help="On stops changes of pools; the run goes on.")],
    reason: Reason,
    agents: Annotated[bool, typer.Option("--agents", help="With on: stop programs only.")] = False,
    key: Key = "",
    at: At = "",
    as_json: Json = False,
    token: Token = "",
    token_file: TokenFile = None,
    authority: Authority = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """The kill switch: nothing is started or ended while it is on."""
    from astraflow.cli import fleet_calls, fleet_tables

    scope = fleet_calls.kill_scope(switch, agents=agents)
    door = fleet_calls.find_fleet(at, token, token_file, authority, tls_ca, tls_client_certificate, tls_client_key)
    done = fleet_calls.kill_switch(door, scope, key=key, reason=reason)
    fleet_tables.show(done, fleet_tables.decision_line, as_json=as_json)


@fleet.command()
def instances(
    pool: PoolOption = "",
    gone: Annotated[bool, typer.Option("--gone", help="Those that ended too.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many, the newest.")] = 100,
    at: At = "",
    as_json: Json = False,
    token: Token = "",
    token_file: TokenFile = None,
    authority: Authority = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """The ledger of machines, newest first."""
    from astraflow.cli import fleet_calls, fleet_tables

    door = fleet_calls.find_fleet(at, token, token_file, authority, tls_ca, tls_client_certificate, tls_client_key)
    of_pool = fleet_calls.pool_id(pool)
    found = fleet_calls.ask(door, lambda client: client.instances(pool=of_pool, with_gone=gone, limit=limit))
    fleet_tables.show(found, fleet_tables.instance_table, as_json=as_json)


@fleet.command()
def decisions(
    pool: PoolOption = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many, the newest.")] = 20,
    at: At = "",
    as_json: Json = False,
    token: Token = "",
    token_file: TokenFile = None,
    authority: Authority = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """The journal: who changed what and why, newest first."""
    from astraflow.cli import fleet_calls, fleet_tables

    door = fleet_calls.find_fleet(at, token, token_file, authority, tls_ca, tls_client_certificate, tls_client_key)
    of_pool = fleet_calls.pool_id(pool)
    found = fleet_calls.ask(door, lambda client: client.decisions(pool=of_pool, limit=limit))
    fleet_tables.show(found, fleet_tables.decision_table, as_json=as_json)


@fleet.command()
def providers(
    at: At = "",
    as_json: Json = False,
    token: Token = "",
    token_file: TokenFile = None,
    authority: Authority = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """Where machines come from: kinds, the pools that use them, and what the latest test of each found."""
    from astraflow.cli import fleet_calls, fleet_tables

    door = fleet_calls.find_fleet(at, token, token_file, authority, tls_ca, tls_client_certificate, tls_client_key)
    found = fleet_calls.ask(door, lambda client: client.providers())
    fleet_tables.show(found, fleet_tables.provider_table, as_json=as_json)


@fleet.command()
def test(
    provider: Annotated[str, typer.Argument(help="Name of the provider, as `astraflow fleet providers` lists it.")],
    at: At = "",
    as_json: Json = False,
    token: Token = "",
    token_file: TokenFile = None,
    authority: Authority = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """Ask a provider whether it would do its part; nothing is started. Code 1 where a check fails."""
    from astraflow.cli import fleet_calls, fleet_tables

    door = fleet_calls.find_fleet(at, token, token_file, authority, tls_ca, tls_client_certificate, tls_client_key)
    found = fleet_calls.rehearse(door, provider)
    fleet_tables.show(found, fleet_tables.rehearsal_table, as_json=as_json)
    raise typer.Exit(0 if found.is_ok else 1)
