"""Time from `kill -9` of a process of a trainer with two ranks until the next step is acknowledged, by phases.

    python -m benchmarks.trainer_restart [--repeats 5] [--late]

Kills the other rank and the service alternately, after a step, under the launcher's supervisor. Prints the median and
the range of each phase: `restart` (the failure is noticed, the process is started again), `ranks` (both processes
import their modules and join), `ready` (model, engine, checkpoint, services), `step`. `--late` starts the other rank
only after the first has imported its modules, for comparison. For the imports themselves:
`python -X importtime -c "import astraflow.trainer.backends.fsdp"`.
"""

import argparse
import asyncio
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from astraflow.runtime import logs
from tests.fakes.trainer_dataflow import FakeTrainerData
from tests.trainer.ranks.test_rank_kills import Kill, Trainer, children

PHASES = ("restart", "ranks", "ready", "step", "all")
ROW = "| {:<8} | " + " | ".join(["{:>24}"] * len(PHASES)) + " |\n"
GOAL_S = 20.0
STEPS = 80
"""Steps of some milliseconds for each kill: more than are made between two."""


class MeasuredTrainer(Trainer):
    """Trainer whose processes are killed alternately, each after a step."""

    def __init__(self, folder: Path, *, repeats: int) -> None:
        super().__init__(folder, steps=2 * repeats * STEPS)
        self.repeats = repeats
        self.rows: dict[str, list[dict[str, float]]] = {"rank 1": [], "service": []}

    async def _kill(self, kills: Iterable[Kill], data: FakeTrainerData) -> None:
        for number in range(2 * self.repeats):
            await data.until_reported(len(data.reports) + 2)
            who = "service" if number % 2 else "rank 1"
            pid = self.pid if number % 2 else children(self.pid)[0]
            begun, starts, ready_count = time.time(), self.starts, len(self._events("trainer_ready"))
            os.kill(pid, 9)
            while self.starts == starts:  # noqa: ASYNC110 (an event would miss a start)
                await asyncio.sleep(0.002)
            started = time.time()
            while len(self._events("trainer_ready")) == ready_count:  # noqa: ASYNC110 (an event of another process)
                await asyncio.sleep(0.05)
            await data.until_reported(len(data.reports) + 1)
            marks = (begun, started, self._events("ranks_joined")[-1], self._events("trainer_ready")[-1], time.time())
            values = [end - begin for begin, end in itertools.pairwise(marks)]
            self.rows[who].append(dict(zip(PHASES, (*values, marks[-1] - begun), strict=True)))

    def _events(self, name: str) -> list[float]:
        """Returns the times at which the trainer logged an event."""
        lines = (self.folder / "trainer.log").read_text().splitlines()
        events = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [
            datetime.fromisoformat(event["timestamp"]).timestamp() for event in events if event.get("event") == name
        ]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--late", action="store_true")
    chosen = parser.parse_args()
    logs.configure(level="WARNING")
    with tempfile.TemporaryDirectory() as folder:
        trainer = MeasuredTrainer(Path(folder), repeats=chosen.repeats)
        if chosen.late:
            trainer.prefix = ("-c", LATE)
        asyncio.run(trainer.run(()))
    sys.stdout.write(ROW.format("killed", *PHASES))
    for who, rows in trainer.rows.items():
        cells = [[row[phase] for row in rows] for phase in PHASES]
        texts = [f"{statistics.median(cell):.2f} ({min(cell):.2f} to {max(cell):.2f}) s" for cell in cells]
        sys.stdout.write(ROW.format(who, *texts))
    sys.stdout.write(f"goal for all: {GOAL_S:g} s\n")


LATE = """
import contextlib, sys
from astraflow.trainer import service
service.launched_early = lambda backend: contextlib.nullcontext()
from astraflow.cli.main import main
main()
"""
"""Program of a trainer that starts the other ranks after its own imports."""

if __name__ == "__main__":
    main()
