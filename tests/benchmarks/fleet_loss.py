"""What a run feels of lost nodes: 30 % are killed, the fleet service brings them back, and a plan asks for more.

    python -m tests.benchmarks.fleet_loss [--nodes 6] [--phase-s 30] [--step-s 2.0]

The whole system as real processes: `astraflow run smoke --fleet`, engine and trainer scripted, nodes slow enough that
the pool could carry well over the demand. Three phases of equal length: steady, from the loss on, and from
the plan on. For each: nodes at work, the share of the time that the trainer waited, and what the fleet service did.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from astraflow.client.fleet_plane import FleetPlaneClient
from astraflow.contract.advice import Mode
from astraflow.contract.fleet import InstanceState, PlanRequest
from tests.system.processes import RunningRun, running
from tests.system.test_fleet import ALICE, fleet_of, machines, ready, until


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of the run."""

    name: str
    nodes: tuple[int, int]
    """At work, fewest and most."""
    wait: float
    """Share of the time."""
    steps: int
    launched: int
    whole_after_s: float | None
    """Until the pool had its size; None where it always had."""


async def measure(nodes: int, phase_s: float, step_s: float, directory: Path) -> list[Phase]:
    """The three phases."""
    options = (
        *("--fleet", "--no-web", "--nodes", str(nodes)),
        *("--set", "stop.reward=2.0"),
        *("--set", "stop.steps=1000000"),
        *("--set", f"policies.solver.backend.step_s={step_s}"),
        *("--set", "nodes.capacity=3"),
        *("--set", "flows.train.workflow.max_new_tokens=2000"),
        *("--set", "nodes.engine.tokens={kind='lognormal', mean=400, spread=0.5}"),
    )
    async with running("smoke", directory / "run", *options, gone_within_s=30.0) as run, fleet_of(run) as fleet:
        await until(fleet, ready(nodes))
        await run.steps_more(5)
        steady = await _phase("steady", run, fleet, phase_s, nodes)
        doomed = [one.id for one in await fleet.instances()][: round(0.3 * nodes)]
        for launch in doomed:
            os.killpg(machines(run)[launch], signal.SIGKILL)
        lost = await _phase(f"{len(doomed)} of {nodes} nodes killed", run, fleet, phase_s, nodes, but=frozenset(doomed))
        pool = (await fleet.status()).pools[
            0
        ]  # by hand from here: in mode `on`, the rule would have its own size again
        by_hand = replace(pool.spec, mode=Mode.UP_ONLY)
        await fleet.put_pool(by_hand, observed_version=pool.version, actor=ALICE, key="mode", reason="by hand")
        request = PlanRequest(pool=pool.spec.id, actor=ALICE, reason="a demand step", target=nodes + 2)
        await fleet.apply((await fleet.plan(request)).id, key="step", approver=ALICE)
        more = await _phase(f"a plan for {nodes + 2}", run, fleet, phase_s, nodes + 2)
    return [steady, lost, more]


async def _phase(
    name: str,
    run: RunningRun,
    fleet: FleetPlaneClient,
    phase_s: float,
    size: int,
    *,
    but: frozenset[str] = frozenset(),
) -> Phase:
    began, before = time.monotonic(), (await run.report()).streams[0]
    launched_before = len(await fleet.instances(with_gone=True))
    seen: list[int] = []
    whole_after_s: float | None = None
    while time.monotonic() - began < phase_s:
        at_work = [one for one in await fleet.instances() if one.state is InstanceState.READY and one.id not in but]
        seen.append(len(at_work))
        if whole_after_s is None and len(at_work) >= size and min(seen) < size:
            whole_after_s = time.monotonic() - began
        await asyncio.sleep(0.2)
    after = (await run.report()).streams[0]
    waited_s, worked_s = after.wait_s - before.wait_s, after.compute_s - before.compute_s
    return Phase(
        name=name,
        nodes=(min(seen), max(seen)),
        wait=waited_s / max(1e-9, waited_s + worked_s + after.publish_s - before.publish_s),
        steps=after.steps - before.steps,
        launched=len(await fleet.instances(with_gone=True)) - launched_before,
        whole_after_s=whole_after_s,
    )


def _table(phases: list[Phase]) -> Table:
    table = Table("phase", "nodes at work", "trainer waited", "steps", "launched", "whole after", title="a run's fleet")
    for phase in phases:
        whole = "always" if phase.whole_after_s is None else f"{phase.whole_after_s:.1f} s"
        low, high = phase.nodes
        table.add_row(
            phase.name, f"{low} to {high}", f"{100 * phase.wait:.1f} %", str(phase.steps), str(phase.launched), whole
        )
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=6, help="of the pool (default %(default)s)")
    parser.add_argument("--phase-s", type=float, default=30.0, help="length of each phase (default %(default)s)")
    parser.add_argument("--step-s", type=float, default=2.0, help="of the trainer (default %(default)s)")
    return parser


if __name__ == "__main__":
    chosen = _parser().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(chosen.nodes, chosen.phase_s, chosen.step_s, Path(folder)))
    Console().print(_table(found))
    sys.exit(0)
