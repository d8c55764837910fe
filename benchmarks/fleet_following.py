"""Effect on a run while its pool follows the rule: nodes fail, and its trainer gets faster, then slower again.

    python -m benchmarks.fleet_following [--nodes 6] [--step-s 3] [--factor 1.6] [--phase-s 90] [--set K=V]

The whole system as real processes: `astraflow run smoke --fleet`, engine and trainer scripted, the pool in mode `on`
all the time with the rule's default numbers. The nodes are so slow that the rule wants exactly `--nodes` of them
at first. Four phases: steady; from the loss of 30 % on; from the step on, at `--factor` times the demand, for four
times as long; and back at the old demand until more than ten minutes are over, because the rule removes no node
sooner.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table

from astraflow.client.fleet_plane import FleetPlaneClient
from astraflow.contract.fleet.instances import InstanceState
from astraflow.contract.records import render, render_summary
from astraflow.contract.reports.report import Report
from tests.system.processes import RunningRun, assert_balanced, running
from tests.system.test_fleet import ALICE, fleet_of, ready, until

GROUP, BATCH = 4, 16
"""Episodes of a group, as in the recipe `smoke`, and groups of a batch: with the recipe's four,
random variation empties the buffer at any pool size."""

CAPACITY = 4
TOKENS_PER_S = 400.0

HEADROOM = 1.08
"""Headroom of the rule."""

SHARE = 0.3
STEP_PHASES = 4


@dataclass(kw_only=True)
class Phase:
    """A phase of the run."""

    name: str
    nodes: list[int] = field(default_factory=list)
    """Ready nodes in each sample."""
    targets: list[int] = field(default_factory=list)
    """Targets of the pool, as they changed."""
    wait: float = 0.0
    """Share of the time that the trainer waited."""
    settled_wait: float = 0.0
    """Share after the pool reached its target size: waiting that more nodes would not remove."""
    steps: int = 0
    said: str = ""
    """Last recommendation of the rule, as a sentence."""
    settled_s: float = 0.0
    """Seconds until the ready nodes reached the target at the end of the phase."""

    @property
    def turns(self) -> int:
        """Counts the changes of the target's direction."""
        ways = [after > before for before, after in pairwise(self.targets) if after != before]
        return sum(1 for before, after in pairwise(ways) if before != after)


class Watch:
    """Records one phase after the other."""

    def __init__(self, run: RunningRun, fleet: FleetPlaneClient) -> None:
        self._run = run
        self._fleet = fleet

    async def phase(self, name: str, *, until_step: int) -> Phase:
        """Samples until the trainer has made this many steps."""
        phase, before, began = Phase(name=name), await self._run.report(), time.monotonic()
        looks: list[tuple[float, int, Report]] = []
        while (report := await self._run.report()).streams[0].training.steps < until_step:
            pool = (await self._fleet.status()).pools[0]
            at_work = pool.nodes.get(InstanceState.READY, 0)
            looks.append((time.monotonic() - began, at_work, report))
            phase.nodes.append(at_work)
            if phase.targets[-1:] != [pool.target]:
                phase.targets.append(pool.target)
            await asyncio.sleep(0.5)
        assert_balanced(report)
        phase.wait, phase.steps = (
            _wait(before, report),
            report.streams[0].training.steps - before.streams[0].training.steps,
        )
        other = [at_s for at_s, at_work, _ in looks if at_work != phase.targets[-1]]
        phase.settled_s = max(other, default=0.0)
        phase.said = render(report.recommendations[0].change) if report.recommendations else ""
        settled = next((sampled_report for at_s, _, sampled_report in looks if at_s > phase.settled_s), report)
        phase.settled_wait = _wait(settled, report)
        return phase


async def measure(chosen: argparse.Namespace, directory: Path) -> list[Phase]:
    """Measures the four phases."""
    steps = round(chosen.phase_s / chosen.step_s)
    loss, fast = 2 * steps, 3 * steps  # warm-up, not measured: nodes start, and the rule reaches its size
    slow = fast + round(STEP_PHASES * chosen.phase_s / chosen.step_s * chosen.factor)
    end = slow + round(chosen.back_s / chosen.step_s)
    async with (
        running("smoke", directory / "run", *_options(chosen, fast, slow), gone_within_s=40.0, limit_s=3600.0) as run,
        fleet_of(run) as fleet,
    ):
        await until(fleet, ready(chosen.nodes))
        await run.until(lambda report: report.streams[0].training.steps >= steps, patience_s=600.0)
        watch = Watch(run, fleet)
        phases = [await watch.phase("steady", until_step=loss)]
        pool = (await fleet.status()).pools[0].spec.id
        lost = await fleet.inject_fault(pool, share=SHARE, actor=ALICE, key="loss", reason="a benchmark")
        phases.append(await watch.phase(render_summary(lost.decision), until_step=fast))
        phases.append(await watch.phase(f"{chosen.factor:g} times the demand", until_step=slow))
        phases.append(await watch.phase("the old demand", until_step=end))
    return phases


def _options(chosen: argparse.Namespace, fast: int, slow: int) -> list[str]:
    """Returns options for which `--nodes` nodes meet the demand, with the rule's headroom."""
    groups_per_s = BATCH / chosen.step_s
    node_episodes_per_s = HEADROOM * groups_per_s * GROUP / chosen.nodes
    tokens = CAPACITY / node_episodes_per_s * TOKENS_PER_S
    speed_changes = f"[{{from_step={fast}, factor={chosen.factor}}}, {{from_step={slow}, factor=1.0}}]"
    most = 3 * chosen.nodes
    settings = [
        "stop.reward=2.0",
        "stop.steps=1000000",
        f"policies.solver.batch_groups={BATCH}",
        f"policies.solver.backend.step_s={chosen.step_s}",
        f"policies.solver.backend.speed_changes={speed_changes}",
        f"nodes.capacity={CAPACITY}",
        f"flows.train.workflow.max_new_tokens={round(5 * tokens)}",
        f"nodes.engine.tokens={{kind='lognormal', mean={tokens}, spread=0.5}}",
        f"dataflow.pools={{local={{mode='on', min_nodes=1, max_nodes={most}}}}}",
        "evaluations={}",
        *chosen.set,
    ]
    options = ["--fleet", "--no-web", "--nodes", str(chosen.nodes)]
    return [*options, *(part for setting in settings for part in ("--set", setting))]


def _wait(before: Report, after: Report) -> float:
    old, new = before.streams[0], after.streams[0]
    waited_s = new.training.wait_s - old.training.wait_s
    spent_s = new.training.total_s - old.training.total_s
    return waited_s / max(1e-9, spent_s)


def _table(phases: list[Phase]) -> Table:
    columns = ("phase", "target", "turns", "nodes at work", "trainer waited", "settled after", "then waited", "steps")
    table = Table(*columns, title="a pool that follows the rule")
    for phase in phases:
        table.add_row(
            phase.name,
            " → ".join(map(str, phase.targets)),
            str(phase.turns),
            f"{min(phase.nodes)} to {max(phase.nodes)}",
            f"{100 * phase.wait:.1f} %",
            f"{phase.settled_s:.0f} s",
            f"{100 * phase.settled_wait:.1f} %",
            str(phase.steps),
        )
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=6, help="of the pool at first (default %(default)s)")
    parser.add_argument("--step-s", type=float, default=3.0, help="of the trainer (default %(default)s)")
    parser.add_argument("--factor", type=float, default=1.6, help="of the demand step (default %(default)s)")
    parser.add_argument("--phase-s", type=float, default=90.0, help="length of a phase (default %(default)s)")
    parser.add_argument("--back-s", type=float, default=840.0, help="of the last phase (default %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the recipe")
    return parser


if __name__ == "__main__":
    arguments = _parser().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = asyncio.run(measure(arguments, Path(folder)))
    console = Console(width=150)
    console.print(_table(results))
    for result in results:
        console.print(f"{result.name}: {result.said}", highlight=False)
    sys.exit(0)
