"""`astraflow engines`: installs, lists and removes the environments of engine servers."""

from pathlib import Path
from typing import Annotated

import typer

from astraflow.cli.options import Json

engines = typer.Typer(
    name="engines",
    help="Install, list and remove engine servers (SGLang, vLLM), each in a virtual environment of its own.",
    no_args_is_help=True,
    add_completion=False,
)

Yes = Annotated[bool, typer.Option("--yes", help="Install without asking; for scripts.")]


@engines.command()
def install(
    kind: Annotated[str, typer.Argument(metavar="[KIND]", help="Engine: sglang or vllm.")] = "",
    is_all: Annotated[bool, typer.Option("--all", help="Install every engine.")] = False,
    device: Annotated[
        str, typer.Option(metavar="auto|cpu|cuda", help="Device; auto: cuda if nvidia-smi lists a GPU.")
    ] = "auto",
    name: Annotated[str, typer.Option(help="Name of the environment; default: KIND-DEVICE.")] = "",
    yes: Yes = False,
    wheels: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder with wheels for pip besides its index; PIP_NO_INDEX=1 uses only the folder.",
        ),
    ] = None,
) -> None:
    """Install an engine and check that a server of it answers. Continues an interrupted installation."""
    from astraflow.cli.engines.environments import install_engines

    install_engines([kind] if kind else [], is_all=is_all, device=device, name=name, has_consent=yes, wheels=wheels)


@engines.command("list")
def list_environments(
    as_json: Json = False,
    check: Annotated[
        bool, typer.Option("--check", help="Start a server of each environment and generate; exit code 1 if one fails.")
    ] = False,
) -> None:
    """List the environments with release, device, size and health."""
    from astraflow.cli.engines.environments import show_environments

    raise typer.Exit(show_environments(as_json=as_json, check=check))


@engines.command()
def remove(name: Annotated[str, typer.Argument(help="Name of the environment.")]) -> None:
    """Remove an environment, also one whose installation was interrupted."""
    from astraflow.raas.engines.server.installation.installer import remove as remove_environment

    size = remove_environment(name)
    typer.echo(f"removed {name}: {size / 1e9:.1f} GB")
