"""Random kills of a trainer with two ranks: every batch is trained once, into the bits of an uninterrupted run."""

import asyncio
import os
import random
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from astraflow.cli.child_process import Program
from astraflow.cli.supervisor import ProcessEvent, RestartLimits, Supervisor
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
policies.solver.backend = {{ kind = "fsdp", ranks = 2, learning_rate = 1e-3, rank_timeout_s = 60 }}
flows.train.dataset = {{ kind = "letters", operation = "reverse", length = 2 }}
flows.train.workflow = {{ kind = "single_turn", policy = "solver", max_new_tokens = 3 }}
flows.train.reward = {{ kind = "exact_match" }}
nodes.engine = {{ kind = "local_torch" }}
trainer.max_steps = {steps}
"""


class Trainer:
    """A real trainer under the launcher's supervisor, with the data and weight services of the test."""

    def __init__(self, folder: Path, *, steps: int) -> None:
        self.folder = folder
        self.steps = steps
        self.pid = 0
        self.deaths = 0
        self._has_died = asyncio.Event()
        model = ", ".join(f"{key} = {value!r}" for key, value in make_torch.TINY.items()).replace("'", '"')
        (folder / "recipe.toml").write_text(RECIPE.format(model=f"{{ {model} }}", steps=steps))

    async def run(self, kills: Iterator[float]) -> dict[int, bytes]:
        """Trains all batches, and kills a random rank after each of these delays: in seconds since the ranks' start,
        and for every second kill since the first step after it. Returns the root hash of each version."""
        batches = [_with_version(batch(step), step) for step in range(1, self.steps + 1)]
        listen = ListenOptions(token=TOKEN, drain_s=0.0)
        async with running(
            WeightsConfig(retained_versions=self.steps + 1), listen=listen, directory=self.folder / "weights"
        ) as weights:
            data = FakeTrainerData(batches, weights_address=weights)
            async with serving(listen, data.register) as address:
                await self._train(address, data, kills)
            assert list(data.reports) == [one.id for one in batches]
            async with dial(weights, token=TOKEN) as link:
                client = WeightPlaneClient(link)
                notices = await client.versions(PolicyId("solver"))
                return {int(notice.version): notice.root_hash for notice in notices}

    async def _train(self, address: str, data: FakeTrainerData, kills: Iterator[float]) -> None:
        options = ["serve", "trainer", str(self.folder / "recipe.toml"), "--dataflow", address]
        options += ["--directory", str(self.folder / "trainer")]
        program = Program(
            name="trainer",
            argv=(sys.executable, "-m", "astraflow.cli", *options),
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

    async def _kill(self, kills: Iterator[float], data: FakeTrainerData) -> None:
        draws = random.Random(SEED)
        for number, delay_s in enumerate(kills):
            self._has_died.clear()
            while not (ranks := _children(self.pid)):  # noqa: ASYNC110 (the kernel's list of processes)
                await asyncio.sleep(0.05)
            if number % 2 == 0:
                await data.until_reported(len(data.reports) + 1)
            await asyncio.sleep(delay_s)
            with suppress(ProcessLookupError):
                os.kill(draws.choice([self.pid, *ranks]), 9)
            await self._has_died.wait()

    def _on_event(self, event: ProcessEvent) -> None:
        if event.kind == "started":
            self.pid = event.pid
        if event.kind == "failed":
            self.deaths += 1
            self._has_died.set()


def _with_version(one: Batch, step: int) -> Batch:
    return batch(step, version=step - 1, born=step - 1) if one.version != step - 1 else one


def _children(pid: int) -> list[int]:
    """Returns the processes that the threads of a process have started and that still run."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    return []


@pytest.mark.anyio
@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kills", [8, 200])
async def test_kills_of_ranks_lose_nothing_and_change_no_published_bit(tmp_path: Path, kills: int) -> None:
    draws = random.Random(SEED)
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    steps = 5 * kills
    expected = await Trainer(tmp_path / "whole", steps=steps).run(iter(()))
    trainer = Trainer(tmp_path / "killed", steps=steps)

    versions = await trainer.run(draws.uniform(0.0, 0.3 if number % 2 == 0 else 4.0) for number in range(kills))

    assert trainer.deaths >= kills // 2
    assert versions == expected
    assert sorted(versions) == list(range(steps + 1))
