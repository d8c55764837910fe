"""Commands that run one role: `astraflow serve ROLE`, and `astraflow join` for a node without a recipe."""

from pathlib import Path
from typing import Annotated

import typer

from astraflow.cli.options import (
    Advertise,
    Authority,
    CaHash,
    CredentialFolder,
    Dataflow,
    Directory,
    Host,
    Metrics,
    Overrides,
    Port,
    RecipeArgument,
    SigningKeyFile,
    Tls,
    TlsCa,
    TlsCertificate,
    TlsClientCa,
    TlsClientCertificate,
    TlsClientKey,
    TlsKey,
    Token,
    TokenFile,
    WeightsKey,
    check_recipe,
    read_ca_hash,
    read_token,
    read_weights_key,
)
from astraflow.cli.services import control_commands

serve = typer.Typer(help="Run one role of a run until it is stopped.", no_args_is_help=True)

EnrollPort = Annotated[
    int, typer.Option(min=0, max=65535, help="With mutual TLS: port where joining processes get their certificate.")
]
Follow = Annotated[
    list[str],
    typer.Option(metavar="HOST:PORT", help="Store or mirror to follow; repeat it in order of preference."),
]


@serve.command()
def dataflow(
    recipe: RecipeArgument,
    weights: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of the weight store for nodes and trainers.")
    ],
    overrides: Overrides = [],  # noqa: B006 (typer copies it)
    run: Annotated[str, typer.Option(help="Name of the run; default: the name of the recipe.")] = "",
    directory: Directory = Path("dataflow"),
    host: Host = "127.0.0.1",
    port: Port = 0,
    metrics: Metrics = "",
    weights_key: WeightsKey = "",
    token_file: TokenFile = None,
    authority: Authority = None,
    tls: Tls = None,
    advertise: Advertise = [],  # noqa: B006 (typer copies it)
    enroll_port: EnrollPort = 0,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_client_ca: TlsClientCa = None,
) -> None:
    """Run the dataflow service: leases tasks, serves batches and accounts for every group."""
    from astraflow.cli.services.roles import listen_options, run_dataflow

    listen = listen_options(
        host,
        port,
        read_token(token_file),
        certificate=tls_certificate,
        key=tls_key,
        client_ca=tls_client_ca,
        authority=authority,
        tls=tls,
        advertise=advertise,
        enroll_port=enroll_port,
    )
    raise typer.Exit(
        run_dataflow(
            check_recipe(recipe),
            overrides,
            run=run,
            weights=weights,
            directory=directory,
            listen=listen,
            metrics=metrics,
            weights_key=read_weights_key(weights_key),
        )
    )


@serve.command()
def weights(
    recipe: RecipeArgument,
    overrides: Overrides = [],  # noqa: B006 (typer copies it)
    directory: Directory = Path("weights"),
    host: Host = "127.0.0.1",
    port: Port = 0,
    weights_key: WeightsKey = "",
    follow: Follow = [],  # noqa: B006 (the same)
    token_file: TokenFile = None,
    authority: Authority = None,
    tls: Tls = None,
    advertise: Advertise = [],  # noqa: B006 (typer copies it)
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_client_ca: TlsClientCa = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """Run the weight store: stores versions and serves them in full or as deltas. With --follow, a mirror."""
    from astraflow.cli.run_endpoints import client_tls
    from astraflow.cli.services.roles import listen_options, run_weights

    listen = listen_options(
        host,
        port,
        read_token(token_file),
        certificate=tls_certificate,
        key=tls_key,
        client_ca=tls_client_ca,
        authority=authority,
        tls=tls,
        advertise=advertise,
    )
    upstream_tls = client_tls(tls_ca, tls_client_certificate, tls_client_key, authority) if follow else None
    raise typer.Exit(
        run_weights(
            check_recipe(recipe),
            overrides,
            directory=directory,
            listen=listen,
            weights_key=read_weights_key(weights_key),
            follow=follow,
            tls=upstream_tls,
        )
    )


@serve.command()
def trainer(
    recipe: RecipeArgument,
    dataflow: Dataflow,
    overrides: Overrides = [],  # noqa: B006 (typer copies it)
    policy: Annotated[str, typer.Option(help="Policy to train; required if the recipe has several.")] = "",
    directory: Directory = Path("trainer"),
    signing_key: SigningKeyFile = None,
    token_file: TokenFile = None,
    authority: Authority = None,
    ca_hash: CaHash = "",
    credential_folder: CredentialFolder = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """Run the trainer of one policy: pulls batches, publishes weights.

    With RANK from 1 in the environment, as torchrun sets it, it runs that rank of the trainer instead.
    """
    from astraflow.cli.run_endpoints import client_tls
    from astraflow.cli.services.roles import is_other_rank, run_trainer, run_trainer_rank

    if is_other_rank():
        raise typer.Exit(run_trainer_rank())
    tls = client_tls(tls_ca, tls_client_certificate, tls_client_key, authority)
    token = read_token(token_file)
    raise typer.Exit(
        run_trainer(
            check_recipe(recipe),
            overrides,
            policy=policy,
            dataflow=dataflow,
            token=token,
            tls=tls,
            ca_hash=read_ca_hash(ca_hash),
            credential_folder=credential_folder,
            directory=directory,
            signing_key=signing_key,
        )
    )


@serve.command()
def trainer_rank() -> None:
    """Run a rank of a trainer with several ranks, other than the first.

    Reads RANK (from 1), WORLD_SIZE, MASTER_ADDR and MASTER_PORT from the environment, and everything else from rank 0,
    which is the trainer itself.
    """
    from astraflow.cli.services.roles import run_trainer_rank

    raise typer.Exit(run_trainer_rank())


@serve.command()
def node(
    recipe: RecipeArgument,
    dataflow: Dataflow,
    name: Annotated[str, typer.Option(help="Unique name of the node, stable across restarts.")],
    overrides: Overrides = [],  # noqa: B006 (typer copies it)
    token_file: TokenFile = None,
    authority: Authority = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """Run a RaaS node with the settings of the recipe."""
    from astraflow.cli.run_endpoints import client_tls
    from astraflow.cli.services.roles import recipe_node_config, run_node

    tls = client_tls(tls_ca, tls_client_certificate, tls_client_key, authority)
    config, tracing = recipe_node_config(check_recipe(recipe), overrides, name=name)
    token = read_token(token_file)
    raise typer.Exit(run_node(config, dataflow=dataflow, token=token, tls=tls, tracing=tracing))


for role in (control_commands.web, control_commands.fleet, control_commands.maintainer):
    serve.command()(role)


def join(
    address: Annotated[
        str, typer.Argument(metavar="[ADDRESS]", help="HOST:PORT of dataflow; default: the run on this machine.")
    ] = "",
    token: Token = "",
    token_file: TokenFile = None,
    engine: Annotated[
        str, typer.Option(help="Kind of engine, or a TOML table with its options; default: the engine of the run.")
    ] = "",
    capacity: Annotated[
        int | None, typer.Option(min=1, help="Upper limit of concurrent episodes; below it, the engine decides.")
    ] = None,
    policies: Annotated[str, typer.Option(help="Policies to serve, separated by commas; default: all.")] = "",
    name: Annotated[str | None, typer.Option(help="Unique name, stable across restarts.")] = None,
    pool: Annotated[str | None, typer.Option(help="Pool of the node; the nodes of a pool are scaled together.")] = None,
    region: Annotated[str | None, typer.Option(help="Region, for the report.")] = None,
    price_per_hour: Annotated[float | None, typer.Option(min=0, help="Price per hour in US dollars.")] = None,
    drain_s: Annotated[
        float | None, typer.Option(min=0, help="Seconds for running episodes to finish on shutdown.")
    ] = None,
    dataflow_timeout_s: Annotated[
        float | None, typer.Option(min=0, help="Exit after so many seconds without an answer from dataflow; 0: never.")
    ] = None,
    preemption: Annotated[
        str, typer.Option(help="Source of preemption notices: http for EC2, or a TOML table with options.")
    ] = "",
    weights_key: WeightsKey = "",
    ca_hash: CaHash = "",
    credential_folder: CredentialFolder = None,
    pull: Annotated[
        str,
        typer.Option(help="Weight transfer settings as a TOML table: {sources = ['mirror:7000'], connections = 2}."),
    ] = "",
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """Add this machine to a run as a RaaS node, until Ctrl-C."""
    from astraflow.access.credentials import is_join_token, read_claims
    from astraflow.cli.run_endpoints import client_tls, find_run
    from astraflow.cli.services.roles import joining_node_config, run_node, stored_credential_name

    endpoint = find_run(address, token, token_file)
    tls = client_tls(tls_ca, tls_client_certificate, tls_client_key) or endpoint.tls
    if is_join_token(endpoint.token):  # a join token names a pool and optionally a node
        claims = read_claims(endpoint.token)
        pool, name = (
            pool or claims.pool,
            name or claims.name or (stored_credential_name(credential_folder) if credential_folder else None),
        )
    config = joining_node_config(
        engine=engine,
        preemption=preemption,
        pull=pull,
        capacity=capacity,
        policies=tuple(policy.strip() for policy in policies.split(",")) if policies else None,
        name=name,
        pool=pool,
        region=region,
        price_per_hour=price_per_hour,
        drain_s=drain_s,
        weights_key=read_weights_key(weights_key),
        dataflow_timeout_s=dataflow_timeout_s,
        credential_folder=credential_folder,
    )
    raise typer.Exit(
        run_node(config, dataflow=endpoint.address, token=endpoint.token, tls=tls, ca_hash=read_ca_hash(ca_hash))
    )
