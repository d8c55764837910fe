"""`astraflow export`: a checkpoint as a model folder for other programs."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    checkpoint: Annotated[
        Path,
        typer.Argument(help="Folder step-N of a trainer's checkpoints, or the folder of them for the newest one."),
    ],
    folder: Annotated[Path, typer.Argument(help="New folder for the model.")],
    adapters_only: Annotated[
        bool, typer.Option("--adapters-only", help="Write the adapters without their base, for PeftModel.")
    ] = False,
) -> None:
    """Write the model of a checkpoint in Hugging Face format, with exactly the weights of its published version.

    Adapters (LoRA) are added to their base.

    For example: astraflow export runs/reverse/trainer-policy/checkpoints model
    """
    from astraflow.trainer.export import export_checkpoint

    version = export_checkpoint(checkpoint, folder, adapters_only=adapters_only)
    typer.echo(f"version {version} is in {folder}")
