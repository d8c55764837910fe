"""`astraflow fleet`: inspects and changes pools through the fleet service, without the page."""

from typing import Annotated

import typer

from astraflow.cli.options import Authority, TlsCa, TlsClientCertificate, TlsClientKey, Token, TokenFile

fleet = typer.Typer(
    help="Inspect and scale the pools of a run.",
    no_args_is_help=True,
    add_completion=False,
)

At = Annotated[
    str,
    typer.Option(
        "--address", metavar="HOST:PORT", help="Address of the fleet service; default: the run on this machine."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value, for scripts.")]
PoolName = Annotated[str, typer.Argument(help="Name of the pool.")]
PoolOption = Annotated[str, typer.Option("--pool", help="Only this pool.")]
Reason = Annotated[str, typer.Option(help="Reason, recorded in the audit log with your name.")]
Key = Annotated[
    str,
    typer.Option(help="Idempotency key of an earlier attempt; a change is applied once per key."),
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
    """Show the pools with nodes, targets and costs, the kill switch and open problems."""
    from astraflow.cli.fleet import calls, tables

    endpoint = calls.find_fleet(at, token, token_file, authority, tls_ca, tls_client_certificate, tls_client_key)
    tables.show(calls.ask(endpoint, lambda client: client.status()), tables.status_table, as_json=as_json)


@fleet.command()
def plan(
    pool: PoolName,
    reason: Reason,
    target: Annotated[int | None, typer.Option(min=0, help="Target number of nodes.")] = None,
    retire: Annotated[list[str], typer.Option(metavar="ID", help="Instead of a target: instances to terminate.")] = [],  # noqa: B006 (typer copies it)
    kill: Annotated[bool, typer.Option("--kill", help="Terminate without a drain; for admins.")] = False,
    at: At = "",
    as_json: Json = False,
    token: Token = "",
    token_file: TokenFile = None,
    authority: Authority = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """Plan a change: launches, terminations, duration, cost and the findings of the guard. Changes nothing."""
    from astraflow.cli.fleet import calls, tables

    endpoint = calls.find_fleet(at, token, token_file, authority, tls_ca, tls_client_certificate, tls_client_key)
    request = calls.plan_request(pool, target=target, retire=retire, is_kill=kill, reason=reason)
    new_plan = calls.ask(endpoint, lambda client: client.plan(request))
    tables.show(new_plan, tables.plan_table, as_json=as_json)


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
    """Apply a plan within five minutes of its creation; applying approves it."""
    from astraflow.cli.fleet import calls, tables

    endpoint = calls.find_fleet(at, token, token_file, authority, tls_ca, tls_client_certificate, tls_client_key)
    applied = calls.apply(endpoint, plan, key=key)
    tables.show(applied, tables.applied_line, as_json=as_json)


@fleet.command()
def override(
    pool: PoolName,
    reason: Reason,
    minutes: Annotated[float, typer.Option(min=0, max=60, help="Duration; 0 ends the override.")] = 30.0,
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
    """Set a manual override: no node of the pool is removed for the given time."""
    from astraflow.cli.fleet import calls, tables

    endpoint = calls.find_fleet(at, token, token_file, authority, tls_ca, tls_client_certificate, tls_client_key)
    decision = calls.override(endpoint, pool, minutes=minutes, key=key, reason=reason)
    tables.show(decision, tables.decision_line, as_json=as_json)


@fleet.command()
def kill(
    switch: Annotated[str, typer.Argument(metavar="on|off", help="`on` stops changes of pools; the run continues.")],
    reason: Reason,
    agents: Annotated[bool, typer.Option("--agents", help="With on: stop only agents.")] = False,
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
    """Set the kill switch: while it is on, no instance is started or terminated."""
    from astraflow.cli.fleet import calls, tables

    scope = calls.kill_scope(switch, agents=agents)
    endpoint = calls.find_fleet(at, token, token_file, authority, tls_ca, tls_client_certificate, tls_client_key)
    decision = calls.kill_switch(endpoint, scope, key=key, reason=reason)
    tables.show(decision, tables.decision_line, as_json=as_json)


@fleet.command()
def instances(
    pool: PoolOption = "",
    gone: Annotated[bool, typer.Option("--gone", help="Include terminated instances.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of rows, newest first.")] = 100,
    at: At = "",
    as_json: Json = False,
    token: Token = "",
    token_file: TokenFile = None,
    authority: Authority = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """List the instances, newest first."""
    from astraflow.cli.fleet import calls, tables

    endpoint = calls.find_fleet(at, token, token_file, authority, tls_ca, tls_client_certificate, tls_client_key)
    pool_id = calls.pool_id(pool)
    rows = calls.ask(endpoint, lambda client: client.instances(pool=pool_id, with_gone=gone, limit=limit))
    tables.show(rows, tables.instance_table, as_json=as_json)


@fleet.command()
def decisions(
    pool: PoolOption = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of rows, newest first.")] = 20,
    at: At = "",
    as_json: Json = False,
    token: Token = "",
    token_file: TokenFile = None,
    authority: Authority = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """List the decisions in the audit log: actor, change and reason, newest first."""
    from astraflow.cli.fleet import calls, tables

    endpoint = calls.find_fleet(at, token, token_file, authority, tls_ca, tls_client_certificate, tls_client_key)
    pool_id = calls.pool_id(pool)
    rows = calls.ask(endpoint, lambda client: client.decisions(pool=pool_id, limit=limit))
    tables.show(rows, tables.decision_table, as_json=as_json)


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
    """List the providers: kind, pools and result of the latest preflight check."""
    from astraflow.cli.fleet import calls, tables

    endpoint = calls.find_fleet(at, token, token_file, authority, tls_ca, tls_client_certificate, tls_client_key)
    facts = calls.ask(endpoint, lambda client: client.providers())
    tables.show(facts, tables.provider_table, as_json=as_json)


@fleet.command()
def preflight(
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
    """Run the preflight check of a provider, without starting an instance. Exit with code 1 if a check fails."""
    from astraflow.cli.fleet import calls, tables

    endpoint = calls.find_fleet(at, token, token_file, authority, tls_ca, tls_client_certificate, tls_client_key)
    result = calls.preflight(endpoint, provider)
    tables.show(result, tables.preflight_table, as_json=as_json)
    raise typer.Exit(0 if result.is_ok else 1)
