"""Learning from rollouts of an engine with coarse weights: which correction keeps the reward of an exact engine?

    python -m benchmarks.coarse_rollouts [--recipe reverse] [--weights int4] [--seeds 3] [--steps 150] [--json FILE]

Each run is the recipe with REINFORCE and another correction, on `local_torch` engines whose linear layers are rounded,
and once on exact ones. Runs end after so many steps, however long they take.
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

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


def run_variant(recipe: str, variant: str, seed: int, *, weights: str, steps: int) -> Outcome:
    """Runs one variant."""
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
        "evaluations.progress.every_versions=1000000",
    ]
    with finished_run(recipe, settings, limit_s=_LIMIT_S) as (summary, archive):
        rewards = rewards_of(archive)["solver"][:steps]
    return Outcome(variant=variant, seed=seed, rewards=rewards, mismatch=summary["logprob_mismatch_max"])


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


def main() -> None:
    """Runs all variants and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="reverse")
    parser.add_argument("--weights", default="int4", choices=("int8", "int4"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    outcomes: list[Outcome] = []
    for seed in range(options.seeds):
        for variant in VARIANTS:
            outcomes.append(run_variant(options.recipe, variant, seed, weights=options.weights, steps=options.steps))
            sys.stdout.write(f"{variant}, seed {seed}: {mean(outcomes[-1].rewards[-_WINDOW:]):.3f}\n")
            sys.stdout.flush()
            if options.json is not None:
                options.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes]))
    sys.stdout.write(f"{table(outcomes, steps=options.steps)}\n")


if __name__ == "__main__":
    main()
