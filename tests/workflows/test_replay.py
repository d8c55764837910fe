"""Episodes with tools and environments that one node hands back and another continues, through the real runner."""

import asyncio
from typing import Any

import numpy as np
import pytest

from astraflow.contract.rollouts.generation import Generation, Sampling
from astraflow.contract.rollouts.trajectories import Ending, Int32Array, Trajectory
from astraflow.raas.counters import NodeCounters
from astraflow.raas.policies.recorder import RolloutRecorder
from tests import make
from tests.fakes.corridor import CorridorFactory
from tests.fakes.dataflow import FakeDataflow, flow
from tests.fakes.engine import FakeEngine
from tests.fakes.episode_tools import EpisodeTools
from tests.raas.parts import runner, serving

pytestmark = pytest.mark.anyio

CALL = '<tool_call>{"name": "note", "arguments": {"text": "a"}}</tool_call>'
ACT = {"kind": "act", "environment": {"kind": "test_corridor", "length": 3}}
TOOL_USE = {"kind": "tool_use", "tools": [{"kind": "test_episode"}], "max_turns": 3, "max_repeats": 0}


class ContinuingEngine(FakeEngine):
    """Writes the same text for each request, and its rest for a request that continues one."""

    def __init__(self, text: str, version: int) -> None:
        super().__init__(version=version)
        self._text = text
        self.begun = text[:4]

    async def generate(self, request_id: str, prompt: Int32Array, sampling: Sampling) -> Generation:
        self.reply = self._text[int(request_id.partition("+")[2] or 0) :]
        return await super().generate(request_id, prompt, sampling)


async def finished(workflow: dict[str, Any], engine: FakeEngine, recorder: RolloutRecorder) -> Trajectory:
    run = runner(FakeDataflow(flows=(flow(workflow=workflow),)), serving(engine), NodeCounters())
    episode = await run.run(make.task(), recorder)
    assert episode.failure is None, episode.failure
    (trajectory,) = episode.trajectories
    assert episode.continued_tokens == recorder.continued_tokens
    return trajectory


@pytest.mark.parametrize("stopped_after", [0, 1, 2])
@pytest.mark.parametrize(
    ("workflow", "text", "ending"), [(ACT, "forward", Ending.WON), (TOOL_USE, CALL, Ending.TURNS)], ids=["act", "tools"]
)
async def test_an_episode_continues_on_another_node(
    workflow: dict[str, Any], text: str, ending: Ending, stopped_after: int
) -> None:
    whole = await finished(workflow, ContinuingEngine(text, version=1), RolloutRecorder())

    engine, recorder = ContinuingEngine(text, version=1), RolloutRecorder()
    engine.answers_at_most = stopped_after
    first = runner(FakeDataflow(flows=(flow(workflow=workflow),)), serving(engine), NodeCounters())
    running = asyncio.create_task(first.run(make.task(), recorder))
    await engine.until_requested(stopped_after + 1)
    await recorder.stop()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    handed_back = recorder.generations_to_hand_back()
    assert (EpisodeTools.latest.open_episodes if workflow is TOOL_USE else CorridorFactory.latest.open) == 0

    another = ContinuingEngine(text, version=2)
    resumed = RolloutRecorder(handed_back)
    trajectory = await finished(workflow, another, resumed)

    written = sum(len(recorded.generation.tokens) for recorded in handed_back)
    assert written == stopped_after * (len(text) + 1) + 4
    assert resumed.continued_tokens == written
    assert len(another.requests) == 3 - stopped_after
    assert (trajectory.ending, trajectory.reward, trajectory.turn_rewards) == (
        ending,
        whole.reward,
        whole.turn_rewards,
    )
    assert np.array_equal(trajectory.tokens, whole.tokens)
    assert np.array_equal(trajectory.loss_mask(), whole.loss_mask())
    assert sum(span.length for span in trajectory.spans if span.version == 1) == written


async def test_an_environment_starts_anew_and_gets_the_recorded_actions() -> None:
    engine, recorder = ContinuingEngine("forward", version=1), RolloutRecorder()
    engine.answers_at_most = 2
    run = runner(FakeDataflow(flows=(flow(workflow=ACT),)), serving(engine), NodeCounters())
    running = asyncio.create_task(run.run(make.task(), recorder))
    await engine.until_requested(3)
    await recorder.stop()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    before = CorridorFactory.latest
    assert (before.actions, before.open) == (["forward"] * 2, 0)

    await finished(ACT, ContinuingEngine("forward", version=2), RolloutRecorder(recorder.generations_to_hand_back()))

    assert CorridorFactory.latest is not before
    assert CorridorFactory.latest.actions == ["forward"] * 3
    assert CorridorFactory.latest.begun == before.begun
