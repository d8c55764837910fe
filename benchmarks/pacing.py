"""Age of the trained groups and wait of the trainer: the staleness gate alone, the best constant limit, and pacing.

    python -m benchmarks.pacing            # about 2 minutes

Virtual time around a real stream (tests/dataflow/simulated_stream.py): groups of 8 episodes with lognormal durations,
steps of 1 s with 10 % noise, bound 8, 600 steps of which the first 100 are left out, three seeds.
"""

from collections.abc import Iterator
from dataclasses import replace
from statistics import mean
from typing import Annotated

import typer

from tests.dataflow.simulated_stream import PULL_S, Demand, SimulatedStream

STEPS, WARM_UP = 600, 100
SHIFT = 300
"""Step at which a changing case changes."""

MORE_WAIT = 0.005
"""Additional wait that the best constant limit may cost, as a share of time."""

BASE = Demand(nodes=0, max_staleness=8, batch_groups=32, group_size=8, step_s=1.0, step_noise=0.1, spread=0.4)


def _case(episode_steps: float, *, capacity: float = 1.5, **changes: object) -> Demand:
    """Returns a demand. capacity: slots over those that the mean rates need."""
    demand = replace(BASE, episode_s=episode_steps, **changes)  # type: ignore[arg-type]
    episodes = demand.batch_groups * demand.group_size * episode_steps / demand.usable_share
    return replace(demand, nodes=max(1, round(capacity * episodes / 4)))


CASES = {
    "episodes of 0.5 steps": _case(0.5),
    "1 step": _case(1.0),
    "2 steps": _case(2.0),
    "2 steps, long tail (1.0)": _case(2.0, spread=1.0),
    "3 steps": _case(3.0),
    "batches of 4 groups": _case(1.0, batch_groups=4),
    "half of the groups filtered": _case(1.0, usable_share=0.5),
    "bound 2, 0.5 steps": _case(0.5, max_staleness=2),
    "capacity below demand": _case(1.0, capacity=0.6),
    "demand doubles": _case(1.0, capacity=3.0, step_factor=lambda step: 1.0 if step < SHIFT else 0.5),
    "episodes double": _case(1.0, capacity=3.0, episode_factor=lambda step: 1.0 if step < SHIFT else 2.0),
    "60 % of the nodes lost for 40 steps": _case(
        1.0, nodes_factor=lambda step: 0.4 if SHIFT <= step < SHIFT + 40 else 1
    ),
}


def measure(demand: Demand, *, steps: int, seeds: int) -> tuple[float, float]:
    """Returns mean age in versions, and share of the time that the trainer waited for groups."""
    ages, waits = [], []
    for seed in range(seeds):
        stream = SimulatedStream(replace(demand, seed=seed))
        stream.run(steps=steps)
        begin = min(WARM_UP, steps // 2)
        ages.append(mean(stream.ages[begin:]))
        waited = [max(0.0, wait - PULL_S) for wait in stream.waits_s[begin:]]
        waits.append(sum(waited) / (sum(waited) + sum(stream.steps_s[begin:])))
    return mean(ages), mean(waits)


def best_constant(demand: Demand, wait: float, *, steps: int, seeds: int) -> tuple[float, float]:
    """Returns the figures of the smallest constant limit that costs no more than MORE_WAIT beside `wait`."""
    for limit in _limits(demand):
        measurement = measure(replace(demand, most_outstanding=limit), steps=steps, seeds=seeds)
        if measurement[1] <= wait + MORE_WAIT:
            return measurement
    return measure(demand, steps=steps, seeds=seeds)


def _limits(demand: Demand) -> Iterator[int]:
    batch = demand.batch_groups
    yield from range(batch, (demand.max_staleness + 1) * batch, max(1, batch // 8))


def main(
    steps: Annotated[int, typer.Option(min=20)] = STEPS,
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    constant: Annotated[bool, typer.Option(help="Search the best constant limit as well.")] = True,
) -> None:
    """Prints the table: mean age in versions, and share of time waiting."""
    columns = ["case", "gate alone", *(["best constant limit"] if constant else []), "pacing"]
    typer.echo(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name, demand in CASES.items():
        gate = measure(demand, steps=steps, seeds=seeds)
        best = best_constant(demand, gate[1], steps=steps, seeds=1) if constant else None
        paced = measure(replace(demand, is_paced=True), steps=steps, seeds=seeds)
        cells = [f"{age:.2f}, {wait:.1%}" for age, wait in (gate, *([best] if best else []), paced)]
        typer.echo(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    typer.run(main)
