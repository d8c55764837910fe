"""Throughput of three honest nodes beside a hostile one, and without it: minutes of both alternate in one run.

    python -m tests.hostile.throughput [--minutes 10] [--seed 0] [--json FILE]

`make soak-hostile` runs it. Engine and trainer are simulated and mostly sleep, so that the figures show
what the hostile node costs the others by what it sends, not by the processor time that it takes from them. Exits with
code 0 only if the honest share is at least 0.9, and no counts are unbalanced.
"""

import argparse
import asyncio
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.reports.report import Report
from tests.hostile.attacks import ATTACKS
from tests.hostile.peer import hostile_node
from tests.system.processes import RunningRun, assert_balanced, running

MIN_SHARE = 0.9
"""Share of the throughput without the hostile node."""

SEGMENT_S = 60.0
"""Length of the stretches with and without the hostile node, which follow each other."""

LONGEST_ATTACK_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """What honest nodes and the trainer did, per second."""

    steps_per_s: float
    groups_per_s: float
    longest_step_s: float
    """Longest time between two steps. Seconds."""


def main() -> int:
    """Runs the comparison; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="with the hostile node, and as long without it")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the attacks")
    parser.add_argument("--json", type=Path, default=None, help="also write the figures there")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hostile-"))
    sys.stdout.write(f"seed {chosen.seed}; logs and state in {folder}\n")
    honest, beside = asyncio.run(compare(folder / "run", minutes=chosen.minutes, seed=chosen.seed))
    share = {name: beside_value / value for name, value, beside_value in shares(honest, beside)}
    sys.stdout.write(table(honest, beside, share))
    if chosen.json is not None:
        figures = {"without": asdict(honest), "beside": asdict(beside), "share": share}
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if min(share.values()) >= MIN_SHARE else 1


def shares(honest: Throughput, beside: Throughput) -> Sequence[tuple[str, float, float]]:
    """Returns name, value without and value beside the hostile node of each rate."""
    return [(name, getattr(honest, name), getattr(beside, name)) for name in ("steps_per_s", "groups_per_s")]


def table(honest: Throughput, beside: Throughput, share: dict[str, float]) -> str:
    """Formats both as a table."""
    rows = [f"{name:16} {value:8.2f} {other:8.2f} {share[name]:6.3f}" for name, value, other in shares(honest, beside)]
    longest = f"{'longest_step_s':16} {honest.longest_step_s:8.2f} {beside.longest_step_s:8.2f}"
    return "\n".join([f"{'':16} {'without':>8} {'beside':>8} {'share':>6}", *rows, longest, ""])


async def compare(folder: Path, *, minutes: float, seed: int) -> tuple[Throughput, Throughput]:
    """Returns the throughput without and beside a hostile node."""
    options = ("--no-web", "--set", "nodes.count=3", "--set", "stop.reward=2", "--set", "stop.steps=10000000")
    limit_s = 4 * 60 * minutes + 300
    async with running("smoke", folder, *options, limit_s=limit_s) as run:
        await run.steps_more(20)
        samples: dict[bool, list[list[tuple[float, Report]]]] = {False: [], True: []}
        for segment in range(2 * max(1, round(60 * minutes / SEGMENT_S))):
            is_hostile = segment % 2 == 1
            async with attacking(run, random.Random(seed + segment)) if is_hostile else idle():
                samples[is_hostile].append(await observed(run))
        assert_balanced(samples[True][-1][-1][1])
    return throughput(samples[False]), throughput(samples[True])


async def observed(run: RunningRun) -> list[tuple[float, Report]]:
    """Returns the reports of one stretch with their times."""
    reports, until = [(time.monotonic(), await run.report())], time.monotonic() + SEGMENT_S
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
        steps_per_s=sum(end.steps - begin.steps for begin, end in zip(first, last, strict=True)) / seconds,
        groups_per_s=sum(end.admitted - begin.admitted for begin, end in zip(first, last, strict=True)) / seconds,
        longest_step_s=max(map(longest_step_s, stretches)),
    )


def longest_step_s(stretch: Sequence[tuple[float, Report]]) -> float:
    """Returns the longest time without a new step."""
    changes = [stretch[0][0]]
    for (_, before), (at, report) in itertools.pairwise(stretch):
        if report.streams[0].steps > before.streams[0].steps:
            changes.append(at)
    return max(later - earlier for earlier, later in itertools.pairwise([*changes, stretch[-1][0]]))


@asynccontextmanager
async def attacking(run: RunningRun, choice: random.Random) -> AsyncIterator[None]:
    """Attacks the run meanwhile: one attack after the other, each from a node of its own."""
    task = asyncio.create_task(_attack(run, choice))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _attack(run: RunningRun, choice: random.Random) -> None:
    for number in itertools.count():
        attack = choice.choice(ATTACKS)
        name = f"hostile-{choice.randrange(2**32):08x}-{number}"
        # it is refused, or gets no task in time, which the attack cannot unpack: on with the next
        with suppress(AstraFlowError, TimeoutError, ValueError):
            async with asyncio.timeout(LONGEST_ATTACK_S), hostile_node(run, name) as node:
                await attack.act(node)


@asynccontextmanager
async def idle() -> AsyncIterator[None]:
    """Does nothing meanwhile."""
    yield


if __name__ == "__main__":
    sys.exit(main())
