"""Session of a trainer that is not AstraFlow's: what it reports about a step that failed."""

import asyncio
from pathlib import Path

import pytest
import torch

from astraflow.contract.batches import StepEnd
from astraflow.trainer.session import TrainerSession
from tests.trainer.test_service import TOKEN, surroundings

pytestmark = pytest.mark.anyio


def train(address: str, *, fails_at: int | None = None, problem: BaseException | None = None) -> None:
    """Trains two batches; raises the problem in one of the steps."""
    weights = {"w": torch.zeros(4)}
    with TrainerSession(address, token=TOKEN, policy="solver") as session:
        session.begin(weights)
        for _ in range(2):
            batch = session.pull()
            assert batch is not None
            if session.step == fails_at and problem is not None:
                raise problem
            session.end_step(batch, weights)


async def test_an_error_between_pull_and_end_of_a_step_is_reported(tmp_path: Path) -> None:
    async with surroundings(tmp_path, batches=2) as around:
        with pytest.raises(IndexError):
            await asyncio.to_thread(train, around.address, fails_at=1, problem=IndexError("out of range"))
        (failure,) = around.data.failures
        assert (failure.batch, failure.end) == ("solver:2", StepEnd.ERROR)
        assert failure.error.startswith("IndexError: out of range (test_session.py, line ")


async def test_an_interruption_and_a_complete_session_report_no_failure(tmp_path: Path) -> None:
    async with surroundings(tmp_path, batches=2) as around:
        with pytest.raises(SystemExit):
            await asyncio.to_thread(train, around.address, fails_at=0, problem=SystemExit())
        await asyncio.to_thread(train, around.address)
        assert around.data.failures == []
