"""Commands that run a role of the control plane: the web page, the fleet service and the maintainer."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from astraflow.cli.option_groups import with_groups
from astraflow.cli.options import (
    Advertise,
    Authority,
    CaHash,
    CredentialFolder,
    Dataflow,
    Directory,
    Host,
    Port,
    Tls,
    TokenFile,
    read_ca_hash,
    read_token,
)

WebDirectory = Annotated[
    Path | None, typer.Option(help="Folder for the persistent state; default: `web` in ASTRAFLOW_HOME.")
]
BehindProxy = Annotated[str | None, typer.Option(help="Public https:// URL of a reverse proxy, also with a path.")]
PublicName = Annotated[str | None, typer.Option(help="Host name that browsers use.")]
PageCertificate = Annotated[str | None, typer.Option(help="Serve TLS with this certificate and chain (PEM).")]
PageKey = Annotated[str | None, typer.Option(help="Private key of the certificate (PEM).")]
OpenIdProvider = Annotated[str | None, typer.Option(help="TOML file of an OpenID provider for logins.")]
AlertRules = Annotated[str | None, typer.Option(metavar="FILE", help="TOML file with rules of alerts.")]
MailServer = Annotated[str | None, typer.Option(metavar="FILE", help="TOML file with the mail server for alerts.")]
RecipeFolders = Annotated[
    list[Path],
    typer.Option("--recipes", metavar="DIR", help="Folder with your own recipes to launch; may be repeated."),
]
DataLocations = Annotated[
    list[str],
    typer.Option(
        "--data",
        metavar="LOCATION",
        help="Folder or address (s3://BUCKET/FOLDER) whose data launched runs may read; may be repeated.",
    ),
]
JoinHost = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="Address of this machine at which launched runs accept remote nodes, over TLS."
    ),
]
JoinName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Name under which remote nodes reach this machine, if it differs."),
]
ReadsAMinute = Annotated[int | None, typer.Option(help="Limit of read requests per session or token.")]
ChangesAMinute = Annotated[int | None, typer.Option(help="Limit of write requests per session or token.")]
ExportsAMinute = Annotated[int | None, typer.Option(help="Limit of downloads and launches per session or token.")]
AnonymousRequestsAMinute = Annotated[int | None, typer.Option(help="Limit of requests without a login per address.")]
SocketsAUser = Annotated[int | None, typer.Option(help="Limit of open live pages per user.")]
RecipeName = Annotated[str, typer.Option(help="Name of the recipe, for display.")]
RunDirectory = Annotated[Path | None, typer.Option(help="Run directory, if it is on this machine.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageGroup:
    """Options of `astraflow serve web` with the names of those of `python -m web`; None for its default."""

    behind_proxy: BehindProxy = None
    name: PublicName = None
    tls_certificate: PageCertificate = None
    tls_key: PageKey = None
    provider: OpenIdProvider = None
    alerts: AlertRules = None
    mail: MailServer = None
    join_host: JoinHost = None
    join_name: JoinName = None
    reads_a_minute: ReadsAMinute = None
    changes_a_minute: ChangesAMinute = None
    exports_a_minute: ExportsAMinute = None
    anonymous_requests_a_minute: AnonymousRequestsAMinute = None
    sockets_a_user: SocketsAUser = None


@with_groups
def web(
    page: PageGroup,
    dataflow: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Dataflow service to follow besides the runs of this machine."),
    ] = "",
    fleet: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Fleet service to show and control.")] = None,
    directory: WebDirectory = None,
    host: Host = "127.0.0.1",
    port: Port = 0,
    recipe: RecipeName = "",
    run_dir: RunDirectory = None,
    recipes: RecipeFolders = [],  # noqa: B006 (typer copies it)
    data: DataLocations = [],  # noqa: B006 (the same)
    token_file: TokenFile = None,
    authority: Authority = None,
    ca_hash: CaHash = "",
    credential_folder: CredentialFolder = None,
) -> None:
    """Run the web page, which shows, controls and launches the runs of this machine, active and ended.

    The page authenticates to the fleet service with the run token, or with the token in ASTRAFLOW_FLEET_TOKEN.
    """
    from astraflow.cli.services.control_processes import run_web
    from astraflow.runtime.folders.run_folders import home

    options = {
        "dataflow": dataflow,
        "fleet": fleet,
        "host": host,
        "port": port,
        "recipe": recipe,
        "run-dir": run_dir,
        "recipes": [folder.absolute() for folder in recipes],
        "data": data,
        "authority": authority,
        "ca-hash": read_ca_hash(ca_hash),
        "credential-folder": credential_folder,
        **{name.replace("_", "-"): value for name, value in asdict(page).items()},
    }
    run_web(directory or home() / "web", options, token=read_token(token_file))


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
    from astraflow.cli.services.control_processes import run_fleet

    options = {
        "config": config,
        "dataflow": dataflow,
        "join-address": join_address,
        "host": host,
        "port": port,
        "authority": authority,
        "advertise": advertise,
    }
    run_fleet(directory, options, tls=tls, token=read_token(token_file))


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
    from astraflow.cli.run_endpoints import find_planes
    from astraflow.cli.services.control_processes import run_maintainer

    planes = find_planes(dataflow, fleet, read_token(token_file), authority)
    run_maintainer("run", planes, directory=directory, options={"config": config})
