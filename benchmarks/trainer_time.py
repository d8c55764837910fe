"""Share of a trainer's time spent on weights, in the demo: real processes, real training.

    python -m benchmarks.trainer_time [--steps 60] [--probe-every auto 1]

`weights` is the publishing time between the optimizer's step and the next pull: waiting for the previous version,
copying this one, and scoring its probe; as a share of the total time of the steps, with and without waits for batches.
Its parts come from the steps seen in reports. The first ten steps are the warm-up and not counted.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from astraflow.contract.reports.report import StreamReport
from tests.system.processes import RunningRun, running

WARM_UP = 10
POLL_S = 0.05
PARTS = ("publish_wait_s", "publish_copy_s", "publish_probe_s")
ROW = "{:>12} {:>6} {:>8} {:>10} {:>14} {:>8} {:>8} {:>8}\n"


async def measure(run: RunningRun, steps: int) -> str:
    """Returns a line of the table."""
    begun = (
        await run.until(lambda report: bool(report.streams) and report.streams[0].training.steps >= WARM_UP)
    ).streams[0]
    metrics_by_step: dict[int, Mapping[str, float]] = {}
    latest: StreamReport = begun
    while latest.training.steps < begun.training.steps + steps:
        latest = (await run.report()).streams[0]
        metrics_by_step[latest.training.steps] = latest.training.metrics
        await asyncio.sleep(POLL_S)
    count = latest.training.steps - begun.training.steps
    publish_s = latest.training.publish_s - begun.training.publish_s
    working_s = latest.training.compute_s - begun.training.compute_s + publish_s
    all_s = working_s + latest.training.wait_s - begun.training.wait_s
    parts = [statistics.mean(metrics.get(name, 0.0) for metrics in metrics_by_step.values()) * count for name in PARTS]
    return ROW.format(
        "",
        count,
        f"{all_s / count * 1e3:.0f}",
        f"{publish_s / all_s:.2%}",
        f"{publish_s / working_s:.2%}",
        *(f"{part / all_s:.2%}" for part in parts),
    ).removeprefix(" " * 12)


async def run(chosen: argparse.Namespace) -> None:
    """Runs one demo after the other."""
    head = ("probe every", "steps", "ms/step", "weights", "without waits", "wait", "copy", "probe")
    sys.stdout.write(ROW.format(*head))
    for every in chosen.probe_every:
        with tempfile.TemporaryDirectory() as folder:
            value = every if every.isdecimal() else f'"{every}"'
            options = ("--no-web", "--set", f"trainer.probe_every={value}", "--set", "stop.reward=1000")
            async with running("reverse", Path(folder) / "run", *options, gone_within_s=30.0) as demo:
                await demo.until(lambda report: bool(report.streams))
                sys.stdout.write(f"{every:>12}{await measure(demo, chosen.steps)}")
                sys.stdout.flush()


def main() -> None:
    """Parses the arguments and runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--probe-every", nargs="*", default=["auto", "1"])
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
