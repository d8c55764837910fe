"""ScienceWorld in worker processes, each with a Java virtual machine."""

import os
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.failures import RolloutFailed
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.datasets import datasets
from astraflow.datasets.worlds.scienceworld import VARIATIONS
from astraflow.environments import environments
from astraflow.environments.base import EnvironmentFactory
from astraflow.environments.episodes import Expert, play, total_reward
from astraflow.runtime.plugins import start_managed
from astraflow.testing.plugins import EnvironmentSuite
from tests import make
from tests.environments.experts import recorded_plan
from tests.errors import raises_code

pytestmark = pytest.mark.anyio

WORKERS = {"kind": "process", "workers": 2, "of": {"kind": "scienceworld"}}


def prompt_of(task: str, variation: int = 0) -> Prompt:
    return datasets.build({"kind": "scienceworld", "tasks": [task]}, 0).prompt(variation)


@pytest.mark.long
@pytest.mark.needs("java")
async def test_a_gold_path_wins_and_repeats_itself() -> None:
    async with AsyncExitStack() as resources:
        factory = environments.build({**WORKERS, "workers": 1})
        await start_managed([factory], resources)
        first, again = [await play(factory, prompt_of("find-plant"), 0, recorded_plan) for _ in range(2)]
        assert first[-1].ending is Ending.WON
        assert total_reward(first) == pytest.approx(1.0)
        assert again == first
        assert "open OBJ" in first[0].text and "reset" not in first[0].text
        environment = factory.make()
        await environment.begin(prompt_of("find-plant"), 0)
        for action in ("reset task", "reset", "", "look\x00", "dance with the moon"):
            assert (await environment.act(action)).is_malformed, action
        assert not (await environment.act("look around")).is_malformed
        await environment.close()


@pytest.mark.needs("java")
@pytest.mark.long
class TestScienceWorld(EnvironmentSuite):
    @pytest.fixture
    def factory(self) -> EnvironmentFactory:
        return environments.build(WORKERS)

    @pytest.fixture
    def prompts(self) -> Sequence[Prompt]:
        return [prompt_of("find-plant", 1), prompt_of("lifespan-longest-lived", 1)]

    @pytest.fixture
    def expert(self) -> Expert:
        return recorded_plan


@pytest.mark.needs("java")
@pytest.mark.long
async def test_gold_paths_of_several_tasks_win_in_another_virtual_machine() -> None:
    async with AsyncExitStack() as resources:
        factory = environments.build(WORKERS)
        await start_managed([factory], resources)
        for task in ("find-plant", "lifespan-longest-lived", "identify-life-stages-1", "boil"):
            observations = await play(factory, prompt_of(task), 3, recorded_plan)
            assert total_reward(observations) == pytest.approx(1.0), task


@pytest.mark.needs("java")
@pytest.mark.long
async def test_a_fatal_mistake_ends_with_no_reward() -> None:
    async with AsyncExitStack() as resources:
        factory = environments.build({**WORKERS, "workers": 1})
        await start_managed([factory], resources)
        environment = factory.make()
        await environment.begin(prompt_of("find-plant"), 0)
        last = await environment.act("focus on agent")
        assert (last.ending, last.metrics["score"]) == (Ending.LOST, 0.0)
        assert (await environment.act("look around")).ending is Ending.LOST
        await environment.close()


@pytest.mark.needs("java")
@pytest.mark.long
async def test_a_killed_virtual_machine_fails_its_episode_and_is_not_used_again() -> None:
    async with AsyncExitStack() as resources:
        factory = environments.build({**WORKERS, "workers": 1})
        await start_managed([factory], resources)
        environment = factory.make()
        await environment.begin(prompt_of("find-plant"), 0)
        for process in psutil.Process().children(recursive=True):
            if process.name() == "java":
                os.kill(process.pid, signal.SIGKILL)
        with raises_code(RolloutFailed, "environment.crashed"):
            await environment.act("look around")
        await environment.close()
        assert (await play(factory, prompt_of("find-plant"), 0, recorded_plan))[-1].ending is Ending.WON


async def test_a_missing_java_runtime_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with raises_code(InvalidInput, "environment.no_java", "JAVA_HOME"):
        await environments.build({"kind": "scienceworld"}).check()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"task": "find-plant", "variation": 300, "simplification": "easy"},
        {"task": "fly", "variation": 0, "simplification": "easy"},
        {"task": "find-plant", "variation": 0, "simplification": "cheat"},
    ],
    ids=str,
)
async def test_a_prompt_without_a_variation_is_refused(fields: dict[str, Any]) -> None:
    environment = environments.build({"kind": "scienceworld"}).make()
    with raises_code(InvalidInput, "environment.wrong_prompt"):
        await environment.begin(Prompt(id=make.prompt().id, fields=fields), 0)
    with raises_code(InvalidInput, "environment.not_begun"):
        await environment.act("look around")


@pytest.mark.parametrize("options", [{"tasks": []}, {"tasks": ["fly"]}, {"simplifications": ["cheat"]}], ids=str)
def test_unknown_tasks_are_refused(options: dict[str, Any]) -> None:
    with raises_code(InvalidInput, "config.invalid"):
        datasets.build({"kind": "scienceworld", **options}, 0)


def test_the_splits_share_no_variation() -> None:
    ids = [
        {dataset.prompt(index).id for index in range(dataset.size)}
        for dataset in (datasets.build({"kind": "scienceworld", "split": name}, 0) for name in ("train", "dev", "test"))
    ]
    assert len(set().union(*ids)) == sum(map(len, ids)) == sum(VARIATIONS.values())
