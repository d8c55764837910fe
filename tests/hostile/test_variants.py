"""Random results of one node: whatever it pushes, the trainer goes on without a restart and counts balance."""

import contextlib
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.rollouts.spans import Author, Span
from tests.hostile.peer import POLICY, hostile_node
from tests.system.processes import RunningRun, assert_balanced, running

pytestmark = [pytest.mark.slow, pytest.mark.long]

NUMBERS = st.one_of(
    st.floats(width=32), st.sampled_from([0.0, 1.0, -1.0, 1e9, -1e9, 3e38, -3e38, math.nan, math.inf, -math.inf])
)
IDS = st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(-2, 200))


@st.composite
def fields(draw: st.DrawFn) -> dict[str, Any]:
    """Returns the fields of a trajectory that can be encoded; their values are anything."""
    context, written = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    version = Version(draw(st.one_of(st.integers(0, 3), st.integers(0, 2**40))))
    tokens = draw(st.lists(IDS, min_size=context + written, max_size=context + written))
    return {
        "policy": draw(st.sampled_from([POLICY, PolicyId("judge")])),
        "tokens": np.array(tokens, np.int32),
        "logprobs": np.array(draw(st.lists(NUMBERS, min_size=written, max_size=written)), np.float32),
        "spans": (
            Span(author=Author.CONTEXT, length=context),
            Span(author=Author.MODEL, length=written, version=version),
        ),
        "reward": draw(st.floats(allow_nan=False, allow_infinity=False)),
        "turn_rewards": draw(st.sampled_from([(), (0.5,), (9e8,), (-1e300,)])),
        "reward_terms": draw(st.dictionaries(st.text(max_size=8), st.floats(allow_nan=False), max_size=3)),
        "metrics": draw(st.dictionaries(st.text(max_size=8), st.floats(allow_nan=False), max_size=3)),
        "labels": draw(st.dictionaries(st.text(max_size=8), st.text(max_size=20), max_size=3)),
        "answer": draw(st.text(max_size=50)),
        "is_truncated": draw(st.booleans()),
    }


def test_no_result_of_one_node_stops_a_trainer(tmp_path: Path, forked_programs: None) -> None:
    options = ("--no-web", "--set", "stop.reward=2", "--set", "stop.steps=100000")
    run_dir = tmp_path / "run"
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(running("reverse", run_dir, *options, limit_s=1200)) as run,
    ):
        portal.call(run.steps_more, 2)
        pids = run.pids()
        _push_examples(portal, run)
        assert_balanced(portal.call(run.steps_more, 3))
        assert run.pids() == pids, "a process was restarted"


def _push_examples(portal: BlockingPortal, run: RunningRun) -> None:
    names = iter(range(10**6))

    @settings(deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(fields(), min_size=1, max_size=4))
    def push(examples: list[dict[str, Any]]) -> None:
        portal.call(partial(_pushed, run, f"variant-{next(names)}", examples))
        assert_balanced(portal.call(run.report))

    push()


async def _pushed(run: RunningRun, name: str, examples: list[dict[str, Any]]) -> None:
    async with hostile_node(run, name) as node:
        tasks = await node.lease(len(examples))
        with contextlib.suppress(AstraFlowError):  # refused as a whole
            await node.push_episodes(
                [node.episode(task, example) for task, example in zip(tasks, examples, strict=False)]
            )
