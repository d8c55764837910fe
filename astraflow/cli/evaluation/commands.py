"""`astraflow evaluate`: scores a version of a run, a hosted endpoint, or a model folder on tasks of a recipe."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from astraflow.cli.option_groups import CallGroup, with_groups
from astraflow.cli.options import Address, Json, Overrides, RecipeArgument, check_recipe

if TYPE_CHECKING:
    from astraflow.cli.evaluation.baselines import BaselineRequest

evaluate = typer.Typer(
    name="evaluate",
    help="Score a version of a run, a hosted endpoint, or a model folder.",
    no_args_is_help=True,
    add_completion=False,
)

Tasks = Annotated[str, typer.Argument(help="Name of an evaluation of the recipe, or of a flow.")]
Samples = Annotated[int, typer.Option(min=0, help="Samples per prompt, the k of the scores; 0: as in the recipe.")]
Limit = Annotated[int, typer.Option(min=0, help="Number of prompts; 0: as in the recipe.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of the sampling; default: as in the recipe.")]
Concurrency = Annotated[int, typer.Option(min=1, help="Episodes at the same time.")]
Episodes = Annotated[
    Path | None, typer.Option(metavar="FILE", help="New file for every sample with its texts, as JSON lines.")
]
EpisodeTimeout = Annotated[float, typer.Option(min=0.001, help="Time limit of an episode, in seconds.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringGroup:
    """Options of a score without a run."""

    samples: Samples = 0
    limit: Limit = 0
    seed: Seed = None
    episode_timeout: EpisodeTimeout = 900.0
    overrides: Overrides = field(default_factory=list)
    episodes: Episodes = None
    as_json: Json = False

    def request(self, recipe: str, name: str, *, concurrency: int) -> "BaselineRequest":
        """Returns the request for the tasks `name` of a recipe. Raises: InvalidInput for an unknown recipe."""
        from astraflow.cli.evaluation.baselines import BaselineRequest

        return BaselineRequest(
            recipe=check_recipe(recipe),
            overrides=tuple(self.overrides),
            name=name,
            samples=self.samples,
            prompts=self.limit,
            seed=self.seed,
            concurrency=concurrency,
            timeout_s=self.episode_timeout,
            episodes=self.episodes,
            as_json=self.as_json,
        )


@evaluate.command()
@with_groups
def version(
    access: CallGroup,
    name: Annotated[str, typer.Argument(help="Name of an evaluation of the run's recipe.")],
    address: Address = "",
    version: Annotated[
        list[str],
        typer.Option(
            metavar="[POLICY=]VERSION", help="Version to evaluate, once for each policy; default: the newest."
        ),
    ] = [],  # noqa: B006 (typer copies it)
    reason: Annotated[str, typer.Option(help="Reason, for the journal.")] = "requested on the command line",
    as_json: Json = False,
) -> None:
    """Evaluate a version of a run while training continues. Ctrl-C ends the waiting, not the evaluation."""
    from astraflow.cli.evaluation.rounds import request_and_follow

    endpoint = access.find_run(address)
    raise typer.Exit(request_and_follow(endpoint, name, version, reason=reason, as_json=as_json))


@evaluate.command()
@with_groups
def folder(
    scoring: ScoringGroup,
    recipe: RecipeArgument,
    name: Tasks,
    folders: Annotated[
        list[str],
        typer.Argument(
            metavar="[POLICY=]FOLDER...", help="Model folder (Hugging Face format) of all policies, or of each."
        ),
    ],
    engine: Annotated[
        str,
        typer.Option(
            metavar="KIND|JSON",
            help="Engine, such as sglang, or JSON with its options; default: the recipe's, or local_torch where that "
            "only simulates.",
        ),
    ] = "",
    concurrency: Concurrency = 32,
) -> None:
    """Score a model folder on the tasks of a recipe, without a run. Ctrl-C prints the scores so far.

    For example: astraflow evaluate folder reverse progress ./model
    """
    from astraflow.cli.evaluation.baselines import score_folders

    raise typer.Exit(score_folders(scoring.request(recipe, name, concurrency=concurrency), folders, engine=engine))


@evaluate.command()
@with_groups
def endpoint(
    scoring: ScoringGroup,
    recipe: RecipeArgument,
    name: Tasks,
    url: Annotated[str, typer.Argument(help="Address up to the version, such as https://api.example.com/v1.")],
    model: Annotated[
        list[str],
        typer.Option(metavar="[POLICY=]NAME", help="Model at the endpoint of all policies, or of each; needed."),
    ] = [],  # noqa: B006 (typer copies it)
    api: Annotated[
        str, typer.Option(metavar="chat|messages", help="Chat Completions, or Messages of Anthropic.")
    ] = "chat",
    api_key_file: Annotated[Path | None, typer.Option(help="File with the API key.")] = None,
    api_key_variable: Annotated[
        str, typer.Option(metavar="NAME", help="Environment variable with the API key, such as OPENAI_API_KEY.")
    ] = "",
    max_calls: Annotated[int, typer.Option(min=0, help="Budget of calls; 0: no limit.")] = 0,
    max_tokens: Annotated[int, typer.Option(min=0, help="Budget of tokens, prompts and replies; 0: no limit.")] = 0,
    call_timeout: Annotated[float, typer.Option(min=0.001, help="Time limit of one attempt of a call.")] = 300.0,
    attempts: Annotated[int, typer.Option(min=1, help="Attempts of a call while the endpoint fails.")] = 6,
    length_field: Annotated[
        str,
        typer.Option(
            metavar="max_tokens|max_completion_tokens", help="Field of Chat Completions for the length of a reply."
        ),
    ] = "max_tokens",
    omit: Annotated[
        list[str], typer.Option(metavar="FIELD", help="Field that the endpoint refuses, such as temperature.")
    ] = [],  # noqa: B006 (typer copies it)
    concurrency: Concurrency = 16,
) -> None:
    """Score a hosted endpoint on the tasks of a recipe, without a run. Ctrl-C prints the scores so far.

    For example: astraflow evaluate endpoint reverse progress http://127.0.0.1:8000/v1 --model NAME
    """
    from astraflow.cli.evaluation.baselines import read_key, score_endpoint

    options: dict[str, Any] = {
        "base_url": url,
        "api": api,
        "length_field": length_field,
        "omitted_fields": tuple(omit),
        "timeout_s": call_timeout,
        "attempts": attempts,
        "concurrency": concurrency,
        "max_calls": max_calls,
        "max_tokens": max_tokens,
    }
    key = read_key(api_key_file, api_key_variable)
    raise typer.Exit(score_endpoint(scoring.request(recipe, name, concurrency=concurrency), options, model, key=key))
