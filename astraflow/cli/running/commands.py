"""Commands that run a whole recipe on this machine: `demo` and `run`; `prepare` prepares the models of a recipe."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from astraflow.cli.option_groups import Listening, with_groups
from astraflow.cli.options import Overrides, RecipeArgument, check_recipe

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
    ) -> int:
        """Runs a recipe until its end; returns the exit code. settings: overrides before those of the command line."""
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
        return run_locally(
            loaded,
            options,
            listening,
            directory=self.run_dir,
            web_port=self.port,
            summary_file=self.json,
            launch=self._launch(recipe, chosen),
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
    recipe: RecipeArgument,
    conversations: Conversations = 0,
    own_trainers: OwnTrainers = [],  # noqa: B006 (typer copies it)
) -> None:
    """Run a recipe on this machine: all services, nodes, trainers and the page."""
    raise typer.Exit(chosen.start(recipe, listening=listening, conversations=conversations, own_trainers=own_trainers))


def prepare(recipe: RecipeArgument, overrides: Overrides = []) -> None:  # noqa: B006 (typer copies it)
    """Prepare the models that a recipe starts from, unless they are cached. `run` includes this step."""
    from astraflow.cli.running.programs import prepare_models
    from astraflow.recipe.loading import Check, load_recipe

    # The light check imports no heavy plugins: simulated models need no torch, others import it when prepared.
    prepare_models(load_recipe(check_recipe(recipe), overrides, check=Check.LIGHT))
