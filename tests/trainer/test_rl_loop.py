"""The example `rl_loop.py` learns: dataset, engine, reward, trainer and weights work together in one process."""

import runpy
from pathlib import Path
from statistics import fmean

import pytest

pytestmark = pytest.mark.anyio

EXAMPLE = Path(__file__).parents[2] / "recipes/examples/rl_loop.py"
TASK = {"kind": "letters", "operation": "reverse", "length": 2, "alphabet": "abcd"}
MODEL = {"kind": "tiny", "warm_start": {"target_accuracy": 0.25, "dataset": TASK}}


async def test_the_loop_in_one_process_raises_the_reward() -> None:
    train = runpy.run_path(str(EXAMPLE))["train"]
    rewards = [reward async for reward in train(MODEL, TASK, steps=8)]
    assert fmean(rewards[-3:]) > fmean(rewards[:3]) + 0.1  # 0.2 in 8 steps
