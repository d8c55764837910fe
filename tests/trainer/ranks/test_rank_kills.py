"""Random kills of a trainer with two ranks: every batch is trained once, into the bits of an uninterrupted run."""

import asyncio
import os
import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from astraflow.cli.running.supervisor import ProcessEvent, Program, RestartLimits, Supervisor
from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.batches import Batch
from astraflow.contract.ids import PolicyId
from astraflow.weights.config import WeightsConfig
from astraflow.weights.service import running
from astraflow.wire.channel import dial
from astraflow.wire.server import ListenOptions, serving
from tests import make_torch
from tests.fakes.trainer_dataflow import FakeTrainerData
from tests.trainer.backends.test_local import batch

TOKEN = "t"
SEED = 7
RECIPE = """
name = "kills"
policies.solver.model = {model}
policies.solver.batch_groups = 3
policies.solver.algorithm.max_mismatch = 1e9  # the logprobs are made up
policies.solver.backend = {{ kind = "fsdp", ranks = 2, learning_rate = 1e-3, rank_timeout_s = 60 }}
flows.train.dataset = {{ kind = "letters", operation = "reverse", length = 2 }}
flows.train.workflow = {{ kind = "single_turn", policy = "solver", max_new_tokens = 3 }}
flows.train.reward = {{ kind = "exact_match" }}
nodes.engine = {{ kind = "local_torch" }}
trainer.max_steps = {steps}
"""


@dataclass(frozen=True, kw_only=True)
class Kill:
    """One `kill -9` of a random process of the trainer: its service or a rank."""

    moment: Literal["step", "again", "start"]
    """After a step was reported; while the fault before is being handled; or while the trainer starts again."""
    delay_s: float
    """Time after the moment."""


def random_kills(count: int) -> Iterator[Kill]:
    """Returns a cycle of moments with random delays: only one of four waits until the ranks have started."""
    draws = random.Random(SEED)
    for number in range(count):
        match number % 4:
            case 0:
                yield Kill(moment="step", delay_s=draws.uniform(0.0, 0.3))
            case 1:
                yield Kill(moment="again", delay_s=draws.uniform(0.0, 0.2))
            case _:
                yield Kill(moment="start", delay_s=draws.uniform(0.0, 3.0))


class Trainer:
    """A real trainer under the launcher's supervisor, with the data and weight services of the test."""

    def __init__(self, folder: Path, *, steps: int) -> None:
        self.folder = folder
        self.steps = steps
        self.pid = 0
        self.starts = 0
        self.killed = 0
        """Running processes that got the signal."""
        self.prefix: tuple[str, ...] = ("-m", "astraflow.cli")
        """Arguments of Python before those of the command."""
        model = ", ".join(f"{key} = {value!r}" for key, value in make_torch.TINY.items()).replace("'", '"')
        (folder / "recipe.toml").write_text(RECIPE.format(model=f"{{ {model} }}", steps=steps))

    async def run(self, kills: Iterable[Kill]) -> dict[int, bytes]:
        """Trains all batches under these faults. Returns the root hash of each version."""
        batches = [_with_version(batch(step), step) for step in range(1, self.steps + 1)]
        listen = ListenOptions(token=TOKEN, drain_s=0.0)
        async with running(
            WeightsConfig(retained_versions=self.steps + 1), listen=listen, directory=self.folder / "weights"
        ) as weights:
            data = FakeTrainerData(batches, weights_address=weights)
            async with serving(listen, data.register) as address:
                await self._train(address, data, kills)
            assert list(data.reports) == [sent.id for sent in batches]
            async with dial(weights, token=TOKEN) as link:
                client = WeightPlaneClient(link)
                notices = await client.versions(PolicyId("solver"))
                return {int(notice.version): notice.root_hash for notice in notices}

    async def _train(self, address: str, data: FakeTrainerData, kills: Iterable[Kill]) -> None:
        options = ["serve", "trainer", str(self.folder / "recipe.toml"), "--dataflow", address]
        options += ["--directory", str(self.folder / "trainer")]
        program = Program(
            name="trainer",
            argv=(sys.executable, *self.prefix, *options),
            log=self.folder / "trainer.log",
            environment={"ASTRAFLOW_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"},
            announces=False,
            may_exit=True,
        )
        async with Supervisor(self._on_event, restart_limits=RestartLimits(max_delay_s=0.2)) as supervisor:
            supervisor.start(program)
            supervisor.mark_ready("trainer")
            killing = asyncio.create_task(self._kill(kills, data))
            await data.until_reported(self.steps)
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
            await supervisor.wait_until_exited("trainer")

    async def _kill(self, kills: Iterable[Kill], data: FakeTrainerData) -> None:
        draws = random.Random(SEED)
        starts = 0
        for kill in kills:
            if kill.moment == "step":
                await data.until_reported(len(data.reports) + 1)
            while kill.moment == "start" and self.starts == starts:  # noqa: ASYNC110 (an event would miss a start)
                await asyncio.sleep(0.02)
            await asyncio.sleep(kill.delay_s)
            while not (running := [pid for pid in (self.pid, *children(self.pid)) if _is_running(pid)]):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            starts = self.starts
            os.kill(draws.choice(running), 9)
            self.killed += 1

    def _on_event(self, event: ProcessEvent) -> None:
        if event.kind == "started":
            self.pid = event.pid
            self.starts += 1


def _with_version(original: Batch, step: int) -> Batch:
    return batch(step, version=step - 1, born=step - 1) if original.version != step - 1 else original


def children(pid: int) -> list[int]:
    """Returns the processes that the threads of a process have started and that still run."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    return []


def _is_running(pid: int) -> bool:
    """Returns False for a process that has ended, reaped or not."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


@pytest.mark.anyio
@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kills", [8, 200])
async def test_killed_ranks_lose_no_batch_and_change_no_published_weights(tmp_path: Path, kills: int) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    steps = 3 * kills
    expected = await Trainer(tmp_path / "whole", steps=steps).run(())
    trainer = Trainer(tmp_path / "killed", steps=steps)

    versions = await trainer.run(random_kills(kills))

    assert trainer.killed == kills
    assert trainer.starts > kills // 2
    assert versions == expected
    assert sorted(versions) == list(range(steps + 1))
