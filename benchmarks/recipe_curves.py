"""Tiny recipes on this machine, one after the other: reward before and after, seconds, and a plot for each recipe.

    python -m benchmarks.recipe_curves [NAME ...] [--seeds 3] [--limit-s 600] [--json FILE] [--svg-folder FOLDER]

Each run is `astraflow run NAME --headless` until the recipe's stop condition or the limit; the seed sets data, sampling
and the initial weights of models that are created. The warm start of a seed's model runs before, is measured on its
own, and is cached in ASTRAFLOW_HOME.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from astraflow.archive.connection import ARCHIVE_PATH
from astraflow.archive.reports import read_reports
from astraflow.recipe.files import packaged_recipes
from astraflow.recipe.loading import load_recipe
from astraflow.runtime.plot import Curve, line_plot
from astraflow.trainer.model_preparation import prepare_model

_SMOOTHED_STEPS = 5
"""Steps over which a curve is averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """One run of a recipe."""

    recipe: str
    seed: int
    reached: bool
    """The reward of the stop condition was reached."""
    end: str
    """Reason for the end of the run."""
    before: dict[str, float | None]
    """Mean reward of the first five steps, by policy."""
    after: dict[str, float | None]
    """Mean reward over the window of the stop condition, by policy."""
    warm_start_s: float
    training_s: float
    """From the first step to the end."""
    load: float
    """Runnable processes of the machine at the end, averaged over a minute."""
    rewards: dict[str, list[float]]
    """Mean reward of each step, by policy."""


def tiny_recipes() -> list[str]:
    """Returns the names of the packaged tiny recipes."""
    return [name for name in packaged_recipes() if name.rpartition("/")[2].startswith("tiny")]


def run_once(name: str, seed: int, *, limit_s: float) -> RunOutcome:
    """Runs a recipe to its end. Raises: RuntimeError for a run without a summary."""
    created = [name for name, policy in load_recipe(name).policies.items() if policy.model["kind"] == "tiny"]
    settings = [
        f"seed={seed}",
        *(f"policies.{policy}.model.seed={10 * seed + at}" for at, policy in enumerate(created)),
    ]
    started = time.monotonic()
    for policy in load_recipe(name, settings).policies.values():
        prepare_model(policy.model)
    warm_start_s = time.monotonic() - started
    with finished_run(name, settings, limit_s=limit_s) as (summary, archive):
        rewards = rewards_of(archive)
    return RunOutcome(
        recipe=name,
        seed=seed,
        reached=summary["learned"],
        end=summary["reason"],
        before={part["policy"]: part["reward_first"] for part in summary["policies"]},
        after={part["policy"]: part["reward_last"] for part in summary["policies"]},
        warm_start_s=warm_start_s,
        training_s=summary["seconds_training"],
        load=os.getloadavg()[0],
        rewards=rewards,
    )


@contextmanager
def finished_run(name: str, settings: Sequence[str], *, limit_s: float) -> Iterator[tuple[dict[str, Any], Path]]:
    """Runs a recipe without page to its end or the limit; yields its summary and its archive, which is then deleted.

    Raises: RuntimeError for a run without a summary.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder, summary_file = Path(temporary) / "run", Path(temporary) / "summary.json"
        command = [sys.executable, "-m", "astraflow.cli", "run", name, "--headless", "--no-web"]
        command += ["--limit-s", str(limit_s), "--run-dir", str(folder), "--json", str(summary_file)]
        for setting in settings:
            command += ["--set", setting]
        ended = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if not summary_file.is_file():
            raise RuntimeError(f"cannot measure {name}: the run left no summary; it wrote\n{ended.stdout[-2000:]}")
        yield json.loads(summary_file.read_text()), folder / ARCHIVE_PATH


def rewards_of(archive: Path) -> dict[str, list[float]]:
    """Returns the mean reward of each step by policy, from the archive of a run."""
    by_step: dict[str, dict[int, float]] = {}
    for resolution_s in (60, 1):
        for report in read_reports(archive, resolution_s=resolution_s):
            for stream in report.streams:
                first = stream.training.steps - len(stream.training.rewards) + 1
                by_step.setdefault(stream.policy, {}).update(enumerate(stream.training.rewards, start=first))
    return {policy: [steps[step] for step in sorted(steps)] for policy, steps in by_step.items()}


def table(outcomes: Sequence[RunOutcome]) -> str:
    """Formats one line per run and policy."""
    lines = [
        f"{'recipe':28} {'policy':10} {'seed':>4} {'before':>7} {'after':>7} {'reached':>7} {'warm s':>7} {'run s':>7} "
        f"{'steps':>6} {'load':>5}"
    ]
    for outcome in outcomes:
        for policy, rewards in outcome.rewards.items():
            lines.append(
                f"{outcome.recipe:28} {policy:10} {outcome.seed:4} {_figure(outcome.before[policy])} "
                f"{_figure(outcome.after[policy])} {'yes' if outcome.reached else 'no':>7} {outcome.warm_start_s:7.0f} "
                f"{outcome.training_s:7.0f} {len(rewards):6} {outcome.load:5.1f}"
            )
    return "\n".join([*lines, ""])


def plot(outcomes: Sequence[RunOutcome]) -> str:
    """Draws the runs of one recipe, averaged over a few steps."""
    curves = [
        Curve(name=f"{policy}, seed {outcome.seed}", points=tuple(_smoothed(rewards)))
        for outcome in outcomes
        for policy, rewards in outcome.rewards.items()
    ]
    return line_plot(curves, x_label="step", y_label=f"reward, mean of {_SMOOTHED_STEPS} steps")


def main() -> None:
    """Runs the recipes, prints the table, and writes the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", help="all tiny recipes by default")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=600)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg-folder", type=Path)
    arguments = parser.parse_args()
    if arguments.svg_folder:
        arguments.svg_folder.mkdir(parents=True, exist_ok=True)  # before minutes of runs
    outcomes: list[RunOutcome] = []
    for name in arguments.recipes or tiny_recipes():
        runs = [run_once(name, seed, limit_s=arguments.limit_s) for seed in range(arguments.seeds)]
        outcomes += runs
        sys.stdout.write(table(runs))
        sys.stdout.flush()
        if arguments.svg_folder:
            (arguments.svg_folder / f"{name.replace('/', '-')}.svg").write_text(plot(runs))
        if arguments.json:
            arguments.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n")
    sys.stdout.write(f"\n{table(outcomes)}")
    sys.exit(0 if all(outcome.reached for outcome in outcomes) else 1)


def _figure(reward: float | None) -> str:
    return f"{'-' if reward is None else format(reward, '.3f'):>7}"


def _smoothed(rewards: Sequence[float]) -> list[tuple[float, float]]:
    windows = ((end, rewards[end - _SMOOTHED_STEPS : end]) for end in range(_SMOOTHED_STEPS, len(rewards) + 1))
    return [(float(end), sum(window) / len(window)) for end, window in windows]


if __name__ == "__main__":
    main()
