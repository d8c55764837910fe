"""Learning from rollouts of an engine with coarse weights: which correction keeps the reward of an exact engine?

    python -m benchmarks.coarse_rollouts [--recipe reverse] [--weights int4] [--seeds 3] [--steps 150]
                                         [--set SETTING ...] [--json FILE] [--svg-folder FOLDER]

Each run is the recipe with REINFORCE and another correction, on `local_torch` engines whose linear layers are rounded,
and once on exact ones. Runs end after so many steps, however long they take. A setting applies to all runs.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

from astraflow.archive.reports import read_reports
from astraflow.runtime.plot import Curve, line_plot
from benchmarks.recipe_curves import finished_run, rewards_of

_TIS = "corrections=[{kind='tis'}]"
VARIANTS = {
    "exact engine": ("exact", ""),
    "none": ("coarse", ""),
    "tis": ("coarse", _TIS),
    "icepop": ("coarse", "corrections=[{kind='icepop'}]"),
    "centering": ("coarse", "centering=8"),
    "centering, tis": ("coarse", f"centering=8, {_TIS}"),
}
"""Name -> engine, and options of the loss."""
_LIMIT_S = 600.0
_WINDOW = 10
"""Steps over which a reward is averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run."""

    variant: str
    seed: int
    rewards: list[float]
    """Mean reward of each step."""
    mismatch: float
    """Largest difference of logprobs between engine and trainer after a load, in nats."""
    divergence: list[tuple[int, float]]
    """Step and `kl_behaviour`, of the steps in the archive's reports."""
    corrected: list[tuple[int, float]]
    """Step and `kl_corrected`."""


def run_variant(recipe: str, variant: str, seed: int, *, weights: str, steps: int, more: Sequence[str] = ()) -> Outcome:
    """Runs one variant. more: settings beside its own."""
    engine, options = VARIANTS[variant]
    loss = "{" + ", ".join(part for part in ("kind='reinforce'", options) if part) + "}"
    settings = [
        f"seed={seed}",
        f"policies.solver.model.seed={seed}",
        f"policies.solver.algorithm.loss={loss}",
        "policies.solver.algorithm.max_mismatch_steps=1000000",
        f"nodes.engine.weights={weights if engine == 'coarse' else 'exact'}",
        f"stop.steps={steps}",
        "stop.reward=1.0",
        *(["evaluations.progress.every_versions=1000000"] if recipe.startswith("reverse") else []),
        *more,
    ]
    with finished_run(recipe, settings, limit_s=_LIMIT_S) as (summary, archive):
        return Outcome(
            variant=variant,
            seed=seed,
            rewards=rewards_of(archive)["solver"][:steps],
            mismatch=summary["logprob_mismatch_max"],
            divergence=_metric_of(archive, "kl_behaviour"),
            corrected=_metric_of(archive, "kl_corrected"),
        )


def _metric_of(archive: Path, name: str) -> list[tuple[int, float]]:
    reports = read_reports(archive, resolution_s=1)
    trainings = [stream.training for report in reports for stream in report.streams]
    return sorted(
        {training.steps: training.metrics[name] for training in trainings if name in training.metrics}.items()
    )


def table(outcomes: list[Outcome], *, steps: int) -> str:
    """Formats the rewards of the variants, the seeds of each separated by commas."""
    marks = [steps // 3, 2 * steps // 3, steps]
    lines = ["| variant | " + " | ".join(f"step {mark}" for mark in marks) + " | largest mismatch, nats |"]
    lines.append("|---" * (len(marks) + 2) + "|")
    for variant in dict.fromkeys(outcome.variant for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.variant == variant]
        cells = [", ".join(f"{mean(run.rewards[:mark][-_WINDOW:]):.3f}" for run in own) for mark in marks]
        lines.append(f"| {variant} | {' | '.join(cells)} | {max(run.mismatch for run in own):.2g} |")
    return "\n".join(lines)


def plots(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Returns pictures by file name: reward, and divergence before correction, as means over the seeds."""
    by_variant = {
        variant: [outcome for outcome in outcomes if outcome.variant == variant]
        for variant in dict.fromkeys(outcome.variant for outcome in outcomes)
    }
    rewards = [
        Curve(name=variant, points=tuple(_smoothed([list(enumerate(run.rewards, 1)) for run in runs])))
        for variant, runs in by_variant.items()
    ]
    divergence = [
        Curve(name=variant, points=tuple(_smoothed([run.divergence for run in runs])))
        for variant, runs in by_variant.items()
    ]
    return {
        "coarse-rewards.svg": line_plot(rewards, x_label="step", y_label="reward, mean of 10 steps and of the seeds"),
        "coarse-divergence.svg": line_plot(divergence, x_label="step", y_label="kl_behaviour, nats per token"),
    }


def _smoothed(runs: Sequence[Sequence[tuple[int, float]]]) -> list[tuple[float, float]]:
    """Returns means over ten steps of all runs, by their last step."""
    last = max((step for run in runs for step, _ in run), default=0)
    windows = (
        (end, [value for run in runs for step, value in run if end - _WINDOW < step <= end])
        for end in range(_WINDOW, last + 1, 2)
    )
    return [(float(end), mean(values)) for end, values in windows if values]


def main() -> None:
    """Runs all variants and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="reverse")
    parser.add_argument("--weights", default="int4", choices=("int8", "int4", "int3"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="SETTING")
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="all by default")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg-folder", type=Path)
    options = parser.parse_args()
    outcomes: list[Outcome] = []
    for seed in range(options.seeds):
        for variant in options.variant or VARIANTS:
            limits = {"weights": options.weights, "steps": options.steps, "more": options.settings}
            outcomes.append(run_variant(options.recipe, variant, seed, **limits))
            sys.stdout.write(f"{variant}, seed {seed}: {mean(outcomes[-1].rewards[-_WINDOW:]):.3f}\n")
            sys.stdout.flush()
            if options.json is not None:
                options.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes]))
    sys.stdout.write(f"{table(outcomes, steps=options.steps)}\n")
    if options.svg_folder is not None:
        for name, picture in plots(outcomes).items():
            (options.svg_folder / name).write_text(picture)


if __name__ == "__main__":
    main()
