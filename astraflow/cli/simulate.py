"""`astraflow simulate`: simulates the scaling of pools in virtual time or over a recorded run."""

from pathlib import Path
from typing import Annotated

import typer

ScenarioArgument = Annotated[
    str, typer.Argument(metavar="[SCENARIO]", help="Name of a scenario or TOML file; without one, lists the names.")
]
Changes = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a value, such as sizer.headroom=0.1 or pools.nodes.bounds.max_nodes=30.",
    ),
]


def simulate(
    scenario: ScenarioArgument = "",
    overrides: Changes = [],  # noqa: B006 (typer copies it)
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="Number of simulations of each scaling policy; figures are means.")
    ] = 4,
    first_seed: Annotated[int, typer.Option(min=0, help="Seed of the first simulation.")] = 0,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Plot the nodes of the first simulation over time.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, with the course of the first simulation.")
    ] = False,
    replay: Annotated[
        Path | None, typer.Option(metavar="RUNDIR", help="Replay a recorded run instead, with other options.")
    ] = None,
    resolution_s: Annotated[
        int,
        typer.Option(
            help="Seconds between the reports of a recorded run: 60 for the whole run, 1 for its last minutes."
        ),
    ] = 60,
) -> None:
    """Compare scaling policies: fixed size, the plain rule, and the default rule."""
    from astraflow.cli.simulation import list_scenarios, play_scenario, replay_run

    if replay is not None:
        replay_run(replay, overrides, resolution_s=resolution_s, as_json=as_json, plot=plot)
    elif not scenario:
        list_scenarios(as_json=as_json)
    else:
        seeds_used = range(first_seed, first_seed + seeds)
        play_scenario(scenario, overrides, seeds=seeds_used, plot=plot, as_json=as_json)
