"""Throughput of three honest nodes beside a hostile one, and without it: stretches of both alternate in one run.

    python -m tests.hostile.throughput [--minutes 10] [--each [TEXT]] [--seed 0] [--json FILE]

`make soak-hostile` runs it. Takes twice the minutes, and some seconds to start and to end. Engine and trainer are
simulated and mostly sleep, so that the figures show what the hostile node costs the others by what it sends, not by the
processor time that it takes from them. Exits with code 0 only if the honest share is at least 0.9, and no counts are
unbalanced. With `--each` every attack has stretches of its own, and the table a row for each.
"""

import argparse
import asyncio
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.reports.report import Report
from tests.hostile.attacks import ATTACKS, Attack
from tests.hostile.peer import hostile_node
from tests.system.processes import RunningRun, assert_balanced, running

MIN_SHARE = 0.9
"""Share of the throughput without the hostile node."""

STRETCH_S = 20.0
"""Length of the stretches with and without the hostile node, which follow each other."""

END_S = 60.0
"""Time for the run to start and to end, beside the stretches; a comparison that takes longer is stopped."""

LONGEST_ATTACK_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """What honest nodes and the trainer did, per second."""

    steps_per_s: float
    groups_per_s: float
    longest_step_s: float
    """Longest time between two steps. Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Throughput without and beside a hostile node."""

    without: Throughput
    beside: Throughput

    @property
    def share(self) -> float:
        """Lower share of the honest throughput that remains, of steps and of groups."""
        return min(
            self.beside.steps_per_s / self.without.steps_per_s, self.beside.groups_per_s / self.without.groups_per_s
        )


def main() -> int:
    """Runs the comparison; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="with the hostile node, and as long without it")
    parser.add_argument("--each", nargs="?", const="", help="compare for each attack alone, whose name has this text")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the attacks")
    parser.add_argument("--json", type=Path, default=None, help="also write the figures there")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hostile-"))
    alone = {attack.name: (attack,) for attack in ATTACKS if chosen.each is not None and chosen.each in attack.name}
    cases: Mapping[str, Sequence[Attack]] = alone or {"all attacks": ATTACKS}
    pairs = max(1, round(60 * chosen.minutes / len(cases) / STRETCH_S))
    stretch_s = 60 * chosen.minutes / len(cases) / pairs
    limit_s = 120 * chosen.minutes + END_S
    sys.stdout.write(
        f"seed {chosen.seed}; logs and state in {folder}; ends in {2 * chosen.minutes:g} minutes and a few seconds\n"
    )
    figures = asyncio.run(
        compare(folder / "run", cases, pairs=pairs, stretch_s=stretch_s, seed=chosen.seed, limit_s=limit_s)
    )
    sys.stdout.write(table(figures))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps({name: asdict(pair) for name, pair in figures.items()}, indent=2) + "\n")
    return 0 if min(pair.share for pair in figures.values()) >= MIN_SHARE else 1


def table(figures: Mapping[str, "Comparison"]) -> str:
    """Formats the comparisons as a table."""
    titles = f"{'beside a hostile node: ':56} {'groups/s':>8} {'without':>8} {'share':>6} {'longest step':>12}"
    rows = [
        f"{name:56} {pair.beside.groups_per_s:8.2f} {pair.without.groups_per_s:8.2f} {pair.share:6.3f} "
        f"{pair.beside.longest_step_s:10.2f} s"
        for name, pair in figures.items()
    ]
    return "\n".join([titles, *rows, ""])


async def compare(
    folder: Path, cases: Mapping[str, Sequence[Attack]], *, pairs: int, stretch_s: float, seed: int, limit_s: float
) -> dict[str, "Comparison"]:
    """Returns the throughput without and beside a hostile node for each choice of attacks.

    Raises: TimeoutError after `limit_s`.
    """
    options = ("--no-web", "--set", "nodes.count=3", "--set", "stop.reward=2", "--set", "stop.steps=10000000")
    figures: dict[str, Comparison] = {}
    async with asyncio.timeout(limit_s), running("smoke", folder, *options, limit_s=limit_s) as run:
        await run.steps_more(20)
        for name, attacks in cases.items():
            without, beside = [], []
            for pair in range(pairs):
                without.append(await observed(run, stretch_s))
                async with attacking(run, attacks, random.Random(seed + pair)):
                    beside.append(await observed(run, stretch_s))
            assert_balanced(beside[-1][-1][1])
            figures[name] = Comparison(without=throughput(without), beside=throughput(beside))
            sys.stdout.write(f"{name}: share {figures[name].share:.3f}\n")
            sys.stdout.flush()
    return figures


async def observed(run: RunningRun, stretch_s: float) -> list[tuple[float, Report]]:
    """Returns the reports of one stretch with their times."""
    reports, until = [(time.monotonic(), await run.report())], time.monotonic() + stretch_s
    while time.monotonic() < until:
        await asyncio.sleep(0.2)
        reports.append((time.monotonic(), await run.report()))
    return reports


def throughput(stretches: Sequence[Sequence[tuple[float, Report]]]) -> Throughput:
    """Returns the rates over all stretches."""
    seconds = sum(stretch[-1][0] - stretch[0][0] for stretch in stretches)
    first, last = (
        [stretch[0][1].streams[0] for stretch in stretches],
        [stretch[-1][1].streams[0] for stretch in stretches],
    )
    return Throughput(
        steps_per_s=sum(end.training.steps - begin.training.steps for begin, end in zip(first, last, strict=True))
        / seconds,
        groups_per_s=sum(end.groups.admitted - begin.groups.admitted for begin, end in zip(first, last, strict=True))
        / seconds,
        longest_step_s=max(map(longest_step_s, stretches)),
    )


def longest_step_s(stretch: Sequence[tuple[float, Report]]) -> float:
    """Returns the longest time without a new step."""
    changes = [stretch[0][0]]
    for (_, before), (at, report) in itertools.pairwise(stretch):
        if report.streams[0].training.steps > before.streams[0].training.steps:
            changes.append(at)
    return max(later - earlier for earlier, later in itertools.pairwise([*changes, stretch[-1][0]]))


@asynccontextmanager
async def attacking(run: RunningRun, attacks: Sequence[Attack], choice: random.Random) -> AsyncIterator[None]:
    """Attacks the run meanwhile: one attack after the other, each from a node of its own."""
    task = asyncio.create_task(_attack(run, attacks, choice))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task}, timeout=LONGEST_ATTACK_S)


async def _attack(run: RunningRun, attacks: Sequence[Attack], choice: random.Random) -> None:
    for number in itertools.count():
        attack = choice.choice(attacks)
        name = f"hostile-{choice.randrange(2**32):08x}-{number}"
        # it is refused, or gets no task in time, which the attack cannot unpack: on with the next
        with suppress(AstraFlowError, TimeoutError, ValueError):
            async with asyncio.timeout(LONGEST_ATTACK_S), hostile_node(run, name) as node:
                await attack.act(node)


if __name__ == "__main__":
    sys.exit(main())
