"""`simulate`: how large would the pools be? In virtual time, or over what a run has recorded."""

from pathlib import Path
from typing import Annotated

import typer

ScenarioArgument = Annotated[
    str, typer.Argument(metavar="[SCENARIO]", help="A name, or a TOML file; without one, the names are listed.")
]
Changes = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Another value, as in sizer.headroom=0.1 or pools.nodes.bounds.max_nodes=30."
    ),
]


def simulate(
    scenario: ScenarioArgument = "",
    overrides: Changes = [],  # noqa: B006 (typer copies it)
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Runs of each policy; figures are means.")] = 4,
    first_seed: Annotated[int, typer.Option(min=0, help="Of the first run.")] = 0,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw the first run's nodes over time.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, with the course of the first run.")] = False,
    replay: Annotated[
        Path | None, typer.Option(metavar="RUNDIR", help="Play a recorded run through instead, under other options.")
    ] = None,
    resolution_s: Annotated[
        int, typer.Option(help="Of a recorded run: 60 for all of it, 1 for its last minutes.")
    ] = 60,
) -> None:
    """Try out how pools are sized: fixed, by the plain rule, and by the default one."""
    from astraflow.cli.simulation import list_scenarios, play_scenario, replay_run

    if replay is not None:
        replay_run(replay, overrides, resolution_s=resolution_s, as_json=as_json, plot=plot)
    elif not scenario:
        list_scenarios()
    else:
        seeds_used = range(first_seed, first_seed + seeds)
        play_scenario(scenario, overrides, seeds=seeds_used, plot=plot, as_json=as_json)
