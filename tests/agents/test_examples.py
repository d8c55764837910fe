"""The examples of agents, with the plain `openai` SDK."""

import tomllib
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.spans import Author
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.recipe.files import EXAMPLES, PACKAGED
from astraflow.rewards import rewards
from astraflow.runtime.plugins import PLUGINS_VARIABLE, import_plugins, start_managed
from astraflow.workflows import workflows
from astraflow.workflows.base import RewardScorer
from astraflow.workflows.scripted.policies import EpisodeRecord, Reply, ScriptedPolicy, in_order
from tests import make

pytestmark = [pytest.mark.anyio, pytest.mark.long]

CALL = '<tool_call>{"name": "reverse", "arguments": {"text": "abcd"}}</tool_call>'


def recipe(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    path = PACKAGED / EXAMPLES / f"{name}.py"
    monkeypatch.setenv(PLUGINS_VARIABLE, str(path))
    import_plugins(str(path))
    return tomllib.loads(Path(path.with_suffix(".toml")).read_text())


async def episode(workflow: dict[str, Any], reply: Reply) -> tuple[EpisodeRecord, Sequence[Trajectory]]:
    built, record = workflows.build(workflow), EpisodeRecord(reply=reply)
    async with AsyncExitStack() as resources:
        await start_managed((built,), resources)
        policies = {policy: ScriptedPolicy(policy, record) for policy in built.policies}
        scorer = RewardScorer(rewards.build({"kind": "exact_match"}))
        return record, await built.run(make.task(), policies, scorer)


async def test_the_agent_calls_its_tool_and_is_one_trajectory(monkeypatch: pytest.MonkeyPatch) -> None:
    content = recipe("openai_agent", monkeypatch)

    record, (trajectory,) = await episode(content["flows"]["train"]["workflow"], in_order(CALL, "dcba"))

    assert (trajectory.reward, trajectory.metrics["turns"], len(record.requests)) == (1.0, 2.0, 2)
    assert [span.author for span in trajectory.spans] == [Author.CONTEXT, Author.MODEL] * 2
    # the tiny model begins with what the agent asks, to the letter
    warm_start = content["policies"]["solver"]["model"]["warm_start"]
    first, second = (ScriptedPolicy(PolicyId("solver"), record).tokenizer.decode(r.prompt) for r in record.requests)
    parts = warm_start["dataset"]["parts"]
    assert warm_start["system"] in first
    assert parts["call"]["dataset"]["answer_format"].replace("{text}", "abcd") == CALL
    assert parts["answer"]["dataset"]["question_format"].replace("{answer}", "dcba") in second
    # and reads and writes the fixed parts as one token each
    words = content["policies"]["solver"]["model"]["words"]
    assert all(any(word in text for text in (CALL, first, second)) for word in words)
    # and so do the examples that the language model is shown
    examples = tomllib.loads((PACKAGED / EXAMPLES / "openai_agent_calls.toml").read_text())["flows"]["train"]
    assert examples["workflow"]["system"] == warm_start["system"]
    assert examples["dataset"]["parts"].items() <= parts.items()


@pytest.mark.parametrize(("back", "reward"), [("abcd", 1.0), ("abdc", 0.0)])
async def test_each_of_two_agents_has_its_own_reward(monkeypatch: pytest.MonkeyPatch, back: str, reward: float) -> None:
    content = recipe("two_agents", monkeypatch)

    record, trajectories = await episode(
        content["flows"]["train"]["workflow"], lambda policy, index: "dcba" if policy == "solver" else back
    )

    assert [request.policy for request in record.requests] == ["solver", "back"]
    assert {trajectory.policy: trajectory.reward for trajectory in trajectories} == {"solver": 1.0, "back": reward}
