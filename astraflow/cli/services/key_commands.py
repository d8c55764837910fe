"""`astraflow keys`: creates the keys shared by services that are started separately."""

from pathlib import Path
from typing import Annotated

import typer

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
) -> None:
    """Create the certificate authority and the signing key of a run, for services that are started separately."""
    from astraflow.access.authority import CERTIFICATE, Authority
    from astraflow.cli.run_directory import SIGNING_KEY, WEIGHTS_KEY, make_signing_key, storage_error, write_private
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
    typer.echo(
        f"{directory} has the certificate authority of the run, {authority.pin}, and the signing key of its versions"
    )
