"""Commands that run one role: `astraflow serve ROLE`, and `astraflow join` for a node by hand."""

from pathlib import Path
from typing import Annotated

import typer

from astraflow.cli.options import (
    Advertise,
    Authority,
    CaHash,
    Directory,
    Host,
    Keep,
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
    read_pin,
    read_token,
    read_weights_key,
)

serve = typer.Typer(help="Run one role of a run, until it is told to stop.", no_args_is_help=True)

EnrollPort = Annotated[
    int, typer.Option(min=0, max=65535, help="With mutual TLS: port where those who join get their certificate.")
]
Dataflow = Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the run's dataflow service.")]
WebDirectory = Annotated[
    Path | None, typer.Option(help="Where it keeps what must survive a restart; `web` in ASTRAFLOW_HOME by default.")
]
Follow = Annotated[
    list[str],
    typer.Option(metavar="HOST:PORT", help="A store or mirror to follow; several in order of preference, one each."),
]


@serve.command()
def dataflow(
    recipe: RecipeArgument,
    weights: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the weight store, as others reach it.")],
    overrides: Overrides = [],  # noqa: B006 (typer copies it)
    run: Annotated[str, typer.Option(help="Name of the run; the recipe's by default.")] = "",
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
    """The dataflow service: hands out tasks, serves batches, keeps the ledger."""
    from astraflow.cli.roles import listening, run_dataflow

    listen = listening(
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
    """The weight store: keeps versions and serves them whole or as deltas. With --follow, a mirror of another one."""
    from astraflow.cli.roles import client_tls, listening, run_weights

    listen = listening(
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
    policy: Annotated[str, typer.Option(help="The policy to train; needed when the recipe has several.")] = "",
    directory: Directory = Path("trainer"),
    signing_key: SigningKeyFile = None,
    token_file: TokenFile = None,
    authority: Authority = None,
    ca_hash: CaHash = "",
    keep: Keep = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """The trainer of one policy: pulls batches, publishes weights."""
    from astraflow.cli.roles import client_tls, run_trainer

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
            ca_hash=read_pin(ca_hash),
            keep=keep,
            directory=directory,
            signing_key=signing_key,
        )
    )


@serve.command()
def web(
    dataflow: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="The dataflow to follow; none: the runs of this machine."),
    ] = "",
    all_runs: Annotated[bool, typer.Option("--all-runs", help="Follow all runs of this machine and user.")] = False,
    fleet: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="The fleet service to show and steer.")] = None,
    directory: WebDirectory = None,
    host: Host = "127.0.0.1",
    port: Port = 0,
    recipe: Annotated[str, typer.Option(help="Name of the recipe, to show.")] = "",
    run_dir: Annotated[Path | None, typer.Option(help="The run's directory, if it is on this machine.")] = None,
    behind_proxy: Annotated[str | None, typer.Option(help="Public https:// address of a proxy in front.")] = None,
    name: Annotated[str | None, typer.Option(help="A host name that browsers use.")] = None,
    tls_certificate: Annotated[str | None, typer.Option(help="Certificate and chain, PEM: speak TLS.")] = None,
    tls_key: Annotated[str | None, typer.Option(help="Its private key, PEM.")] = None,
    provider: Annotated[str | None, typer.Option(help="TOML file about an OpenID provider to log in by.")] = None,
    recipes: Annotated[
        list[Path],
        typer.Option("--recipes", metavar="DIR", help="A folder with recipes of your own to launch; may be repeated."),
    ] = [],  # noqa: B006 (typer copies it)
    data: Annotated[
        list[str],
        typer.Option(
            "--data",
            metavar="PLACE",
            help="A folder or address (s3://BUCKET/FOLDER) whose data launched runs may read; may be repeated.",
        ),
    ] = [],  # noqa: B006 (the same)
    join_host: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="This machine's address on which launched runs let in machines elsewhere, over TLS."
        ),
    ] = None,
    join_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Under which name those machines reach it, if another.")
    ] = None,
    reads_a_minute: Annotated[int | None, typer.Option(help="Requests that look, of one session or token.")] = None,
    changes_a_minute: Annotated[int | None, typer.Option(help="Requests that may change something, likewise.")] = None,
    exports_a_minute: Annotated[int | None, typer.Option(help="Files and launches, likewise.")] = None,
    strangers_a_minute: Annotated[int | None, typer.Option(help="Requests of one address without a login.")] = None,
    sockets_a_user: Annotated[int | None, typer.Option(help="Live pages of one user that are open at once.")] = None,
    token_file: TokenFile = None,
    authority: Authority = None,
    ca_hash: CaHash = "",
    keep: Keep = None,
) -> None:
    """The web page over runs, which it can also launch.

    The fleet service is shown the run token, or what ASTRAFLOW_FLEET_TOKEN holds.
    """
    from astraflow.cli.roles import run_web
    from astraflow.runtime.home import home

    more = {
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
        "ca-hash": read_pin(ca_hash) or None,
        "keep": str(keep) if keep else None,
        "reads-a-minute": _told(reads_a_minute),
        "changes-a-minute": _told(changes_a_minute),
        "exports-a-minute": _told(exports_a_minute),
        "strangers-a-minute": _told(strangers_a_minute),
        "sockets-a-user": _told(sockets_a_user),
    }
    token = read_token(token_file)
    flags = ["--all-runs"] if all_runs or not dataflow else []
    flags += [part for folder in recipes for part in ("--recipes", str(folder.absolute()))]
    flags += [part for place in data for part in ("--data", place)]
    run_web(
        dataflow=dataflow,
        directory=directory or home() / "web",
        host=host,
        port=port,
        recipe=recipe,
        token=token,
        more=more,
        flags=flags,
    )


@serve.command()
def fleet(
    config: Annotated[Path, typer.Argument(help="TOML file that names providers and pools (docs/fleet.md).")],
    dataflow: Dataflow,
    join_address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where machines join the run; dataflow's address by default.")
    ] = "",
    directory: Directory = Path("fleet"),
    host: Host = "127.0.0.1",
    port: Port = 0,
    token_file: TokenFile = None,
    authority: Authority = None,
    tls: Tls = None,
    advertise: Advertise = [],  # noqa: B006 (typer copies it)
) -> None:
    """The fleet service: starts and stops machines for a run, through providers, under a guard."""
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
        Path | None, typer.Argument(help="TOML file about the model, its mode and budgets (docs/maintainer.md).")
    ] = None,
    dataflow: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the run's dataflow service.")] = "",
    fleet: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the run's fleet service.")] = "",
    directory: Directory = Path("maintainer-state"),
    token_file: TokenFile = None,
    authority: Authority = None,
) -> None:
    """The maintainer: looks after pools with a model, through the fleet service's guard."""
    from astraflow.cli.local import find_planes
    from astraflow.cli.roles import run_maintainer

    planes = find_planes(dataflow, fleet, read_token(token_file), authority)
    run_maintainer("run", planes, config=config, directory=directory)


@serve.command()
def node(
    recipe: RecipeArgument,
    dataflow: Dataflow,
    name: Annotated[str, typer.Option(help="Its name: stable over restarts, and no other node's.")],
    overrides: Overrides = [],  # noqa: B006 (typer copies it)
    token_file: TokenFile = None,
    authority: Authority = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """A RaaS node as the recipe describes them."""
    from astraflow.cli.roles import client_tls, recipe_node, run_node

    tls = client_tls(tls_ca, tls_client_certificate, tls_client_key, authority)
    config, tracing = recipe_node(recipe, overrides, name=name)
    token = read_token(token_file)
    raise typer.Exit(run_node(config, dataflow=dataflow, token=token, tls=tls, tracing=tracing))


def join(
    address: Annotated[
        str, typer.Argument(metavar="[ADDRESS]", help="HOST:PORT of dataflow; the run on this machine by default.")
    ] = "",
    token: Token = "",
    token_file: TokenFile = None,
    engine: Annotated[
        str, typer.Option(help="Kind of engine, or a TOML table of its options; the run's own by default.")
    ] = "",
    capacity: Annotated[int | None, typer.Option(min=1, help="Episodes to run at once.")] = None,
    name: Annotated[str | None, typer.Option(help="Stable over restarts, and no other node's.")] = None,
    pool: Annotated[str | None, typer.Option(help="Nodes of one pool are sized together.")] = None,
    region: Annotated[str | None, typer.Option(help="Where it stands, for the report.")] = None,
    price_per_hour: Annotated[float | None, typer.Option(min=0, help="What it costs, in US dollars.")] = None,
    drain_s: Annotated[float | None, typer.Option(min=0, help="Seconds for what runs to end, on stopping.")] = None,
    dead_man_s: Annotated[
        float | None, typer.Option(min=0, help="End when dataflow has not answered for so long; 0 waits for ever.")
    ] = None,
    preemption: Annotated[
        str, typer.Option(help="Where to read that this machine goes away: http for EC2, or a TOML table of options.")
    ] = "",
    weights_key: WeightsKey = "",
    ca_hash: CaHash = "",
    keep: Keep = None,
    pull: Annotated[
        str, typer.Option(help="How to fetch weights, a TOML table: {sources = ['mirror:7000'], connections = 2}.")
    ] = "",
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """Add this machine to a run as a RaaS node, until Ctrl-C."""
    from astraflow.access.credentials import claims_of, is_join_token
    from astraflow.cli.local import find_run
    from astraflow.cli.roles import client_tls, kept_name, own_node, run_node

    door = find_run(address, token, token_file)
    tls = client_tls(tls_ca, tls_client_certificate, tls_client_key) or door.tls
    if is_join_token(door.token):  # it says where it leads, and perhaps under which name
        told = claims_of(door.token)
        pool, name = pool or told.pool, name or told.name or (kept_name(keep) if keep else None)
    config = own_node(
        engine=engine,
        preemption=preemption,
        pull=pull,
        capacity=capacity,
        name=name,
        pool=pool,
        region=region,
        price_per_hour=price_per_hour,
        drain_s=drain_s,
        weights_key=read_weights_key(weights_key),
        dead_man_s=dead_man_s,
        keep=keep,
    )
    raise typer.Exit(run_node(config, dataflow=door.address, token=door.token, tls=tls, ca_hash=read_pin(ca_hash)))


def _told(number: int | None) -> str | None:
    return None if number is None else str(number)
