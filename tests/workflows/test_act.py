"""The workflow `act` in an environment that the tests control."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from astraflow.conformance.workflows import WorkflowCheck
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.spans import Author
from astraflow.contract.rollouts.trajectories import Ending, Trajectory
from astraflow.rewards import rewards
from astraflow.testing.plugins import WorkflowSuite
from astraflow.workflows import workflows
from astraflow.workflows.base import RewardScorer, episode_seed
from astraflow.workflows.components.environment_episodes import EnvironmentSource
from astraflow.workflows.scripted.policies import EpisodeRecord, ScriptedPolicy, in_order
from tests import make
from tests.errors import raises_code
from tests.fakes.corridor import CorridorFactory
from tests.fakes.policy import FakePolicy

SOLVER = PolicyId("solver")
SCORER = RewardScorer(rewards.build({"kind": "exact_match"}))


def spec(environment: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    return {"kind": "act", "environment": {"kind": "test_corridor", **(environment or {})}, **options}


async def acted(
    *replies: str, environment: dict[str, Any] | None = None, **options: Any
) -> tuple[FakePolicy, Trajectory]:
    policy = FakePolicy(*replies)
    workflow = workflows.build(spec(environment, **options))
    (trajectory,) = await workflow.run(make.task(), {SOLVER: policy}, SCORER)
    assert CorridorFactory.latest.open == 0
    return policy, trajectory


class TestAct(WorkflowSuite):
    unsupported = frozenset({"lets a failure of the reward fail the episode"})

    @pytest.fixture
    def subject(self) -> Callable[[], WorkflowCheck]:
        return lambda: WorkflowCheck(
            spec=spec({"concurrency": 3}),
            prompt=make.prompt(),
            reply=in_order("jump", "back to the start?\nforward", "Action: forward"),
            open_resources=lambda: CorridorFactory.latest.open,
        )


@pytest.mark.anyio
async def test_an_episode_is_one_trajectory_with_the_rewards_of_its_turns() -> None:
    policy, trajectory = await acted("forward", "I go on.\nAction: forward")

    assert (trajectory.ending, trajectory.reward, trajectory.turn_rewards) == (Ending.WON, 0.5, (0.25, 0.25))
    assert trajectory.turn_discounts == ()
    assert trajectory.reward_terms == {"progress": 0.5}
    assert trajectory.metrics == {"turns": 2, "malformed": 0, "position": 2.0}
    assert trajectory.labels == {"environment": "test_corridor", "state": "position 2"}
    assert CorridorFactory.latest.begun == [("letters:0", episode_seed(make.task()))]
    assert [span.speaker for span in trajectory.spans if span.author is Author.CONTEXT] == ["", "environment"]
    assert policy.asked(1) == (
        "<|im_start|>user\nEnd each message with one line that holds the action alone.\n\nYou are at 0.\n\nActions:\n"
        "forward\nback<|im_end|>\n<|im_start|>assistant\nforward<|im_end|>\n"
        "<|im_start|>user\nYou are at 1.\n\nActions:\nforward\nback<|im_end|>\n<|im_start|>assistant\n"
    )
    assert np.array_equal(trajectory.tokens[: len(policy.prompts[1])], policy.prompts[1])


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("replies", "options", "ending", "reward"),
    [
        (["back"], {"failure_reward": -1.0}, Ending.LOST, -1.0),
        (["forward", "forward"], {"failure_reward": -1.0}, Ending.WON, 0.5),
        (["forward"], {"max_turns": 1}, Ending.TURNS, 0.25),
        (["jump", "", "jump high"], {"max_malformed": 2}, Ending.MALFORMED, 0.0),
        (["forward", "back", "forward", "forward"], {"max_repeats": 2}, Ending.WON, 0.75),
        (["jump"] * 3, {"max_repeats": 3}, Ending.REPEATED, 0.0),
        (["x" * 500], {"max_context": 200}, Ending.CONTEXT, 0.0),
        (["forward"], {"max_context": 160}, Ending.CONTEXT, 0.25),
    ],
)
async def test_every_end_is_a_value(replies: list[str], options: dict[str, Any], ending: Ending, reward: float) -> None:
    _, trajectory = await acted(*replies, **options)

    assert (trajectory.ending, trajectory.reward) == (ending, reward)
    assert len(trajectory.tokens) <= options.get("max_context", 10_000)
    assert len(trajectory.turn_rewards) == trajectory.turns == trajectory.metrics["turns"]


@pytest.mark.anyio
async def test_unreadable_actions_do_not_reach_the_environment() -> None:
    policy, trajectory = await acted("none", "2\n1", "3", "1", action_format="number", max_malformed=3)

    assert CorridorFactory.latest.actions == ["forward", "forward"]
    assert trajectory.metrics["malformed"] == 2
    assert "1. forward\n2. back" in policy.asked(0)
    assert "from 1 to 2" in policy.asked(1)


@pytest.mark.anyio
async def test_texts_of_the_first_message_and_the_length_of_observations_are_options() -> None:
    policy, trajectory = await acted(
        "forward",
        "forward",
        environment={"text": "long " * 100},
        instructions="Go.",
        worked_example="forward, forward",
        list_actions=False,
        max_observation_characters=10,
        turn_discount=0.5,
    )

    first = policy.asked(0)
    assert first.startswith("<|im_start|>user\nGo.\n\nExample:\nforward, forward\n\nlong long \n[")
    assert "Actions" not in first
    assert trajectory.turn_discounts == (0.5, 0.5)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("environment", "code"),
    [
        ({"fault": "hangs", "act_s": 0.01}, "rollout.environment_timeout"),
        ({"fault": "hangs_at_begin", "begin_s": 0.01}, "rollout.environment_timeout"),
        ({"fault": "raises"}, "rollout.environment_failed"),
        ({"fault": "nan"}, "rollout.invalid_observation"),
        ({"fault": "text"}, "rollout.invalid_observation"),
        ({"fault": "many_metrics"}, "rollout.invalid_observation"),
    ],
)
async def test_a_broken_environment_is_a_failure_at_its_boundary(environment: dict[str, Any], code: str) -> None:
    with raises_code(RolloutFailed, code) as failure:
        await acted("forward", environment=environment)

    assert failure.value.boundary is Boundary.ENVIRONMENT
    assert CorridorFactory.latest.open == 0


@pytest.mark.anyio
async def test_an_action_that_fails_again_in_a_replay_has_the_least_reward_of_all_episodes() -> None:
    environment = {"fault": "raises_at_back", "replays_failures": True, "length": 3}
    _, trajectory = await acted("forward", "forward", "back", environment=environment, failure_reward=-0.5)
    assert CorridorFactory.latest.actions == ["forward", "forward", "back"] * 2
    assert (trajectory.reward, trajectory.ending) == (-0.5, Ending.LOST)
    assert trajectory.metrics["environment_failed"] == 1

    source = EnvironmentSource({"kind": "test_corridor", **environment})
    for least in (0.0, -2.0):
        source._least_reward = least
        async with source.open(make.prompt(), 1) as opened:
            await opened.act("back")
            assert opened.reward == least
        async with source.open(make.prompt(), 1) as opened:
            opened.reward = least - 1  # of steps before
            await opened.act("back")
            assert opened.reward == least - 1
        assert source._least_reward == least - 1


@pytest.mark.anyio
@pytest.mark.parametrize("fault", ["raises_once", "raises_at_back"])
async def test_a_failure_that_no_replay_shows_or_that_is_not_replayed_has_no_reward(fault: str) -> None:
    is_replayed = fault == "raises_once"
    with raises_code(RolloutFailed, "rollout.environment_failed"):
        await acted("back", environment={"fault": fault, "replays_failures": is_replayed})
    assert len(CorridorFactory.latest.begun) == 1 + is_replayed
    assert CorridorFactory.latest.open == 0


@pytest.mark.anyio
async def test_a_failed_close_keeps_the_episode() -> None:
    _, trajectory = await acted("forward", "forward", environment={"fault": "raises_at_close"})

    assert trajectory.ending is Ending.WON


@pytest.mark.anyio
async def test_episodes_wait_for_an_environment_in_their_order() -> None:
    workflow = workflows.build(spec({"concurrency": 2}))

    async def run(member: int) -> None:
        client = ScriptedPolicy(SOLVER, EpisodeRecord(reply=in_order("forward")))
        await workflow.run(make.task(member=member), {SOLVER: client}, SCORER)

    await asyncio.gather(*(run(member) for member in range(9)))

    factory = CorridorFactory.latest
    assert (factory.most_open, factory.open) == (2, 0)
    assert [seed for _, seed in factory.begun] == [episode_seed(make.task(member=member)) for member in range(9)]


@pytest.mark.anyio
async def test_a_waiting_episode_that_is_cancelled_takes_no_place() -> None:
    workflow = workflows.build(spec({"concurrency": 1}))
    blocked = EpisodeRecord(reply=in_order("forward"), blocked_from=0)
    first = asyncio.create_task(workflow.run(make.task(), {SOLVER: ScriptedPolicy(SOLVER, blocked)}, SCORER))
    await blocked.blocked.wait()
    waiting = asyncio.create_task(workflow.run(make.task(member=1), {SOLVER: FakePolicy()}, SCORER))
    await asyncio.sleep(0)
    waiting.cancel()
    first.cancel()
    await asyncio.gather(first, waiting, return_exceptions=True)

    (trajectory,) = await workflow.run(make.task(member=2), {SOLVER: FakePolicy("forward", "forward")}, SCORER)
    assert trajectory.ending is Ending.WON
    assert CorridorFactory.latest.open == 0


@pytest.mark.anyio
async def test_start_checks_the_environment() -> None:
    workflow: Any = workflows.build(spec())
    factory = CorridorFactory.latest
    assert not factory.is_started

    await workflow.start()
    assert (factory.is_started, factory.is_checked) == (True, True)
    await workflow.close()
    assert not factory.is_started


@pytest.mark.anyio
async def test_unusable_options_are_refused() -> None:
    with raises_code(RolloutFailed, "workflow.no_actions"):
        await acted("1", environment={"lists_actions": False}, action_format="number")
    with raises_code(InvalidInput, "workflow.prompt_too_long"):
        await acted("forward", max_context=50)
    with raises_code(InvalidInput, "plugin.unknown_kind", "test_corridoor"):
        workflows.build({"kind": "act", "environment": {"kind": "test_corridoor"}})
