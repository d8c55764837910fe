"""Pool sizes in virtual time: fixed, by the published rule, by the default one; and the published experiment.

    python -m benchmarks.scaling [--seeds 8] [--svg FILE]

Every sizing policy runs the same scenarios with the same seeds. `cost` is the ratio of paid node hours to those of an
oracle that knows the future. The plot shows the published experiment. Takes two minutes with eight seeds.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from astraflow.runtime.plot import Curve, line_plot
from astraflow.scaling.simulation.result import SimulationResult
from astraflow.scaling.simulation.scenarios import PUBLISHED_TRAINER_GPUS, find_scenario
from astraflow.scaling.simulation.simulator import simulate
from benchmarks.scaling.decisions import decision_times_ms

SCENARIOS = (
    "steady",
    "over",
    "step",
    "step-slow",
    "step-and-back",
    "tail",
    "drift",
    "loss",
    "slow-region",
    "noisy",
    "mixed",
    "spot",
)
PUBLISHED = {"fixed 6": (26.9, 358), "fixed 11": (2.1, 359), "plain": (3.0, 312)}
"""Percent of time that the trainer waited, and total GPU hours."""


def compared(name: str, seeds: range) -> dict[str, list[SimulationResult]]:
    """Runs a scenario under every policy."""
    plain = {"sizer": {"rule": "baseline"}}
    return {
        "fixed": [simulate(find_scenario(name), seed=seed, is_fixed=True) for seed in seeds],
        "plain": [simulate(find_scenario(name, plain), seed=seed) for seed in seeds],
        "default": [simulate(find_scenario(name), seed=seed) for seed in seeds],
    }


def published(seeds: range) -> dict[str, list[SimulationResult]]:
    """Runs the published experiment, and the default rule in it."""
    eleven = {"pools": {"rollout": {"nodes": 11}}}
    return {
        "fixed 6": [simulate(find_scenario("published"), seed=seed, is_fixed=True) for seed in seeds],
        "fixed 11": [simulate(find_scenario("published", eleven), seed=seed, is_fixed=True) for seed in seeds],
        "plain": [simulate(find_scenario("published", {"sizer": {"rule": "baseline"}}), seed=seed) for seed in seeds],
        "default": [simulate(find_scenario("published"), seed=seed) for seed in seeds],
    }


def scenario_line(name: str, runs_by_policy: dict[str, list[SimulationResult]]) -> str:
    """Formats wait, cost and actions of each policy, and the worst seed of the default one."""
    cells = [
        f"{_mean(runs, 'wait'):6.1%} {_mean(runs, 'cost'):5.2f} {_mean(runs, 'actions'):5.1f}"
        for runs in runs_by_policy.values()
    ]
    ours = runs_by_policy["default"]
    waits, costs, actions = zip(*((run.wait, run.cost, run.actions) for run in ours), strict=True)
    worst = f"{max(waits):6.1%} {max(costs):5.2f} {max(actions):3d}"
    rest = f"{_mean(ours, 'recovery_s') / 60:6.1f} min {_mean(ours, 'flaps'):5.2f}"
    return f"{name:15} " + " | ".join([*cells, worst]) + rest


def published_line(name: str, runs: Sequence[SimulationResult]) -> str:
    """Formats a line like the published table."""
    hours, nodes = _mean(runs, "hours"), _mean(runs, "node_hours")
    total = nodes + PUBLISHED_TRAINER_GPUS * hours
    wait, gpu_hours = PUBLISHED.get(name, (None, None))
    beside = f"{wait:9.1f} % {gpu_hours:6d}" if wait is not None and gpu_hours is not None else ""
    return f"{name:10} {hours:6.1f} {_mean(runs, 'wait'):8.1%} {nodes:9.1f} {total:8.1f} {beside}"


def plot(runs_by_policy: dict[str, list[SimulationResult]]) -> str:
    """Draws nodes over hours, for the first seed."""
    curves = [_curve("needed", runs_by_policy["default"][0], "needed")]
    curves += [_curve(name, runs_by_policy[name][0], "ready") for name in ("fixed 6", "fixed 11", "plain", "default")]
    return line_plot(curves, x_label="hours", y_label="rollout nodes")


def main() -> None:
    """Prints the tables and draws the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args()
    seeds = range(options.seeds)
    policies = " | ".join(f"{name:>18}" for name in ("fixed", "plain", "default"))
    print(f"{'':15} {policies} | {'its worst seed':>16} {'recovery':>9} {'flaps':>5}")  # noqa: T201
    print(f"{'':15} " + " | ".join([f"{'wait':>6} {'cost':>5} {'moves':>5}"] * 3))  # noqa: T201
    for name in SCENARIOS:
        print(scenario_line(name, compared(name, seeds)), flush=True)  # noqa: T201
    experiment = published(seeds)
    print(f"\n{'':10} {'hours':>6} {'wait':>8} {'rollout h':>9} {'GPU h':>8}   published wait, GPU h")  # noqa: T201
    for name, runs in experiment.items():
        print(published_line(name, runs))  # noqa: T201
    times = decision_times_ms(nodes=1000, decisions=300)
    print(f"\na decision on 1,000 nodes: p50 {times[0]:.1f} ms, p99 {times[1]:.1f} ms")  # noqa: T201
    if options.svg:
        options.svg.write_text(plot(experiment))


def _mean(runs: Sequence[SimulationResult], figure: str) -> float:
    return fmean(float(getattr(run, figure)) for run in runs)


def _curve(name: str, run: SimulationResult, figure: str) -> Curve:
    moments = run.ticks[::20]
    return Curve(name=name, points=tuple((moment.at_s / 3600, float(getattr(moment, figure))) for moment in moments))


if __name__ == "__main__":
    main()
