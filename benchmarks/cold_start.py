"""Nodes in the first minutes of a run, over the need: scenarios of the simulator, and starts episode by episode.

    python -m benchmarks.cold_start            # 40 s of processor time

Virtual time; every run begins without work (`is_cold_start`). Each figure is the most nodes, present or asked for, over
the larger of the need and the nodes at the start: mean and worst of the seeds. Scenarios whose events begin later than
half an hour begin like `steady` and are left out.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from statistics import fmean

from astraflow.scaling.simulation.result import SimulationResult
from astraflow.scaling.simulation.scenarios import find_scenario
from astraflow.scaling.simulation.simulator import simulate
from tests.scaling.starting_run import Start, StartingRun

SCENARIOS = (
    "steady",
    "over",
    "noisy",
    "mixed",
    "spot",
    "published",
    "small",
    "gated",
    "silence",
    "regions",
    "spot-drought",
)
STARTS = (
    Start(nodes=8, step_s=5.0, episode_s=16.0),
    Start(nodes=8, step_s=20.0, episode_s=60.0),
    Start(nodes=2, step_s=0.65, episode_s=2.07),
)
SEEDS = range(101, 109)
FIVE_MINUTES_S, HALF_HOUR_S = 300.0, 1800.0


def lines(seeds: range) -> Iterator[str]:
    """Yields the lines of the table."""
    yield f"{'':38} {'5 min: mean, worst':>18} {'30 min: mean, worst':>20}"
    for name in SCENARIOS:
        scenario = find_scenario(name, {"is_cold_start": True, "hours": HALF_HOUR_S / 3600})
        first_nodes = sum(pool.nodes for pool in scenario.pools.values())
        runs = [simulate(scenario, seed=seed) for seed in seeds]
        yield _line(
            name,
            *([_overshoot(run, first_nodes, within_s) for run in runs] for within_s in (FIVE_MINUTES_S, HALF_HOUR_S)),
        )
    for start in STARTS:
        name = f"{start.nodes} nodes of {start.needed:.1f}, episode {start.episode_s:g} s, step {start.step_s:g} s"
        targets = [StartingRun(replace(start, seed=seed)).run(FIVE_MINUTES_S).largest_target for seed in seeds]
        yield _line(name, [target / max(start.nodes, ceil(start.needed)) for target in targets])


def _overshoot(run: SimulationResult, first_nodes: int, within_s: float) -> float:
    return max(
        max(tick.target, tick.ready + tick.pending) / max(first_nodes, ceil(tick.needed - 1e-6))
        for tick in run.ticks
        if tick.at_s <= within_s
    )


def _line(name: str, *ratios: list[float]) -> str:
    return f"{name:38} " + " ".join(f"{fmean(part):13.2f} {max(part):5.2f}" for part in ratios)


if __name__ == "__main__":
    for line in lines(SEEDS):
        print(line, flush=True)  # noqa: T201
