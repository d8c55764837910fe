"""Benefit of a maintainer over the rule, and latency of human actions: the same faults with and without it.

    python -m benchmarks.maintainer [--faults fails throttled crowded] [--watched-s 25] [--runs 1] [--tries 3]

The whole system as real processes: `astraflow run` over two regions of local nodes, engine and trainer scripted; the
maintainer asks a simulated model over the Messages API, real HTTP, streamed. Faults: all nodes of one region are
killed and its launches fail from then on; while the budget is spent, the machines of one region run at a fifth of their
speed; the same, and the region starts no other machine. For each: the share of time that the trainer waited since the
fault. Then, over the page's API: from an approval to the first machine, from the kill switch to the refusal of plans
and to the end of a wake in progress.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import fields
from itertools import product
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from tests.system.maintainer_measurements import (
    FAILS,
    NO_CAPACITY,
    THROTTLED,
    FaultCost,
    HumanLatencies,
    latencies,
    measure_fault_cost,
)
from tests.system.two_regions import running_regions

FAULTS = {
    FAILS: "eu's nodes are gone, launches fail there",
    THROTTLED: "eu's machines do a fifth",
    NO_CAPACITY: "the same, and none is let out there",
}
PEOPLE = {
    "approved_s": "approval to the first machine",
    "refused_s": "kill switch to refusal",
    "stopped_s": "kill switch to the end of a wake",
}


async def measure_faults(directory: Path, faults: Sequence[str], *, watched_s: float, runs: int) -> list[FaultCost]:
    """Measures each fault this many times, alternately with the rule alone and with the maintainer."""
    measurements = []
    for fault, number in product(faults, range(runs)):
        for has_maintainer in (False, True):
            run_folder = directory / f"{fault}-{number}-{has_maintainer}"
            run_folder.mkdir()
            measurements.append(
                await measure_fault_cost(run_folder, fault, has_maintainer=has_maintainer, watched_s=watched_s)
            )
    return measurements


async def measure_people(directory: Path, *, tries: int) -> list[HumanLatencies]:
    """Measures the latencies this many times, each time in a new run."""
    measurements = []
    for number in range(tries):
        run_folder = directory / f"people-{number}"
        run_folder.mkdir()
        async with running_regions(run_folder) as regions:
            measurements.append(await latencies(regions, run_folder))
    return measurements


def fault_cost_table(tolls: list[FaultCost], *, watched_s: float) -> Table:
    """Formats a line for each run."""
    title = f"the {watched_s:g} s from a fault on"
    table = Table("fault", "who", "trainer waited", "steps", "nodes elsewhere after", "tokens", title=title)
    for toll in tolls:
        after = "not in that time" if toll.helped_after_s is None else f"{toll.helped_after_s:.1f} s"
        who = "rule and maintainer" if toll.has_maintainer else "rule alone"
        table.add_row(
            FAULTS[toll.fault], who, f"{100 * toll.wait:.0f} %", str(toll.steps), after, f"{toll.tokens:,.0f}"
        )
    return table


def people_table(measurements: list[HumanLatencies]) -> Table:
    """Formats the median and the worst."""
    table = Table("from, to", "median", "worst", title=f"people over the page's API, {len(measurements)} tries")
    for field in fields(HumanLatencies):
        values = [getattr(measurement, field.name) for measurement in measurements]
        table.add_row(PEOPLE[field.name], f"{median(values):.2f} s", f"{max(values):.2f} s")
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--faults", nargs="*", choices=[*FAULTS], default=[*FAULTS], help="default: all")
    parser.add_argument("--watched-s", type=float, default=25.0, help="from the fault on (default %(default)s)")
    parser.add_argument("--runs", type=int, default=1, help="of each fault, with and without (default %(default)s)")
    parser.add_argument("--tries", type=int, default=3, help="of what people do (default %(default)s)")
    return parser


if __name__ == "__main__":
    chosen = _parser().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measuring = measure_faults(Path(folder), chosen.faults, watched_s=chosen.watched_s, runs=chosen.runs)
        tolls = asyncio.run(measuring)
        people = asyncio.run(measure_people(Path(folder), tries=chosen.tries))
    Console().print(fault_cost_table(tolls, watched_s=chosen.watched_s))
    if people:
        Console().print(people_table(people))
    sys.exit(0)
