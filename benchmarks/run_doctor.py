"""Run doctor over the library of seeded runs, with seeds that no threshold was chosen with: recall and false faults.

    python -m benchmarks.run_doctor [--seeds 20] [--runs FOLDER ...]

Each fault has runs with it and runs that nearly have it. `--runs` examines recorded runs too, below these folders, and
prints what is found in them.
"""

import argparse
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from astraflow.archive.connection import ARCHIVE_PATH
from astraflow.archive.reports import find_last_report
from astraflow.contract.ids import PolicyId
from astraflow.contract.learning_faults import LearningFault
from astraflow.contract.records import Record, render
from astraflow.learning.examine import examine
from astraflow.learning.records import examine_archive
from tests.learning.seeded_runs import FAULTY, NEARLY, Case, healthy

_FIRST_SEED = 1000
"""Tests, in which thresholds were chosen, use lower seeds."""


def causes(case: Case, seed: int) -> set[str]:
    """Returns the faults that are found in one run."""
    return {record.cause for record in examine(case(np.random.default_rng(seed)))}


def table(seeds: range) -> str:
    """Returns recall and false faults by fault, and those of healthy runs."""
    lines = [
        "| fault | found where it is | found where it nearly is | other faults in these healthy runs |",
        "|---|---|---|---|",
    ]
    recalled, nearly = 0, 0
    for fault in LearningFault:
        hits = sum(fault.value in causes(FAULTY[fault], seed) for seed in seeds)
        false = [causes(NEARLY[fault], seed) for seed in seeds]
        wrong = sum(fault.value in of_run for of_run in false)
        others = Counter(cause for of_run in false for cause in of_run - {fault.value})
        listed = ", ".join(f"{cause} {count}" for cause, count in others.items()) or "0"
        lines.append(f"| {fault.value} | {hits} of {len(seeds)} | {wrong} of {len(seeds)} | {listed} |")
        recalled, nearly = recalled + hits, nearly + wrong
    total = len(LearningFault) * len(seeds)
    lines.append(f"| all | {recalled / total:.1%} | {nearly / total:.1%} | |")
    sick = [seed for seed in range(seeds.start, seeds.start + 200) if causes(healthy, seed)]
    lines.append(f"\nHealthy runs with a fault: {len(sick)} of 200")
    return "\n".join(lines)


def recorded(folder: Path) -> Iterator[tuple[Path, dict[PolicyId, int], tuple[Record, ...]]]:
    """Yields the recorded runs below a folder with at least 20 steps, with their steps and faults."""
    for path in sorted(folder.rglob(str(ARCHIVE_PATH))):
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            select = "select policy, max(step) from training_steps group by policy"
            steps = {PolicyId(policy): count for policy, count in database.execute(select)}
            if max(steps.values(), default=0) < 20:
                continue
            report = find_last_report(database)
            completion = report.completion if report is not None else None
            is_learned = completion is not None and completion.has_learned
            yield path.parents[1], steps, examine_archive(database, steps, is_learned=is_learned)


def main() -> None:
    """Prints the table, and the faults of recorded runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--runs", type=Path, nargs="*", default=[])
    options = parser.parse_args()
    sys.stdout.write(f"{table(range(_FIRST_SEED, _FIRST_SEED + options.seeds))}\n")
    for folder in options.runs:
        for path, steps, faults in recorded(folder):
            sys.stdout.write(f"{path}: {', '.join(f'{policy} {count}' for policy, count in steps.items())} steps\n")
            for record in faults:
                sys.stdout.write(f"    {record.severity.value}: {render(record)}\n")


if __name__ == "__main__":
    main()
