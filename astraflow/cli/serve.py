"""Commands that run one role: `astraflow serve ROLE`, and `astraflow join` for a node without a recipe."""

from pathlib import Path
from typing import Annotated

import typer

from astraflow.cli.options import (
    Advertise,
    Authority,
    CaHash,
    CredentialFolder,
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
    read_ca_hash,
    read_token,
    read_weights_key,
)

serve = typer.Typer(help="Run one role of a run until it is stopped.", no_args_is_help=True)

EnrollPort = Annotated[
    int, typer.Option(min=0, max=65535, help="With mutual TLS: port where joining processes get their certificate.")
]
Dataflow = Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the run's dataflow service.")]
WebDirectory = Annotated[
    Path | None, typer.Option(help="Folder for the persistent state; default: `web` in ASTRAFLOW_HOME.")
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
    from astraflow.cli.roles import listen_options, run_dataflow

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
            recipe,
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
    from astraflow.cli.roles import listen_options, run_weights
    from astraflow.cli.run_endpoints import client_tls

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
            recipe,
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
    from astraflow.cli.roles import is_other_rank, run_trainer, run_trainer_rank
    from astraflow.cli.run_endpoints import client_tls

    if is_other_rank():
        raise typer.Exit(run_trainer_rank())
    tls = client_tls(tls_ca, tls_client_certificate, tls_client_key, authority)
    token = read_token(token_file)
    raise typer.Exit(
        run_trainer(
            recipe,
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
    from astraflow.cli.roles import run_trainer_rank

    raise typer.Exit(run_trainer_rank())


@serve.command()
def web(
    dataflow: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Dataflow service to follow; default: the runs of this machine."),
    ] = "",
    all_runs: Annotated[bool, typer.Option("--all-runs", help="Follow all runs of this machine and user.")] = False,
    fleet: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Fleet service to show and control.")] = None,
    directory: WebDirectory = None,
    host: Host = "127.0.0.1",
    port: Port = 0,
    recipe: Annotated[str, typer.Option(help="Name of the recipe, for display.")] = "",
    run_dir: Annotated[Path | None, typer.Option(help="Run directory, if it is on this machine.")] = None,
    behind_proxy: Annotated[str | None, typer.Option(help="Public https:// address of a reverse proxy.")] = None,
    name: Annotated[str | None, typer.Option(help="Host name that browsers use.")] = None,
    tls_certificate: Annotated[
        str | None, typer.Option(help="Serve TLS with this certificate and chain (PEM).")
    ] = None,
    tls_key: Annotated[str | None, typer.Option(help="Private key of the certificate (PEM).")] = None,
    provider: Annotated[str | None, typer.Option(help="TOML file of an OpenID provider for logins.")] = None,
    recipes: Annotated[
        list[Path],
        typer.Option("--recipes", metavar="DIR", help="Folder with your own recipes to launch; may be repeated."),
    ] = [],  # noqa: B006 (typer copies it)
    data: Annotated[
        list[str],
        typer.Option(
            "--data",
            metavar="LOCATION",
            help="Folder or address (s3://BUCKET/FOLDER) whose data launched runs may read; may be repeated.",
        ),
    ] = [],  # noqa: B006 (the same)
    join_host: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Address of this machine at which launched runs accept remote nodes, over TLS."
        ),
    ] = None,
    join_name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name under which remote nodes reach this machine, if it differs."),
    ] = None,
    reads_a_minute: Annotated[int | None, typer.Option(help="Limit of read requests per session or token.")] = None,
    changes_a_minute: Annotated[int | None, typer.Option(help="Limit of write requests per session or token.")] = None,
    exports_a_minute: Annotated[
        int | None, typer.Option(help="Limit of downloads and launches per session or token.")
    ] = None,
    anonymous_requests_a_minute: Annotated[
        int | None, typer.Option(help="Limit of requests without a login per address.")
    ] = None,
    sockets_a_user: Annotated[int | None, typer.Option(help="Limit of open live pages per user.")] = None,
    token_file: TokenFile = None,
    authority: Authority = None,
    ca_hash: CaHash = "",
    credential_folder: CredentialFolder = None,
) -> None:
    """Run the web page, which shows, controls and launches runs.

    The page authenticates to the fleet service with the run token, or with the token in ASTRAFLOW_FLEET_TOKEN.
    """
    from astraflow.cli.roles import run_web
    from astraflow.runtime.home import home

    options = {
        "fleet": fleet,
        "run-dir": str(run_dir) if run_dir else None,
        "behind-proxy": behind_proxy,
        "name": name,
        "tls-certificate": tls_certificate,
        "tls-key": tls_key,
        "provider": provider,
        "join-host": join_host,
        "join-name": join_name,
        "authority": str(authority) if authority else None,
        "ca-hash": read_ca_hash(ca_hash) or None,
        "credential-folder": str(credential_folder) if credential_folder else None,
        "reads-a-minute": _number_text(reads_a_minute),
        "changes-a-minute": _number_text(changes_a_minute),
        "exports-a-minute": _number_text(exports_a_minute),
        "anonymous-requests-a-minute": _number_text(anonymous_requests_a_minute),
        "sockets-a-user": _number_text(sockets_a_user),
    }
    token = read_token(token_file)
    flags = ["--all-runs"] if all_runs or not dataflow else []
    flags += [part for folder in recipes for part in ("--recipes", str(folder.absolute()))]
    flags += [part for location in data for part in ("--data", location)]
    run_web(
        dataflow=dataflow,
        directory=directory or home() / "web",
        host=host,
        port=port,
        recipe=recipe,
        token=token,
        options=options,
        flags=flags,
    )


@serve.command()
def fleet(
    config: Annotated[Path, typer.Argument(help="TOML file with providers and pools (docs/how-to/fleet.md).")],
    dataflow: Dataflow,
    join_address: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Address where instances join the run; default: the address of dataflow."
        ),
    ] = "",
    directory: Directory = Path("fleet"),
    host: Host = "127.0.0.1",
    port: Port = 0,
    token_file: TokenFile = None,
    authority: Authority = None,
    tls: Tls = None,
    advertise: Advertise = [],  # noqa: B006 (typer copies it)
) -> None:
    """Run the fleet service: starts and terminates instances for a run through providers, checked by a guard."""
    from astraflow.cli.roles import run_fleet

    run_fleet(
        config,
        dataflow=dataflow,
        join_address=join_address,
        directory=directory,
        host=host,
        port=port,
        token=read_token(token_file),
        authority=authority,
        tls=tls,
        advertise=advertise,
    )


@serve.command()
def maintainer(
    config: Annotated[
        Path | None, typer.Argument(help="TOML file with model, mode and budgets (docs/how-to/maintainer.md).")
    ] = None,
    dataflow: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the run's dataflow service.")] = "",
    fleet: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the run's fleet service.")] = "",
    directory: Directory = Path("maintainer-state"),
    token_file: TokenFile = None,
    authority: Authority = None,
) -> None:
    """Run the maintainer: scales pools with an LLM, within the guard of the fleet service."""
    from astraflow.cli.roles import run_maintainer
    from astraflow.cli.run_endpoints import find_planes

    planes = find_planes(dataflow, fleet, read_token(token_file), authority)
    run_maintainer("run", planes, config=config, directory=directory)


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
    from astraflow.cli.roles import recipe_node_config, run_node
    from astraflow.cli.run_endpoints import client_tls

    tls = client_tls(tls_ca, tls_client_certificate, tls_client_key, authority)
    config, tracing = recipe_node_config(recipe, overrides, name=name)
    token = read_token(token_file)
    raise typer.Exit(run_node(config, dataflow=dataflow, token=token, tls=tls, tracing=tracing))


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
    from astraflow.cli.roles import joining_node_config, run_node, stored_credential_name
    from astraflow.cli.run_endpoints import client_tls, find_run

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


def _number_text(number: int | None) -> str | None:
    return None if number is None else str(number)
