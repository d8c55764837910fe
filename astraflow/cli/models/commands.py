"""`astraflow export` and `astraflow chat`: the model of a run, for other programs and for a conversation."""

from pathlib import Path
from typing import Annotated

import typer

Policy = Annotated[str, typer.Option(help="Policy of the run; needed when it trains several.")]
VersionOption = Annotated[
    int | None, typer.Option("--version", min=0, help="Version whose checkpoint is kept; default: the newest.")
]


def export(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|CHECKPOINT",
            help="Folder or name of a run, folder of a trainer's checkpoints, or folder step-N of one.",
        ),
    ],
    folder: Annotated[Path, typer.Argument(help="New folder for the model.")],
    policy: Policy = "",
    version: VersionOption = None,
    adapters_only: Annotated[
        bool, typer.Option("--adapters-only", help="Write the adapters without their base, for PeftModel.")
    ] = False,
) -> None:
    """Write the model of a checkpoint in Hugging Face format, with exactly the weights of its published version.

    Adapters (LoRA) are added to their base.

    For example: astraflow export runs/reverse model
    """
    from astraflow.cli.models.sources import find_checkpoints
    from astraflow.trainer.export import export_checkpoint

    checkpoints = find_checkpoints(source, policy).folder
    written = export_checkpoint(checkpoints, folder, version=version, adapters_only=adapters_only)
    typer.echo(f"version {written} is in {folder}")


def chat(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FOLDER|MODEL",
            help="Folder or name of a run, folder of a checkpoint or of a model, or name of a fetched model.",
        ),
    ],
    policy: Policy = "",
    version: VersionOption = None,
    system: Annotated[
        str | None, typer.Option(help="System message; default: as in the run's recipe, or none.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.001, help="Sampling temperature; default: as in the run's recipe, or 1.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Length limit of an answer; default: as in the run's recipe, or 512.")
    ] = None,
    keeps_turns: Annotated[
        bool | None,
        typer.Option(
            "--conversation/--single-turns",
            help="Whether a line follows the earlier ones; default: yes, unless the run trains on single turns.",
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="Engine, such as sglang or vllm.")] = "local_torch",
) -> None:
    """Talk to the model of a run, also while it trains, or to a model folder. An empty line begins a new conversation,
    Ctrl-D ends.

    For example: astraflow chat runs/reverse
    """
    from astraflow.cli.models.chat import ChatRequest, hold_conversation

    request = ChatRequest(
        source=source,
        policy=policy,
        version=version,
        given={"system": system, "temperature": temperature, "max_new_tokens": max_new_tokens},
        keeps_turns=keeps_turns,
        engine=engine,
    )
    hold_conversation(request)
