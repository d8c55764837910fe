"""Launch rate of the fleet service, and the cost of comparing a large fleet with its ledger.

    python -m benchmarks.fleet [--launches 100] [--instances 1000] [--rounds 5]

Launches: time until the actuator has carried out all intents of a ledger on disk through the local provider, with real
processes that only sleep. Lower bound: the same processes, only started. Sweep: processor time of comparing a ledger on
disk with a provider in memory that lists this many instances, with no changes and with all of them changed.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from astraflow.contract.fleet.instances import InstanceState
from astraflow.runtime.clock import SystemClock
from astraflow.runtime.logs import configure
from maintainer.fleet.ledger.ledger import open_ledger
from maintainer.fleet.providers.base import RetireResult, State
from maintainer.fleet.providers.local_process.provider import LocalProcess, LocalProcessOptions
from tests.fakes.clock import ManualClock
from tests.fakes.cloud import Cloud
from tests.maintainer.fleet.parts import START, Parts, build, spec
from tests.maintainer.fleet.providers.test_local_process import SLEEPER

Row = tuple[str, str, str]


async def launches(number: int, directory: Path) -> list[Row]:
    """Returns machines a minute: bare, and through ledger, actuator and provider."""
    bare_s = await asyncio.to_thread(_bare, number)
    options = LocalProcessOptions(program=SLEEPER, max_instances=number)
    provider = LocalProcess(options, clock=SystemClock(), directory=directory / "machines")
    parts = await _parts(directory, number, provider=lambda _: provider)
    began, busy = time.monotonic(), time.process_time()
    await parts.want(number)
    await parts.actuator.run_due_steps()
    taken_s, cpu_s = time.monotonic() - began, time.process_time() - busy
    await _until_all_run(provider, number)
    running_s = time.monotonic() - began
    await _end(provider)
    return [
        ("processes started and forgotten", f"{60 * number / bare_s:,.0f} / min", f"{number} in {bare_s:.2f} s"),
        ("launches answered and in the ledger", f"{60 * number / taken_s:,.0f} / min", f"{cpu_s:.2f} s of processor"),
        ("machines that run their node's program", f"{60 * number / running_s:,.0f} / min", f"{running_s:.2f} s"),
    ]


async def sweeps(instances: int, rounds: int, directory: Path) -> list[Row]:
    """Returns the processor time of one comparison."""
    clock = ManualClock(START)
    cloud = Cloud(clock, boot_s=0.0)
    parts = await _parts(directory, instances, cloud=cloud, clock=clock)
    await parts.want(instances)
    await parts.actuator.run_due_steps()
    first_s = await _busy(parts.reconciler.sweep)
    assert parts.states() == {InstanceState.RUNNING.value: instances}
    steady = sorted([await _busy(parts.reconciler.sweep) for _ in range(rounds)])
    view = sorted([await _busy_now(lambda: parts.fleet.view(parts.fleet.pool(spec().id))) for _ in range(rounds)])
    middle = rounds // 2
    return [
        (f"sweep of {instances}, nothing differs", f"{1000 * steady[middle]:.1f} ms", f"median of {rounds}"),
        (f"sweep of {instances}, each has begun to run", f"{1000 * first_s:.0f} ms", "a transaction for each"),
        (f"the pool of {instances} as the guard sees it", f"{1000 * view[middle]:.1f} ms", f"median of {rounds}"),
    ]


async def _parts(directory: Path, nodes: int, **options: object) -> Parts:
    database = open_ledger(directory)
    return await build(directory, database=database, pool=spec(max_nodes=nodes), **options)  # type: ignore[arg-type]  # passed on


async def _busy(work: Callable[[], object]) -> float:
    began = time.process_time()
    await work()  # type: ignore[misc]  # a coroutine function
    return time.process_time() - began


async def _busy_now(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _bare(number: int) -> float:
    began = time.monotonic()
    pids = [os.posix_spawn(SLEEPER[0], SLEEPER, os.environ) for _ in range(number)]
    took_s = time.monotonic() - began
    for pid in pids:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    return took_s


async def _until_all_run(provider: LocalProcess, number: int) -> None:
    states: list[State] = []
    while states.count(State.RUNNING) < number:
        await asyncio.sleep(0.01)
        states = [instance.state for instance in await provider.list("tests")]


async def _end(provider: LocalProcess) -> None:
    for instance in await provider.list("tests"):
        outcome = RetireResult.TERMINATING
        while outcome is not RetireResult.GONE:
            outcome = await provider.retire(instance.handle.launch_id)
            await asyncio.sleep(0.01)


async def main(launched: int, instances: int, rounds: int) -> None:
    """Measures and prints a table."""
    with tempfile.TemporaryDirectory() as launch_folder, tempfile.TemporaryDirectory() as sweep_folder:
        rows = [*await launches(launched, Path(launch_folder)), *await sweeps(instances, rounds, Path(sweep_folder))]
    table = Table("what", "figure", "how", title="fleet service")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--launches", type=int, default=100, help="machines to start (default %(default)s)")
    parser.add_argument("--instances", type=int, default=1000, help="instances to compare (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="sweeps to take the median of (default %(default)s)")
    return parser


if __name__ == "__main__":
    chosen = _parser().parse_args()
    configure(level="ERROR")
    asyncio.run(main(chosen.launches, chosen.instances, chosen.rounds))
    sys.exit(0)
