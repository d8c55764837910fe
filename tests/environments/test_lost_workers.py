"""Workers of each environment that are killed or stopped in mid-episode: a failure of the environment, in bounded time,
after which the same episode can be played again."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from astraflow.contract.ids import FlowId
from astraflow.contract.rollouts.failures import Boundary
from astraflow.contract.rollouts.generation import Generation, Sampling
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending, Episode, Int32Array, Trajectory
from astraflow.datasets import datasets
from astraflow.environments import environments
from astraflow.environments.base import Observation
from astraflow.environments.episodes import Expert, plan_of_answer, play
from astraflow.raas.builders import build_flow
from astraflow.raas.counters import NodeCounters
from astraflow.raas.policies.recorder import RolloutRecorder
from astraflow.raas.tasks.runner import BuiltFlow, Runner
from astraflow.runtime.clock import SystemClock
from astraflow.runtime.plugins import PLUGINS_VARIABLE, start_managed
from tests import make
from tests.environments.experts import recorded_plan, solver
from tests.environments.test_webshop import shopper
from tests.fakes import environments as fakes
from tests.fakes.dataflow import flow
from tests.fakes.engine import FakeEngine
from tests.raas.parts import SOLVER_NODE, serving, unpinned

pytestmark = pytest.mark.anyio

ACT_S = 1.5
"""Time limit of an action in the tests. Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Environment or game with a cheap task."""

    environment: dict[str, Any]
    dataset: dict[str, Any]
    expert: Expert = plan_of_answer
    act_s: float = ACT_S
    is_game: bool = False

    @property
    def workflow(self) -> dict[str, Any]:
        """Spec of the workflow, with one worker."""
        adapter = {"kind": "process", "workers": 1, "act_s": self.act_s, "of": self.environment}
        if self.is_game:
            return {"kind": "versus", "game": adapter, "player_1": "solver", "player_2": "solver"}
        return {"kind": "act", "environment": adapter, "action_format": "tag"}


def row_of_three(_: Prompt, observations: Sequence[Observation]) -> str:
    """Plays both sides of TicTacToe; the first player wins."""
    return ("[0]", "[3]", "[1]", "[4]", "[2]")[len(observations) - 1]


WORLDS = {
    "textcraft": World(
        environment={"kind": "textcraft"}, dataset={"kind": "textcraft", "min_depth": 2, "max_depth": 2}
    ),
    "webshop": World(
        environment={"kind": "webshop", "products": 50},
        dataset={"kind": "webshop", "split": "all", "store": {"products": 50}},
        expert=shopper,
    ),
    "terminal": World(
        environment={"kind": "terminal", "is_sample": True},
        dataset={"kind": "terminal", "is_sample": True},
        expert=solver,
    ),
    "alfworld": World(environment={"kind": "alfworld"}, dataset={"kind": "alfworld", "generated": 6}),
    "scienceworld": World(
        environment={"kind": "scienceworld"},
        dataset={"kind": "scienceworld", "tasks": ["find-plant"]},
        expert=recorded_plan,
        act_s=10.0,
    ),
    "counting": World(
        environment={"kind": "counting"}, dataset={"kind": "letters"}, expert=lambda *_: "go", is_game=True
    ),
    "textarena": World(
        environment={"kind": "textarena"},
        dataset={"kind": "games", "games": ["TicTacToe-v0"]},
        expert=row_of_three,
        is_game=True,
    ),
}

MARKS = {
    "terminal": (pytest.mark.long,),
    "alfworld": (pytest.mark.long,),
    "scienceworld": (pytest.mark.long, pytest.mark.needs("java")),
    "textarena": (pytest.mark.long,),
}
"""Real workers take seconds to start, three times."""


class ActingEngine(FakeEngine):
    """Engine of a policy that does what an expert does who counts its observations. Calls `fault` before the second
    action."""

    def __init__(self, prompt: Prompt, expert: Expert) -> None:
        super().__init__(version=0)
        self.fault: Callable[[], None] | None = None
        self.actions = 0
        self._prompt = prompt
        self._expert = expert

    async def generate(self, request_id: str, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Returns the next action."""
        self.actions += 1
        if self.actions == 2 and self.fault is not None:
            self.fault()
        self.reply = f"<action>{self._expert(self._prompt, [Observation(text='')] * self.actions)}</action>"
        return await super().generate(request_id, prompt, sampling)


class Node:
    """Node with one worker of an environment."""

    def __init__(self, engine: ActingEngine, prompt: Prompt, built: BuiltFlow) -> None:
        self.counters = NodeCounters()
        self._engine = engine
        self._prompt = prompt
        self._run = Runner(
            {FlowId("train"): built},
            serving(engine),
            unpinned(),
            node=lambda: SOLVER_NODE,
            counters=self.counters,
            clock=SystemClock(),
            timeout_s=120.0,
            text_share=0.0,
        )

    async def episode(self, fault: Callable[[], None] | None = None) -> Episode:
        """Runs the task, with a fault after the first action."""
        self._engine.actions, self._engine.fault = 0, fault
        return await self._run.run(make.task(prompt_given=self._prompt), RolloutRecorder())


@asynccontextmanager
async def node_of(world: World) -> AsyncIterator[Node]:
    """Provides a node whose policy wins the first task of the world's dataset."""
    prompt = datasets.build(world.dataset, 0).prompt(0)
    expert = await _shopping(world, prompt) if world.expert is shopper else world.expert
    built = build_flow(flow(workflow=world.workflow))
    async with AsyncExitStack() as resources:
        await start_managed([built.workflow], resources)
        yield Node(ActingEngine(prompt, expert), prompt, built)


async def _shopping(world: World, prompt: Prompt) -> Expert:
    """Returns an expert that repeats what the shopper, who reads the pages, did in this process."""
    actions: list[str] = []

    def recorded(prompt: Prompt, observations: Sequence[Observation]) -> str:
        actions.append(shopper(prompt, observations))
        return actions[-1]

    async with AsyncExitStack() as resources:
        factory = environments.build(world.environment)
        await start_managed([factory], resources)
        await play(factory, prompt, 0, recorded)
    return lambda _, observations: actions[len(observations) - 1]


def worker() -> psutil.Process:
    """Returns the worker process."""
    children = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    (process,) = (child for child in children if "astraflow.environments.adapters.worker" in child.cmdline())
    return process


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in WORLDS])
async def test_a_killed_or_stopped_worker_is_a_counted_failure_and_the_episode_can_be_repeated(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PLUGINS_VARIABLE, fakes.__name__)
    world = WORLDS[name]
    async with node_of(world) as node:
        won, *_ = played = (await node.episode()).trajectories
        assert won.ending is Ending.WON and won.reward == pytest.approx(1.0)
        for number, (sent, cause) in enumerate(
            ((signal.SIGKILL, "ended with status -9"), (signal.SIGSTOP, "no answer")), 1
        ):
            lost: list[psutil.Process] = []

            def fault(sent: signal.Signals = sent, lost: list[psutil.Process] = lost) -> None:
                lost.extend((worker(), *worker().children(recursive=True)))
                lost[0].send_signal(sent)

            began = time.monotonic()
            failed = await node.episode(fault)
            assert time.monotonic() - began < world.act_s + 10.0
            assert failed.failure is not None and failed.trajectories == ()
            assert failed.failure.boundary is Boundary.ENVIRONMENT and cause in failed.failure.message
            assert node.counters.counters()["episodes_failed"] == number
            _, alive = await asyncio.to_thread(psutil.wait_procs, lost, 10.0)
            assert alive == []

            assert outline((await node.episode()).trajectories) == outline(played)


def outline(trajectories: Sequence[Trajectory]) -> list[tuple[list[int], tuple[float, ...], float]]:
    return [(played.tokens.tolist(), played.turn_rewards, played.reward) for played in trajectories]
