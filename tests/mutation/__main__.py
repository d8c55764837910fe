"""Runs the tests of a module on small changes of its code, and lists the changes that no test notices.

    python -m tests.mutation losses [--sample 120] [--seed 22] [--all] [--again]

Writes the verdicts to build/mutants/NAME.json. `--again` tries only the mutants that survived the last run, after tests
were added. Mutants of equivalents.txt change no behaviour and do not count. Exits with code 1 if tests notice fewer
than 85 % of the others.
"""

import argparse
import importlib
import json
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.trial import Trials, Verdict

GOAL = 0.85
EQUIVALENTS = Path(__file__).with_name("equivalents.txt")


@dataclass(frozen=True, slots=True)
class Target:
    """Code to change, and the tests of it that run in this process and do not wait for real time."""

    code: Sequence[str]
    """Glob patterns."""
    tests: Sequence[str]

    def paths(self) -> list[Path]:
        """Returns the modules to change."""
        return sorted(path for pattern in self.code for path in Path().glob(pattern))


def _tests(folder: str, *names: str) -> list[str]:
    return [f"tests/{folder}/test_{name}.py" for name in names]


CODEC = "astraflow/weights/codec"
TARGETS = {
    "advantages": Target(
        ["astraflow/algorithms/*advantages.py"], _tests("algorithms", "advantages", "token_advantages", "checks")
    ),
    # Without the compiled loops, which machine code cannot change; they must equal the reference on any input.
    "codec": Target(
        [f"{CODEC}/*.py", f"{CODEC}/kernels/re*.py", f"{CODEC}/kernels/rice.py"],
        ["tests/weights/codec", "-k", "not compiled and not both_kernels and not selection"],
    ),
    "guard": Target(
        ["maintainer/fleet/guard/guard.py", "maintainer/fleet/guard/inputs.py"], ["tests/maintainer/fleet/guard"]
    ),
    "leases": Target(
        [f"astraflow/dataflow/issuing/{name}.py" for name in ("issuer", "leases", "partial_rollouts")],
        _tests("dataflow", "issuer", "leases", "partial_rollouts"),
    ),
    "losses": Target(["astraflow/algorithms/losses/*.py"], _tests("algorithms", "losses", "m2po", "dpo", "checks")),
    "sizer": Target(
        ["astraflow/scaling/rule/*.py", "astraflow/scaling/measurement/*.py"],
        # Without the simulations, and the invariants for generated signals: both cost more than they notice.
        [
            *_tests("scaling", "sizer", "golden_decisions", "observation", "fleet_constraints", "staleness_gate"),
            *_tests("scaling", "demand", "capacity", "windows", "pools", "placement", "limits", "replacement"),
            *_tests("scaling", "scale_up", "scale_down", "cold_start"),
            *["-k", "not overshoots and not episode_by_episode"],
        ],
    ),
}


def main() -> int:
    """Runs the mutants of one target; returns the exit code."""
    options = _options()
    target, report = TARGETS[options.target], Path(f"build/mutants/{options.target}.json")
    mutants = [mutant for path in target.paths() for mutant in mutants_of(path)]
    size = len(mutants) if options.all else min(options.sample, len(mutants))
    sample = {mutant.key: mutant for mutant in random.Random(options.seed).sample(mutants, size)}
    for line in EQUIVALENTS.read_text().splitlines():
        sample.pop(line.partition("  # ")[0], None)
    earlier: dict[str, str] = json.loads(report.read_text()) if options.again else {}
    verdicts = {key: Verdict(earlier.get(key, Verdict.SURVIVED)) for key in sample}

    def note(mutant: Mutant, verdict: Verdict, tests: int) -> None:
        verdicts[mutant.key] = verdict
        if verdict is Verdict.SURVIVED:
            location = f"{mutant.path}:{max(mutant.lines)} {mutant.function}"
            sys.stdout.write(f"\nsurvived {tests} tests: {location}\n{mutant.diff()}\n")
            sys.stdout.flush()

    _run_pytest(target, [sample[key] for key, verdict in verdicts.items() if verdict is Verdict.SURVIVED], note)
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(json.dumps(verdicts, indent=1) + "\n")
    counts = {verdict: list(verdicts.values()).count(verdict) for verdict in Verdict}
    score = 1 - counts[Verdict.SURVIVED] / len(verdicts)
    sys.stdout.write(
        f"\n{options.target}: {len(verdicts)} of {len(mutants)} mutants (seed {options.seed}): "
        f"{', '.join(f'{count} {verdict}' for verdict, count in counts.items())}; score {score:.1%}\n"
    )
    return 0 if score >= GOAL else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--sample", type=int, default=120, help="number of mutants to try, chosen at random")
    parser.add_argument("--seed", type=int, default=22, help="seed of the choice")
    parser.add_argument("--all", action="store_true", help="try all mutants")
    parser.add_argument("--again", action="store_true", help="try the survivors of the last run")
    return parser.parse_args()


def _run_pytest(target: Target, mutants: Sequence[Mutant], note: Callable[[Mutant, Verdict, int], None]) -> None:
    for path in target.paths():
        importlib.import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
    # Each mutant meets the same examples, fewer than in `make test`; none is stored.
    phases = [Phase.explicit, Phase.generate]
    settings.register_profile("mutants", database=None, deadline=None, derandomize=True, max_examples=20, phases=phases)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--hypothesis-profile", "mutants"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning", "--basetemp", f"{folder}/tests"]
        options += ["--timeout", "0"]  # forks limit the processor time
        trials = Trials(target.paths(), mutants, note, Path(folder))
        if (code := pytest.main([*options, *target.tests], plugins=[trials])) != 0:
            sys.exit(f"cannot test mutants of {target.code[0]!r}: pytest ended with code {code}; see above")


if __name__ == "__main__":
    sys.exit(main())
