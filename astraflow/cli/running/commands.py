"""Commands that run a whole recipe on this machine: `demo` and `run`; `prepare` prepares the models of a recipe."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from astraflow.cli.option_groups import Listening, with_groups
from astraflow.cli.options import Json as JsonRows
from astraflow.cli.options import Overrides, RecipeArgument, check_recipe, complete_recipe, complete_run
from astraflow.contract.errors import InvalidInput
from astraflow.runtime.folders.run_folders import RECIPE

if TYPE_CHECKING:
    from astraflow.runtime.folders.launch_facts import LaunchFacts

_STARTED_AT = time.monotonic()
"""Approximate start of the command."""

DEMO, DEMO_OF_POOLS = "reverse", "smoke/regions"
LOAD_NOTE = (
    "Simulated load, by script: answers get longer after 2 minutes and shorter after 4. Watch the target rise, hold in "
    "the band, and fall."
)
DEMO_LIMIT_S = 180.0
DEMO_LIMIT_WITH_SERVER_S = 600.0
"""Time limit of the demo with an engine that starts a server."""

SERVER_SETTINGS = (
    # Attention in vLLM on a CPU needs heads of at least 32: the model has four of 32 instead of 24.
    "policies.solver.model.hidden_size=128",
    # One server: several would share the same cores. An evaluation and training would take turns on it.
    "nodes.count=1",
    "evaluations.progress.every_versions=1000",
    "evaluations.progress.at_start=false",
)
"""Changes of the demo for engines that start a server."""
CPU_SETTINGS = {
    # On a CPU a server works some milliseconds for each request, so the demo learns from half as many a step.
    "vllm": ("policies.solver.batch_groups=16",),
    # Answers have five tokens. By default SGLang computes new prompts whenever an answer ends, often one or two.
    "sglang": ("policies.solver.batch_groups=16", 'nodes.engine.arguments=["--min-free-slots-delay", "32"]'),
}
"""Further changes for servers on a CPU, by engine."""
GPU_SETTING = "policies.solver.model.heads=2"
"""Further change for servers on a GPU, where some kernels need heads of 64. The model then needs twice the steps."""

Headless = Annotated[
    bool,
    typer.Option(
        "--headless", help="End at the stop condition, with exit code 0 only if the run learned; for scripts."
    ),
]
LimitS = Annotated[float | None, typer.Option(min=0, help="Time limit in seconds.")]
Steps = Annotated[
    int | None,
    typer.Option(
        min=1, help="Steps after which the stop condition is met (stop.steps); it ends the run with --headless only."
    ),
]
Nodes = Annotated[int | None, typer.Option(min=0, help="RaaS nodes to start on this machine (nodes.count).")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the summary to this file as JSON.")]
NoWeb = Annotated[bool, typer.Option("--no-web", help="Run without the page.")]
NoBrowser = Annotated[
    bool, typer.Option("--no-browser", help="Print the address of the page without opening a browser.")
]
WebPort = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port of the page; 0 selects a free one.")]
Fleet = Annotated[
    bool,
    typer.Option(
        "--fleet", help="Start the nodes with a fleet service that scales their pool, instead of a fixed number."
    ),
]
Maintainer = Annotated[
    str | None,
    typer.Option(
        metavar="scripted|model",
        help="With --fleet: run a maintainer with a scripted model or the recipe's `maintainer.model`.",
    ),
]
EngineKind = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="KIND",
        help="Engine of the nodes, such as local_torch, sglang or vllm; a server that is not installed is installed "
        "after asking.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="With --engine: install the server without asking; for scripts.")]
RunDir = Annotated[
    Path | None,
    typer.Option(help="Run directory; an existing run is continued. Default: a new one in ASTRAFLOW_HOME."),
]
OptionalRecipe = Annotated[
    str,
    typer.Argument(
        metavar="[RECIPE]",
        help="Name of a recipe (see: astraflow recipes), or path of a recipe file.",
        autocompletion=complete_recipe,
    ),
]
ExistingRun = Annotated[str, typer.Argument(help="Name or folder of a run.", autocompletion=complete_run)]
Resume = Annotated[
    str,
    typer.Option(
        metavar="RUN",
        help="Continue this run, by name or folder; with --set, with changes of settings that may change.",
        autocompletion=complete_run,
    ),
]
Conversations = Annotated[
    int,
    typer.Option(
        min=0, max=20, help="Print this many conversations of the first step, and of the last, when the run has ended."
    ),
]
OwnTrainers = Annotated[
    list[str],
    typer.Option(
        "--own-trainer",
        metavar="POLICY",
        help="Do not start the trainer of this policy: the run waits for yours, and prints what it needs. May be given "
        "several times.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkPoint:
    """Checkpoint of a run in which another one begins."""

    step: int | None
    """Step; None for the newest."""
    has_fresh_optimizer: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGroup:
    """Options of `run` and `demo`."""

    overrides: Overrides = field(default_factory=list)
    headless: Headless = False
    limit_s: LimitS = None
    steps: Steps = None
    nodes: Nodes = None
    json: Json = None
    no_web: NoWeb = False
    no_browser: NoBrowser = False
    port: WebPort = 0
    run_dir: RunDir = None
    fleet: Fleet = False
    maintainer: Maintainer = None
    engine: EngineKind = ""
    yes: Yes = False

    def start(
        self,
        recipe: str,
        *,
        listening: Listening,
        settings: Sequence[str] = (),
        conversations: int = 0,
        own_trainers: Sequence[str] = (),
        fork: "ForkPoint | None" = None,
    ) -> int:
        """Runs a recipe until its end; returns the exit code. settings: overrides before those of the command line.
        fork: step of the run whose snapshot the recipe is, in whose checkpoint the new run begins."""
        from astraflow.cli.running.local_run import LocalRunOptions, run_locally
        from astraflow.recipe.loading import Check, load_recipe

        if self.engine:
            from astraflow.cli.engines.environments import ensure_installed

            ensure_installed(self.engine, has_consent=self.yes)
        shortcuts = {"stop.steps": self.steps, "nodes.count": self.nodes}
        chosen = [f"nodes.engine.kind={self.engine}"] if self.engine else []
        chosen += [*settings, *self.overrides]
        chosen += [f"{key}={value}" for key, value in shortcuts.items() if value is not None]
        options = LocalRunOptions(
            is_headless=self.headless,
            has_web=not self.no_web,
            opens_browser=not (self.no_browser or self.headless),
            has_fleet=self.fleet,
            maintainer_kind=self.maintainer or "",
            conversations=conversations,
            own_trainers=tuple(own_trainers),
            limit_s=self.limit_s,
            began_at=_STARTED_AT,
        )
        loaded = load_recipe(check_recipe(recipe), chosen, check=Check.LIGHT)
        launch, directory = self._launch(recipe, chosen), self.run_dir
        if fork is not None:
            from astraflow.cli.running.forks import find_fork
            from astraflow.runtime.service import make_files_private

            make_files_private()
            beginning = find_fork(
                str(Path(recipe).parent), loaded, step=fork.step, keeps_optimizer=not fork.has_fresh_optimizer
            )
            directory = beginning.create(loaded, directory)
            launch = launch.model_copy(update=beginning.facts.model_dump(exclude_unset=True))
        return run_locally(
            loaded,
            options,
            listening,
            directory=directory,
            web_port=self.port,
            summary_file=self.json,
            launch=launch,
            base=base_recipe(recipe),
        )

    def _launch(self, recipe: str, overrides: Sequence[str]) -> "LaunchFacts":
        """Returns the facts of this launch; those of an earlier run's snapshot continue."""
        from astraflow.runtime.folders.launch_facts import LaunchFacts, read_launch

        earlier = read_launch(Path(recipe).parent) or LaunchFacts(recipe=recipe)
        return LaunchFacts(
            recipe=earlier.recipe,
            overrides=(*earlier.overrides, *overrides),
            launched_at=time.time(),
            has_fleet=self.fleet,
            ends_by_itself=self.headless,
            limit_s=self.limit_s,
        )


def base_recipe(name_or_path: str) -> str:
    """Returns the snapshot of a recipe without overrides; of an earlier run's snapshot, that of its recipe."""
    from astraflow.recipe.loading import Check, load_recipe, snapshot
    from astraflow.runtime.folders.launch_facts import BASE_RECIPE

    earlier = Path(name_or_path).parent / BASE_RECIPE
    return earlier.read_text() if earlier.is_file() else snapshot(load_recipe(name_or_path, check=Check.NONE))


@with_groups
def demo(
    chosen: RunGroup,
    pools: Annotated[
        bool,
        typer.Option(
            "--pools",
            help="Run three pools of simulated nodes with autoscaling and fault injection instead.",
        ),
    ] = False,
) -> None:
    """Train a tiny model to reverse four letters and watch it learn. With --pools, watch a simulated fleet instead."""
    has_server = chosen.engine in ("sglang", "vllm") and not pools
    settings = server_settings(chosen.engine, has_consent=chosen.yes) if has_server else ()
    if chosen.limit_s is None and chosen.headless:
        chosen = replace(chosen, limit_s=DEMO_LIMIT_WITH_SERVER_S if has_server else DEMO_LIMIT_S)
    if pools:
        typer.echo(LOAD_NOTE)
        settings = (*settings, f"nodes.engine.script_began_at={time.time():.1f}")
    chosen = replace(chosen, fleet=chosen.fleet or pools)
    raise typer.Exit(chosen.start(DEMO_OF_POOLS if pools else DEMO, listening=Listening(), settings=settings))


def server_settings(engine: str, *, has_consent: bool) -> tuple[str, ...]:
    """Returns the changes of the demo for a server, which is installed if it is missing."""
    from astraflow.cli.engines.environments import ensure_installed
    from astraflow.raas.engines.server.environments import find_environment

    ensure_installed(engine, has_consent=has_consent)
    is_cpu = find_environment(engine).device == "cpu"
    return (*SERVER_SETTINGS, *(CPU_SETTINGS[engine] if is_cpu else (GPU_SETTING,)))


@with_groups
def run(
    chosen: RunGroup,
    listening: Listening,
    recipe: OptionalRecipe = "",
    resume: Resume = "",
    conversations: Conversations = 0,
    own_trainers: OwnTrainers = [],  # noqa: B006 (typer copies it)
) -> None:
    """Run a recipe on this machine: all services, nodes, trainers and the page. With --resume, continue a run.

    For example: astraflow run --resume RUN --set stop.steps=500 --set policies.solver.backend.learning_rate=1e-4
    """
    if bool(recipe) == bool(resume):
        raise InvalidInput(
            "cannot run: give either a recipe or a run to continue; name a RECIPE, or use --resume RUN",
            code="run.recipe_or_resume",
        )
    if resume:
        folder = existing_run(resume)
        recipe, chosen = str(folder / RECIPE), replace(chosen, run_dir=folder)
    raise typer.Exit(chosen.start(recipe, listening=listening, conversations=conversations, own_trainers=own_trainers))


@with_groups
def fork(
    chosen: RunGroup,
    listening: Listening,
    run: ExistingRun,
    step: Annotated[
        int | None, typer.Option(min=0, help="Step whose checkpoint is kept; default: the newest of them.")
    ] = None,
    fresh_optimizer: Annotated[
        bool, typer.Option("--fresh-optimizer", help="Begin with new moments and a new learning-rate schedule.")
    ] = False,
) -> None:
    """Start a new run from a kept checkpoint of a run, with other settings. Its steps count from 0, and its prompts
    begin anew.

    For example: astraflow fork RUN --step 40 --set policies.solver.backend.learning_rate=1e-4
    """
    point = ForkPoint(step=step, has_fresh_optimizer=fresh_optimizer)
    raise typer.Exit(chosen.start(str(existing_run(run) / RECIPE), listening=listening, fork=point))


def sweep(
    recipe: RecipeArgument,
    vary: Annotated[
        list[str],
        typer.Option("--vary", metavar="KEY=V1,V2,...", help="Setting with its values; several give all combinations."),
    ] = [],  # noqa: B006 (typer copies it)
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Runs of each combination, with the seeds 0, 1, ...")] = 1,
    parallel: Annotated[int, typer.Option(min=1, max=64, help="Runs at the same time.")] = 1,
    overrides: Overrides = [],  # noqa: B006 (typer copies it)
    limit_s: LimitS = None,
    name: Annotated[
        str, typer.Option(help="Name of the sweep, which its runs begin with; default: from recipe and arguments.")
    ] = "",
    as_json: JsonRows = False,
) -> None:
    """Run a recipe with all combinations of seeds and settings, and compare the results.

    The same call continues an interrupted sweep: runs that have ended stay, others continue or start. The runs are a
    group on the page and in `astraflow runs`.

    For example: astraflow sweep reverse --seeds 3 --vary policies.solver.backend.learning_rate=1e-3,3e-4
    """
    import asyncio

    from astraflow.cli.output import show
    from astraflow.cli.running.sweeps import Sweep, sweep_table
    from astraflow.runtime.service import run_process

    check_recipe(recipe)
    recipe = str(Path(recipe).resolve()) if Path(recipe).exists() else recipe
    planned = Sweep(recipe, vary, overrides, seeds=seeds, name=name)

    async def main(stop: asyncio.Event) -> None:
        await planned.run(stop, parallel=parallel, limit_s=limit_s)

    typer.echo(f"Sweep {planned.name}: {len(planned.runs)} runs", err=as_json)
    code = run_process(main, may_complete=True)
    rows = planned.rows()
    show(rows, sweep_table, as_json=as_json)
    missing = sum(len(row["runs"]) - row["ended"] for row in rows)
    if missing:
        typer.echo(f"{missing} runs are missing or failed; the same command continues them", err=True)
    raise typer.Exit(code or int(missing > 0))


def existing_run(name_or_folder: str) -> Path:
    """Returns the folder of a run that has started. Raises: InvalidInput without one."""
    from astraflow.cli.run_directory import find_run_folder

    folder = find_run_folder(name_or_folder)
    if not folder.recipe_file.exists():
        raise InvalidInput(
            f"cannot continue {str(folder.path)!r}: it has no {RECIPE}, because no run has started there; give the "
            "folder or the name of a run; `astraflow runs` lists them",
            code="run.never_started",
        )
    return folder.path.resolve()


def prepare(recipe: RecipeArgument, overrides: Overrides = []) -> None:  # noqa: B006 (typer copies it)
    """Prepare the models that a recipe starts from, unless they are cached. `run` includes this step."""
    from astraflow.cli.running.programs import prepare_models
    from astraflow.recipe.loading import Check, load_recipe

    # The light check imports no heavy plugins: simulated models need no torch, others import it when prepared.
    prepare_models(load_recipe(check_recipe(recipe), overrides, check=Check.LIGHT))
