"""Commands that run a whole recipe on this machine: `demo`, `run`, and `prepare` for what they need first."""

import time
from pathlib import Path
from typing import Annotated

import typer

from astraflow.cli.options import Overrides, RecipeArgument, Tls

_BEGAN_AT = time.monotonic()
"""When the command began, as nearly as can be told."""

DEMO, DEMO_OF_POOLS = "reverse", "smoke/regions"
DEMO_LIMIT_S = 180.0

Headless = Annotated[
    bool, typer.Option("--headless", help="For scripts: end by itself, with code 0 only if it learned.")
]
LimitS = Annotated[float | None, typer.Option(min=0, help="End after that many seconds either way.")]
Steps = Annotated[int | None, typer.Option(min=1, help="End after that many trainer steps either way (stop.steps).")]
Nodes = Annotated[int | None, typer.Option(min=0, help="RaaS nodes to start on this machine (nodes.count).")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the summary there as JSON.")]
NoWeb = Annotated[bool, typer.Option("--no-web", help="Run without the page.")]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Print the page's address, open no browser.")]
WebPort = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port of the page; 0 takes a free one.")]
Fleet = Annotated[
    bool,
    typer.Option(
        "--fleet", help="Have a fleet service start the nodes, and size their pool, instead of a fixed number."
    ),
]
Maintainer = Annotated[
    str | None,
    typer.Option(
        metavar="scripted|model",
        help="With --fleet, have a maintainer look after the pool: a stand-in, or the recipe's `maintainer.model`.",
    ),
]
RunDir = Annotated[
    Path | None,
    typer.Option(help="Folder of the run; an earlier run's goes on. By default a new one in ASTRAFLOW_HOME."),
]
Host = Annotated[
    str,
    typer.Option(help="This machine's address under which nodes of other machines may join; loopback lets in none."),
]

Advertised = Annotated[
    str,
    typer.Option(
        "--advertise", metavar="NAME", help="Name or address under which other machines reach --host, if it is another."
    ),
]


def demo(
    overrides: Overrides = [],  # noqa: B006 (typer copies it)
    headless: Headless = False,
    limit_s: LimitS = None,
    steps: Steps = None,
    nodes: Nodes = None,
    json: Json = None,
    no_web: NoWeb = False,
    no_browser: NoBrowser = False,
    port: WebPort = 0,
    run_dir: RunDir = None,
    fleet: Fleet = False,
    maintainer: Maintainer = None,
    pools: Annotated[
        bool,
        typer.Option(
            "--pools",
            help="Instead: three pools of stand-ins that the rule sizes, to lose nodes of and see them come back.",
        ),
    ] = False,
) -> None:
    """Train a real, tiny model to reverse four letters, and watch it learn. With --pools, watch a fleet instead."""
    if limit_s is None and headless:
        limit_s = DEMO_LIMIT_S
    run(
        DEMO_OF_POOLS if pools else DEMO,
        overrides,
        headless,
        limit_s,
        steps,
        nodes,
        json,
        no_web,
        no_browser,
        port,
        run_dir,
        fleet=fleet or pools,
        maintainer=maintainer,
    )


def run(
    recipe: RecipeArgument,
    overrides: Overrides = [],  # noqa: B006 (typer copies it)
    headless: Headless = False,
    limit_s: LimitS = None,
    steps: Steps = None,
    nodes: Nodes = None,
    json: Json = None,
    no_web: NoWeb = False,
    no_browser: NoBrowser = False,
    port: WebPort = 0,
    run_dir: RunDir = None,
    host: Host = "127.0.0.1",
    advertise: Advertised = "",
    tls: Tls = None,
    fleet: Fleet = False,
    maintainer: Maintainer = None,
) -> None:
    """Run a recipe on this machine: all its services, its nodes, its trainers and the page."""
    from astraflow.cli.session import SessionOptions, run_here
    from astraflow.recipe import Check, load_recipe

    shortcuts = {"stop.steps": steps, "nodes.count": nodes}
    chosen = [*overrides, *(f"{key}={value}" for key, value in shortcuts.items() if value is not None)]
    options = SessionOptions(
        is_headless=headless,
        has_web=not no_web,
        opens_browser=not (no_browser or headless),
        has_fleet=fleet,
        maintainer=maintainer or "",
        limit_s=limit_s,
        began_at=_BEGAN_AT,
    )
    raise typer.Exit(
        run_here(
            load_recipe(recipe, chosen, check=Check.LIGHT),
            options,
            directory=run_dir,
            host=host,
            advertise=advertise,
            tls=tls,
            web_port=port,
            summary_file=json,
        )
    )


def prepare(recipe: RecipeArgument, overrides: Overrides = []) -> None:  # noqa: B006 (typer copies it)
    """Make the models a recipe starts from; what was made before is kept. `run` does this by itself."""
    from astraflow.cli.preparation import prepare_models
    from astraflow.recipe import Check, load_recipe

    # Only what imports at once is checked here: simulated models need no torch, and real ones import it to be made.
    prepare_models(load_recipe(recipe, overrides, check=Check.LIGHT))
