"""Environments of other projects' packages: what a node gets of them, whatever their code does."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from astraflow.conformance.named_environments import CHECKS, NamedEnvironment, check_named_environment
from astraflow.conformance.workflows import Started, WorkflowCheck
from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.ids import PromptId
from astraflow.contract.plugins import Outcome
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.contract.values import Json
from astraflow.environments.foreign.tasks import VerifiersTasksOptions
from astraflow.environments.foreign.workers import answer_of
from astraflow.workflows.scripted.policies import EpisodeRecord, in_order
from tests.errors import raises_code

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("coins")]

TASK: dict[str, Json] = {"coin": 3, "side": "tails"}


def coin_check(*replies: str, coin: str = "euro", workers: int = 2, **options: object) -> WorkflowCheck:
    program = {"kind": "coins", "id": coin, "workers": workers, "start_s": 30.0}
    workflow = {"kind": "agent", "program": program, "fields": ["task"], "score": {"by": "value"}, **options}
    prompt = Prompt(id=PromptId("coins:3"), fields={"question": "coin 3", "answer": "", "task": TASK})
    return WorkflowCheck(spec=workflow, prompt=prompt, reply=in_order(*replies))


@asynccontextmanager
async def coin_episodes(*replies: str, **options: object) -> AsyncIterator[Started]:
    async with Started(coin_check(*replies, **options)) as started:  # type: ignore[arg-type]  # options of the workflow
        yield started


async def played(started: Started, *replies: str) -> Sequence[Trajectory]:
    return await started.run(EpisodeRecord(reply=in_order(*replies)))


async def test_all_promises_are_kept() -> None:
    results = await check_named_environment(NamedEnvironment(check=coin_check("heads", "tails")))
    assert {
        result.promise: (result.outcome, result.detail) for result in results if result.outcome is not Outcome.PASSED
    } == {}
    assert len(results) == len(CHECKS)


async def test_the_reward_is_that_of_the_environment() -> None:
    async with coin_episodes("heads") as started:
        assert [trajectory.reward for trajectory in await played(started, "heads", "tails")] == [1.0] * 2
        assert [trajectory.reward for trajectory in await played(started, "heads", "heads")] == [0.0] * 2


@pytest.mark.parametrize(("reply", "code"), [("die", "environment.worker_died"), ("break", "environment.crashed")])
async def test_a_world_that_breaks_is_a_failure_and_no_reward(reply: str, code: str) -> None:
    async with coin_episodes("heads", workers=1) as started:
        with pytest.raises(RolloutFailed) as caught:
            await played(started, "heads", reply)
        assert (caught.value.boundary, caught.value.code) == (Boundary.ENVIRONMENT, code)
        assert [trajectory.reward for trajectory in await played(started, "heads", "tails")] == [1.0] * 2


async def test_a_world_that_hangs_ends_with_the_time_of_the_episode() -> None:
    async with coin_episodes("heads", max_seconds=0.5, exit_s=0.2) as started:
        trajectories = await played(started, "heads", "hang")
        assert [trajectory.reward for trajectory in trajectories] == [0.0] * 2
        assert [trajectory.reward for trajectory in await played(started, "heads", "tails")] == [1.0] * 2


async def test_what_a_package_prints_disturbs_nothing() -> None:
    async with coin_episodes("heads", coin="loud") as started:
        assert [trajectory.reward for trajectory in await played(started, "heads", "tails")] == [1.0] * 2


async def test_a_refusal_has_the_code_of_its_cause() -> None:
    with raises_code(InvalidInput, "coins.unknown"):
        await Started(coin_check("heads", coin="counterfeit")).__aenter__()


async def test_no_secret_of_the_node_reaches_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_NODE", "canary")
    async with coin_episodes("heads") as started:
        assert await played(started, "heads", "tails")


async def test_a_package_that_is_not_installed_is_named_with_the_command(coins: Path) -> None:
    (coins / "environment.json").unlink()
    with raises_code(InvalidInput, "environment.not_installed"):
        await Started(coin_check("heads")).__aenter__()


async def test_an_interpreter_that_ends_at_once_is_unavailable(coins: Path) -> None:
    (coins / "bin" / "python").write_text("#!/bin/sh\necho 'no such library' >&2; exit 3\n")
    with raises_code(Unavailable, "environment.worker_not_started"):
        await Started(coin_check("heads")).__aenter__()
    with raises_code(Unavailable, "environment.no_tasks"):
        answer_of("coins", VerifiersTasksOptions(id="euro"), {"operation": "tasks", "limit": 1})


def test_tasks_are_read_once_by_a_process_that_ends() -> None:
    rows = answer_of("coins", VerifiersTasksOptions(id="euro"), {"operation": "tasks", "limit": 2})
    assert [row["task"] for row in rows] == [{"coin": 0, "side": "heads"}, {"coin": 1, "side": "tails"}]
