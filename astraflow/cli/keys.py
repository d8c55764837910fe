"""`astraflow keys`: what services that are served one by one share, made before the first of them starts."""

from pathlib import Path
from typing import Annotated

import typer

EVERYBODY_READS = 0o644
EVERYBODY_ENTERS = 0o755


def keys(
    directory: Annotated[Path, typer.Argument(help="Folder for them, of the services' user; what is there is kept.")],
    run: Annotated[str, typer.Option(help="Name of the run, for the certificate of its authority.")] = "run",
    public: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write there what everybody may read: ca.pem, ca.hash, weights.pub."),
    ] = None,
) -> None:
    """Make a run's authority and the key that signs its versions, for services that are served one by one."""
    from astraflow.access.authority import CERTIFICATE, Authority
    from astraflow.cli.rundir import SIGNING_KEY, WEIGHTS_KEY, explained, make_signing_key, write_private
    from astraflow.contract.ids import Name

    run = Name(run)
    folder = directory / "authority"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (directory / SIGNING_KEY).exists():
            make_signing_key(directory)
        if not (folder / CERTIFICATE).exists():  # it is written last: what a crash left half made is made anew
            Authority.made(folder, run=run)
        authority = Authority.opened(folder)
        if public is not None:
            if not public.is_dir():
                public.mkdir(parents=True)
                public.chmod(EVERYBODY_ENTERS)
            shown = {"ca.pem": authority.pem.decode(), "ca.hash": authority.pin}
            for name, text in {**shown, WEIGHTS_KEY: (directory / WEIGHTS_KEY).read_text()}.items():
                write_private(public / name, text)
                (public / name).chmod(EVERYBODY_READS)
    except OSError as problem:
        raise explained(problem, f"the folder {directory}") from None
    typer.echo(f"{directory} has the run's authority, {authority.pin}, and the key that signs its versions")
