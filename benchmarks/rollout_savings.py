"""Rollouts that a real tiny model needs to reach a score, compared between data algorithms or ages of the data.

    python -m benchmarks.rollout_savings [--compare data] [--recipe reverse] [--seeds 3] [--limit-s 150]
                                               [--set SETTING ...] [--svg FILE] [--json FILE]

`--compare data`: all groups, dynamic sampling, the same with up to half of each batch replayed, and with GRESO too.
`--compare age`: the same staleness bound with pacing, which aims at the newest version, and without, where rollouts
wait until the bound.

Each run is `astraflow run RECIPE --headless` with the settings of one variant, until the limit or the recipe's stop
condition. The score is that of an evaluation every five versions, on prompts drawn evenly: the reward in training is
no measure here, because GRESO chooses the prompts. Rollouts of evaluations do not count. Other work on the machine
changes the seconds, not the rollouts; with `age` it changes how old the data is, which the first table has. The second
table compares the variants after equal numbers of steps, and so of trained rollouts.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from astraflow.archive.connection import open_recorded
from astraflow.archive.reports import find_rounds, read_reports
from astraflow.recipe.loading import load_recipe
from astraflow.runtime.plot import Curve, line_plot
from benchmarks.recipe_curves import finished_run
from tests.fakes.forking import ForkingPython

THRESHOLDS = (0.6, 0.7, 0.8, 0.9)
_EVALUATION = "progress"
_SMOOTHED_ROUNDS = 3
"""Evaluations over which a score is averaged."""
_INFORMATIVE = "flows.train.filters=[{{kind='informative'}}]"
_GRESO = "flows.train.selector={{kind='greso', floor_easy=0.05, floor_hard=0.30}}"
_REPLAY = "policies.{policy}.sampler={{kind='replay', ratio=0.5, order='deadline'}}"
_BOUND = "policies.{policy}.max_staleness=8"
VARIANTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "data": {
        "all groups": ("flows.train.filters=[{{kind='keep_all'}}]",),
        "dynamic sampling": (_INFORMATIVE,),
        "replay": (_INFORMATIVE, _REPLAY),
        "replay, GRESO": (_INFORMATIVE, _REPLAY, _GRESO),
    },
    "age": {
        "paced": (_BOUND, "policies.{policy}.pacing=true"),
        "bound alone": (_BOUND, "policies.{policy}.pacing=false"),
    },
}
"""Settings of each variant, by comparison: those of `data` have the values of the recipes `math_efficient_data`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Score of one evaluated version."""

    version: int
    rollouts: int
    """Rollouts of training that dataflow had accepted when the version was published."""
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingsOutcome:
    """One run of a variant."""

    variant: str
    seed: int
    steps: int
    seconds: float
    age: float
    """Mean age of trained rows at delivery. Versions."""
    rounds: tuple[Evaluated, ...]

    def rollouts_to(self, threshold: float) -> int | None:
        """Returns the rollouts at which the smoothed score first reached the threshold; None if it never did."""
        return next((int(rollouts) for rollouts, score in smoothed(self.rounds) if score >= threshold), None)


def smoothed(rounds: Sequence[Evaluated]) -> list[tuple[float, float]]:
    """Returns rollouts and mean score of each evaluation and the two before it."""
    return [(float(window[-1].rollouts), score) for window, score in _windows(rounds)]


def _windows(rounds: Sequence[Evaluated]) -> list[tuple[Sequence[Evaluated], float]]:
    """Returns each evaluation with the two before it, and their mean score."""
    ends = range(_SMOOTHED_ROUNDS, len(rounds) + 1)
    windows = [rounds[end - _SMOOTHED_ROUNDS : end] for end in ends]
    return [(window, statistics.fmean(part.score for part in window)) for window in windows]


def run_variant(
    recipe: str,
    variant: str,
    variant_settings: Sequence[str],
    seed: int,
    *,
    limit_s: float,
    settings: Sequence[str] = (),
) -> SavingsOutcome:
    """Runs a variant, with the settings for all variants. Raises: RuntimeError for a run without a summary."""
    (policy,) = load_recipe(recipe).policies
    own = [setting.format(policy=policy) for setting in variant_settings]
    own += [f"seed={seed}", f"policies.{policy}.model.seed={seed}"]
    own += [f"evaluations.{_EVALUATION}.{rest}" for rest in ("every_versions=5", "prompts=64", "samples=2")]
    with finished_run(recipe, [*own, *settings], limit_s=limit_s) as (summary, archive):
        rounds, age = evaluated(archive), mean_age(archive)
    return SavingsOutcome(
        variant=variant,
        seed=seed,
        steps=summary["steps"],
        seconds=summary["seconds_training"],
        age=age,
        rounds=tuple(rounds),
    )


def evaluated(archive: Path) -> list[Evaluated]:
    """Returns the evaluated versions in the archive of a run with one policy, oldest first."""
    progress: dict[int, int] = {}
    for resolution_s in (60, 1):
        for report in read_reports(archive, resolution_s=resolution_s):
            accepted = sum(flow.episodes.get("accepted", 0) for flow in report.flows if flow.id != _EVALUATION)
            version = int(report.streams[0].version)
            progress[version] = max(progress.get(version, 0), accepted)
    with closing(open_recorded(archive)) as database:
        rounds = find_rounds(database, before=None, limit=10_000)
    outcome = []
    for part in reversed(rounds):
        (version,) = (int(number) for number in part.versions.values())
        score = next((score.value for score in part.scores if score.name.startswith("avg@")), None)
        if part.flow == _EVALUATION and score is not None:
            rollouts = max((count for at, count in progress.items() if at <= version), default=0)
            outcome.append(Evaluated(version=version, rollouts=rollouts, score=score))
    return outcome


def mean_age(archive: Path) -> float:
    """Returns the mean staleness of the rows in the batches of a run with one policy. Versions."""
    ages: Counter[int] = Counter()
    for report in read_reports(archive, resolution_s=60):
        ages.update(report.streams[0].staleness)
    for report in read_reports(archive, resolution_s=1):
        ages.update(report.streams[0].staleness)
    return sum(age * rows for age, rows in ages.items()) / max(1, ages.total())


def table(outcomes: Sequence[SavingsOutcome]) -> str:
    """Formats the median rollouts of each variant to reach each score, and the runs that reached it."""
    lines = [
        f"{'variant':22} {'runs':>4} {'steps':>6} {'age':>4} "
        + " ".join(f"{f'to {score}':>16}" for score in THRESHOLDS)
    ]
    for variant in dict.fromkeys(outcome.variant for outcome in outcomes):
        runs = [outcome for outcome in outcomes if outcome.variant == variant]
        steps = statistics.median(run.steps for run in runs)
        cells = [_cell([run.rollouts_to(score) for run in runs]) for score in THRESHOLDS]
        age = statistics.fmean(run.age for run in runs)
        lines.append(f"{variant:22} {len(runs):4} {steps:6.0f} {age:4.1f} " + " ".join(f"{cell:>16}" for cell in cells))
    return "\n".join([*lines, ""])


def equal_steps_table(outcomes: Sequence[SavingsOutcome], *, parts: int = 4) -> str:
    """Formats the smoothed score of each variant after equal numbers of steps, which have trained as many rollouts
    each: the mean over the seeds, and in parentheses each seed. `parts`: equally spaced steps of the shortest run."""
    by_step = {id(run): {int(rounds[-1].version): score for rounds, score in _windows(run.rounds)} for run in outcomes}
    common = sorted(set.intersection(*(set(scores) for scores in by_step.values())))
    chosen = [common[round(part * (len(common) - 1) / parts)] for part in range(1, parts + 1)] if common else []
    lines = [f"{'variant':14} " + " ".join(f"{f'after {step} steps':>28}" for step in chosen)]
    for variant in dict.fromkeys(run.variant for run in outcomes):
        runs = [by_step[id(run)] for run in outcomes if run.variant == variant]
        cells = []
        for step in chosen:
            scores = [scores[step] for scores in runs]
            cells.append(f"{statistics.fmean(scores):.3f} ({' '.join(f'{score:.3f}' for score in scores)})")
        lines.append(f"{variant:14} " + " ".join(f"{cell:>28}" for cell in cells))
    return "\n".join([*lines, ""])


def plot(outcomes: Sequence[SavingsOutcome], *, by_steps: bool = False) -> str:
    """Draws the score of every run over its rollouts, or over its steps."""
    curves = []
    for run in outcomes:
        points = [(float(rounds[-1].version), score) for rounds, score in _windows(run.rounds)]
        points = points if by_steps else smoothed(run.rounds)
        curves.append(Curve(name=f"{run.variant}, seed {run.seed}", points=tuple(points)))
    x_label = "steps" if by_steps else "rollouts"
    return line_plot(curves, x_label=x_label, y_label=f"score, mean of {_SMOOTHED_ROUNDS} evaluations")


def _cell(rollouts: Sequence[int | None]) -> str:
    reached = [count for count in rollouts if count is not None]
    return (
        f"{statistics.median(reached):,.0f} ({len(reached)}/{len(rollouts)})" if reached else f"- (0/{len(rollouts)})"
    )


def main() -> None:
    """Runs the variants, alternating, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", default="data", choices=VARIANTS)
    parser.add_argument("--recipe", default="reverse", help=f"with one policy and an evaluation `{_EVALUATION}`")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit-s", type=float, default=150)
    parser.add_argument("--set", action="append", default=[], dest="settings", help="for all variants")
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, closing(ForkingPython(Path(folder))) as python:
        sys.executable = python.executable  # a run would import torch four times
        outcomes = _run_all(options)
    sys.stdout.write(f"\n{table(outcomes)}\n{equal_steps_table(outcomes)}")
    if options.svg:
        options.svg.write_text(plot(outcomes, by_steps=options.compare == "age"))


def _run_all(options: argparse.Namespace) -> list[SavingsOutcome]:
    outcomes: list[SavingsOutcome] = []
    for seed in range(options.seeds):
        for variant, own in VARIANTS[options.compare].items():
            run = run_variant(options.recipe, variant, own, seed, limit_s=options.limit_s, settings=options.settings)
            outcomes.append(run)
            sys.stdout.write(f"{table([run]).splitlines()[1]}   seed {seed}, {run.seconds:.0f} s\n")
            sys.stdout.flush()
            if options.json:
                options.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n")
    return outcomes


if __name__ == "__main__":
    main()
