"""Commands that run one role: `astraflow serve ROLE`, and `astraflow join` for a node without a recipe."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from astraflow.cli.option_groups import ClientGroup, JoinGroup, TlsGroup, with_groups
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
    TlsCertificate,
    TlsClientCa,
    TlsKey,
    TokenFile,
    WeightsKey,
    check_recipe,
    read_ca_hash,
    read_token,
    read_weights_key,
)
from astraflow.cli.services import control_commands

if TYPE_CHECKING:
    from astraflow.wire.server import ListenOptions

serve = typer.Typer(name="serve", help="Run one role of a run until it is stopped.", no_args_is_help=True)

EnrollPort = Annotated[
    int, typer.Option(min=0, max=65535, help="With mutual TLS: port where joining processes get their certificate.")
]
Follow = Annotated[
    list[str],
    typer.Option(metavar="HOST:PORT", help="Store or mirror to follow; repeat it in order of preference."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenGroup:
    """Address, credentials and TLS of a service that listens."""

    host: Host = "127.0.0.1"
    port: Port = 0
    token_file: TokenFile = None
    authority: Authority = None
    tls: Tls = None
    advertise: Advertise = field(default_factory=list)
    tls_certificate: TlsCertificate = None
    tls_key: TlsKey = None
    tls_client_ca: TlsClientCa = None

    def options(self, *, enroll_port: int = 0) -> "ListenOptions":
        """Returns the listener's options. Raises: InvalidInput."""
        from astraflow.cli.services.roles import listen_options

        return listen_options(
            self.host,
            self.port,
            read_token(self.token_file),
            certificate=self.tls_certificate,
            key=self.tls_key,
            client_ca=self.tls_client_ca,
            authority=self.authority,
            tls=self.tls,
            advertise=self.advertise,
            enroll_port=enroll_port,
        )


@serve.command()
@with_groups
def dataflow(
    listener: ListenGroup,
    recipe: RecipeArgument,
    weights: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of the weight store for nodes and trainers.")
    ],
    overrides: Overrides = [],  # noqa: B006 (typer copies it)
    run: Annotated[str, typer.Option(help="Name of the run; default: the name of the recipe.")] = "",
    directory: Directory = Path("dataflow"),
    metrics: Metrics = "",
    weights_key: WeightsKey = "",
    enroll_port: EnrollPort = 0,
) -> None:
    """Run the dataflow service: leases tasks, serves batches and accounts for every group."""
    from astraflow.cli.services.roles import run_dataflow

    raise typer.Exit(
        run_dataflow(
            check_recipe(recipe),
            overrides,
            run=run,
            weights=weights,
            directory=directory,
            listen=listener.options(enroll_port=enroll_port),
            metrics=metrics,
            weights_key=read_weights_key(weights_key),
        )
    )


@serve.command()
@with_groups
def weights(
    listener: ListenGroup,
    upstream: TlsGroup,
    recipe: RecipeArgument,
    overrides: Overrides = [],  # noqa: B006 (typer copies it)
    directory: Directory = Path("weights"),
    weights_key: WeightsKey = "",
    follow: Follow = [],  # noqa: B006 (the same)
) -> None:
    """Run the weight store: stores versions and serves them in full or as deltas. With --follow, a mirror."""
    from astraflow.cli.services.roles import run_weights

    raise typer.Exit(
        run_weights(
            check_recipe(recipe),
            overrides,
            directory=directory,
            listen=listener.options(),
            weights_key=read_weights_key(weights_key),
            follow=follow,
            tls=upstream.tls_of(listener.authority) if follow else None,
        )
    )


@serve.command()
@with_groups
def trainer(
    access: ClientGroup,
    recipe: RecipeArgument,
    dataflow: Dataflow,
    overrides: Overrides = [],  # noqa: B006 (typer copies it)
    policy: Annotated[str, typer.Option(help="Policy to train; required if the recipe has several.")] = "",
    directory: Directory = Path("trainer"),
    signing_key: SigningKeyFile = None,
    ca_hash: CaHash = "",
    credential_folder: CredentialFolder = None,
) -> None:
    """Run the trainer of one policy: pulls batches, publishes weights.

    With RANK from 1 in the environment, as torchrun sets it, it runs that rank of the trainer instead.
    """
    from astraflow.cli.services.roles import is_other_rank, run_trainer, run_trainer_rank

    if is_other_rank():
        raise typer.Exit(run_trainer_rank())
    raise typer.Exit(
        run_trainer(
            check_recipe(recipe),
            overrides,
            policy=policy,
            dataflow=dataflow,
            token=access.read_token(),
            tls=access.tls(),
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
@with_groups
def node(
    access: ClientGroup,
    recipe: RecipeArgument,
    dataflow: Dataflow,
    name: Annotated[str, typer.Option(help="Unique name of the node, stable across restarts.")],
    overrides: Overrides = [],  # noqa: B006 (typer copies it)
) -> None:
    """Run a RaaS node with the settings of the recipe."""
    from astraflow.cli.services.roles import recipe_node_config, run_node

    config, tracing = recipe_node_config(check_recipe(recipe), overrides, name=name)
    raise typer.Exit(run_node(config, dataflow=dataflow, token=access.read_token(), tls=access.tls(), tracing=tracing))


@serve.command()
def tinker(
    config: Annotated[Path, typer.Argument(metavar="FILE", help="TOML file with models and tenants.")],
    directory: Directory = Path("tinker"),
    host: Host = "127.0.0.1",
    port: Port = 9300,
) -> None:
    """Serve the Tinker API: tenants train adapters on shared base models through the official SDK."""
    from astraflow.tinker.run import run_tinker

    raise typer.Exit(run_tinker(config, directory, host=host, port=port))


@serve.command()
def model(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Model folder, such as one of `astraflow export`.")],
    engine: Annotated[
        str, typer.Option(metavar="KIND|TABLE", help="Engine, such as sglang, or a TOML table with its options.")
    ] = "local_torch",
    temperature: Annotated[float, typer.Option(min=0.001, help="For calls that name none.")] = 1.0,
    port: Port = 0,
) -> None:
    """Serve a model folder on loopback by the APIs of OpenAI and Anthropic, without a run, until Ctrl-C.

    Prints the base URL, which contains a new key.
    """
    from astraflow.cli.services.roles import run_model

    raise typer.Exit(run_model(folder, engine, temperature=temperature, port=port))


for role in (control_commands.web, control_commands.fleet, control_commands.maintainer):
    serve.command()(role)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Settings of a node that joins without a recipe; None for the default."""

    capacity: Annotated[
        int | None, typer.Option(min=1, help="Upper limit of concurrent episodes; below it, the engine decides.")
    ] = None
    region: Annotated[str | None, typer.Option(help="Region, for the report.")] = None
    price_per_hour: Annotated[float | None, typer.Option(min=0, help="Price per hour in US dollars.")] = None
    drain_s: Annotated[
        float | None, typer.Option(min=0, help="Seconds for running episodes to finish on shutdown.")
    ] = None
    dataflow_timeout_s: Annotated[
        float | None, typer.Option(min=0, help="Exit after so many seconds without an answer from dataflow; 0: never.")
    ] = None


@with_groups
def join(
    access: JoinGroup,
    node: NodeGroup,
    address: Annotated[
        str, typer.Argument(metavar="[ADDRESS]", help="HOST:PORT of dataflow; default: the run on this machine.")
    ] = "",
    engine: Annotated[
        str, typer.Option(help="Kind of engine, or a TOML table with its options; default: the engine of the run.")
    ] = "",
    policies: Annotated[str, typer.Option(help="Policies to serve, separated by commas; default: all.")] = "",
    name: Annotated[str | None, typer.Option(help="Unique name, stable across restarts.")] = None,
    pool: Annotated[str | None, typer.Option(help="Pool of the node; the nodes of a pool are scaled together.")] = None,
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
) -> None:
    """Add this machine to a run as a RaaS node, until Ctrl-C."""
    from astraflow.access.credentials import is_join_token, read_claims
    from astraflow.cli.services.roles import joining_node_config, run_node, stored_credential_name

    endpoint = access.find_run(address)
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
        policies=tuple(policy.strip() for policy in policies.split(",")) if policies else None,
        name=name,
        pool=pool,
        weights_key=read_weights_key(weights_key),
        credential_folder=credential_folder,
        **asdict(node),
    )
    raise typer.Exit(
        run_node(
            config, dataflow=endpoint.address, token=endpoint.token, tls=endpoint.tls, ca_hash=read_ca_hash(ca_hash)
        )
    )
