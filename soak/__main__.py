"""Real processes under random faults, checked by an independent ledger.

    python -m soak [--minutes 1] [--kills 0] [--seed 0] [--json FILE] [--directory FOLDER]

Exits with code 0 only if no invariant was violated and at most 1 % of the groups were discarded. The seed determines
the faults and their times; their effects depend on the machine, so repeat a seed that found a violation.
"""

import argparse
import asyncio
import json
import logging
import signal
import sys
import tempfile
import time
from pathlib import Path

from astraflow.runtime.logs import configure
from soak.figures import as_json, figures, table
from soak.scenario import Outcome, SoakLength, soak

MAX_DISCARDED = 0.01
"""Share of the groups that may be discarded."""

SHOWN = 20
"""Number of violations to print in full."""


def main() -> int:
    """Runs one soak; returns the exit code."""
    chosen = _arguments()
    for number in (signal.SIGINT, signal.SIGTERM):  # in either case all processes end, also stopped ones
        signal.signal(number, signal.default_int_handler)
    configure(level="ERROR")
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    directory = chosen.directory or Path(tempfile.mkdtemp(prefix="soak-"))
    began = time.monotonic()

    def say(what: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began:7.1f} s  {what}\n")
        sys.stdout.flush()

    say(f"seed {chosen.seed}; logs and state in {directory}")
    length = SoakLength(seconds=60 * chosen.minutes, kills=chosen.kills)
    outcome = asyncio.run(soak(chosen.seed, length, directory, say))
    run_figures = figures(outcome, seed=chosen.seed)
    if chosen.json is not None:
        violations = [str(violation) for violation in outcome.violations]
        chosen.json.write_text(json.dumps({**as_json(run_figures), "violations": violations}, indent=2) + "\n")
    sys.stdout.write(table(run_figures) + "\n")
    return _judged(outcome, run_figures.discarded_share, chosen)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long the storm lasts, at least")
    parser.add_argument("--kills", type=int, default=0, help="and at least until that many processes were killed")
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    parser.add_argument("--json", type=Path, default=None, help="also write the figures there")
    parser.add_argument("--directory", type=Path, default=None, help="for logs and state; a new one by default")
    return parser.parse_args()


def _judged(outcome: Outcome, discarded_share: float, chosen: argparse.Namespace) -> int:
    problems = [str(violation) for violation in outcome.violations]
    if discarded_share > MAX_DISCARDED:
        problems.append(f"{discarded_share:.2%} of the groups were discarded, more than {MAX_DISCARDED:.0%}")
    for problem in problems[:SHOWN]:
        sys.stdout.write(f"BROKEN  {problem}\n")
    if problems:
        again = f"python -m soak --minutes {chosen.minutes:g} --kills {chosen.kills} --seed {chosen.seed}"
        sys.stdout.write(f"{len(problems)} problems; the same faults again: {again}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
