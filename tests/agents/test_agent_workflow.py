"""The workflow `agent` with functions as programs, on scripted policies and in the real runner."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow.conformance.workflows import WorkflowCheck
from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.ids import FlowId, PolicyId
from astraflow.contract.rollouts.agent_calls import CallOutcome
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending, Trajectory
from astraflow.raas.builders import build_flow
from astraflow.raas.counters import NodeCounters
from astraflow.raas.policies.recorder import RolloutRecorder
from astraflow.raas.tasks.runner import Runner
from astraflow.runtime.clock import SystemClock
from astraflow.runtime.plugins import PLUGINS_VARIABLE, import_plugins, start_managed
from astraflow.testing.plugins import WorkflowSuite
from astraflow.workflows import workflows
from astraflow.workflows.base import RewardScorer, SessionSource, Workflow
from astraflow.workflows.scripted.policies import EpisodeRecord, ScriptedPolicy, in_order
from tests import make
from tests.errors import raises_code
from tests.fakes.dataflow import flow
from tests.fakes.engine import FakeEngine
from tests.hostile.policies import AGENT_FILES
from tests.raas.parts import SOLVER, SOLVER_NODE, serving, unpinned
from tests.workflows.test_replay import ContinuingEngine

pytestmark = pytest.mark.anyio

AGENTS = str(Path(__file__).with_name("own_agents.py"))
CRITIC = PolicyId("critic")


@pytest.fixture(autouse=True)
def _own_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLUGINS_VARIABLE, AGENTS)
    import_plugins(AGENTS)


class TextReward:
    """Scores the length of the text, and remembers it."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def score(self, prompt: Prompt, completion: str, finish: Finish) -> float:
        self.texts.append(completion)
        return float(len(completion))


def spec(function: str, **options: Any) -> dict[str, Any]:
    program = {"kind": "callable", "function": f"own_agents:{function}", "concurrency": 8}
    return {"kind": "agent", "program": program, **options}


@asynccontextmanager
async def started(content: Mapping[str, Any]) -> AsyncIterator[Workflow]:
    workflow = workflows.build(content)
    async with AsyncExitStack() as resources:
        await start_managed((workflow,), resources)
        yield workflow


async def episode(
    workflow: Workflow, reward: TextReward, *replies: str, record: EpisodeRecord | None = None
) -> Sequence[Trajectory]:
    record = record or EpisodeRecord(reply=in_order(*replies or ("dcba",)))
    policies = {policy: ScriptedPolicy(policy, record) for policy in workflow.policies}
    return await workflow.run(make.task(), policies, RewardScorer(reward))


@pytest.mark.long
class TestConformance(WorkflowSuite):
    @pytest.fixture
    def subject(self) -> Callable[[], WorkflowCheck]:
        return lambda: WorkflowCheck(spec=spec("ask_twice"), prompt=make.prompt(), reply=in_order("dcba", "abcd"))


async def test_the_reward_scores_the_last_reply_and_calls_are_recorded() -> None:
    reward = TextReward()
    async with started(spec("ask_twice")) as workflow:
        assert isinstance(workflow, SessionSource)
        (trajectory,) = await episode(workflow, reward, "one", "three")
        assert not workflow.live_sessions()
    assert reward.texts == ["three"]
    assert (trajectory.reward, trajectory.ending, trajectory.metrics["calls"]) == (5.0, Ending.DONE, 2.0)
    assert [(call.turn, call.outcome) for call in trajectory.calls] == [
        (0, CallOutcome.ANSWERED),
        (1, CallOutcome.ANSWERED),
    ]


async def test_two_attempts_of_a_task_run_at_the_same_time() -> None:
    async with started(spec("ask_twice")) as workflow:
        attempts = await asyncio.gather(*(episode(workflow, TextReward(), "one", "three") for _ in range(2)))
    assert [trajectory.reward for (trajectory,) in attempts] == [5.0, 5.0]


@pytest.mark.parametrize(
    ("function", "score", "value", "terms"),
    [
        ("scores_itself", {"by": "value"}, 0.25, {"letters": 4.0}),
        ("writes_files", {"by": "file", "path": "reward.json"}, 0.75, {}),
        ("writes_files", {"text": "file", "path": "answer.txt"}, 4.0, {}),
        ("writes_files", {"text": "file", "path": "none.txt"}, 0.0, {}),
        ("reports", {"by": "callback"}, 0.125, {}),
        ("ask", {"text": "value"}, 4.0, {}),
        ("ask", {"text": "stdout"}, 0.0, {}),
    ],
)
async def test_scores_come_from_their_source(
    function: str, score: dict[str, str], value: float, terms: dict[str, float]
) -> None:
    async with started(spec(function, score=score)) as workflow:
        (trajectory,) = await episode(workflow, TextReward())
    assert (trajectory.reward, dict(trajectory.reward_terms)) == (value, terms)


@pytest.mark.parametrize(
    ("function", "score"),
    [
        ("nonsense", {"by": "value"}),
        ("ask", {"by": "value"}),
        ("ask", {"by": "callback"}),
        ("writes_files", {"by": "file", "path": "none.json"}),
        ("writes_files", {"by": "file", "path": "answer.txt"}),
    ],
)
async def test_a_score_that_is_no_number_is_a_failure_of_the_reward(function: str, score: dict[str, str]) -> None:
    async with started(spec(function, score=score)) as workflow:
        with raises_code(RolloutFailed, "agent.invalid_reward") as caught:
            await episode(workflow, TextReward())
    assert caught.value.boundary is Boundary.REWARD


async def test_policies_are_chosen_by_model_and_have_their_own_rewards() -> None:
    options = {"policies": ["solver", "critic"], "models": {"small": "critic"}, "score": {"by": "value"}}
    async with started(spec("scores_by_policy", **options)) as workflow:
        record = EpisodeRecord(reply=lambda policy, index: f"by {policy}")
        trajectories = await episode(workflow, TextReward(), record=record)
    assert [(request.policy) for request in record.requests] == [SOLVER, CRITIC]
    assert {t.policy: (t.role, t.reward) for t in trajectories} == {SOLVER: ("solver", 1.0), CRITIC: ("critic", 0.5)}


@pytest.mark.long
async def test_a_crash_is_a_failure_with_its_last_words_and_without_the_secret() -> None:
    async with started(spec("crash")) as workflow:
        with raises_code(RolloutFailed, "agent.program_failed", "exit status is 1", "with [secret]") as caught:
            await episode(workflow, TextReward())
    assert caught.value.boundary is Boundary.WORKFLOW


@pytest.mark.long
@pytest.mark.parametrize(("verdict", "reward"), [("zero", 0.0), ("score", 4.0)])
async def test_a_crash_means_what_the_options_say(verdict: str, reward: float) -> None:
    async with started(spec("crash", failed_exit=verdict)) as workflow:
        (trajectory,) = await episode(workflow, TextReward())
    assert (trajectory.reward, trajectory.is_truncated) == (reward, False)


async def test_a_program_without_a_call_is_a_failure() -> None:
    async with started(spec("silent")) as workflow:
        with raises_code(RolloutFailed, "agent.no_call") as caught:
            await episode(workflow, TextReward())
    assert caught.value.boundary is Boundary.WORKFLOW


async def test_a_program_is_stopped_at_its_time_limit() -> None:
    async with started(spec("endless", max_seconds=0.5, exit_s=0.1)) as workflow:
        (trajectory,) = await episode(workflow, TextReward())
    assert (trajectory.reward, trajectory.ending, trajectory.is_truncated) == (0.0, Ending.BUDGET, True)


@pytest.mark.long
async def test_a_program_that_fails_after_a_limit_is_truncated() -> None:
    async with started(spec("patient", max_turns=3)) as workflow:
        (trajectory,) = await episode(workflow, TextReward())
    assert (trajectory.reward, trajectory.ending, trajectory.is_truncated) == (0.0, Ending.TURNS, True)
    assert [call.outcome for call in trajectory.calls] == [CallOutcome.ANSWERED] * 3 + [CallOutcome.REFUSED]


@pytest.mark.long
async def test_agents_see_only_chosen_fields_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN_OF_THE_NODE", "secret")
    monkeypatch.setenv("SEARCH_KEY", "for agents")
    content = spec("sees_variables", score={"text": "value"})
    content["program"]["variables"] = ["SEARCH_KEY"]
    reward = TextReward()
    async with started(content) as workflow:
        await episode(workflow, reward)
    names = set(json.loads(reward.texts[0]))
    assert {"OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "SEARCH_KEY"} <= names
    assert "A_TOKEN_OF_THE_NODE" not in names


async def test_a_field_that_the_prompt_lacks_is_refused() -> None:
    async with started(spec("ask", fields=["question", "picture"])) as workflow:
        with raises_code(InvalidInput, "agent.missing_field"):
            await episode(workflow, TextReward())


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"program": {"kind": "callable", "function": "os:none"}}, "agent.function_not_found"),
        ({"program": {"kind": "callable", "function": "nowhere:none"}}, "agent.function_not_found"),
        ({"models": {"small": "stranger"}}, "agent.unknown_policy"),
        ({"score": {"by": "command", "command": ["true"]}}, "agent.score_not_available"),
    ],
)
async def test_options_that_cannot_work_are_refused_at_the_build(options: dict[str, Any], code: str) -> None:
    with raises_code(AstraFlowError, code):
        workflows.build({**spec("ask"), **options})


def runner_of(
    engine: FakeEngine, content: dict[str, Any], *, timeout_s: float = 30.0, text_share: float = 1.0
) -> tuple[Runner, Workflow]:
    built = build_flow(flow(workflow=content))
    runner = Runner(
        {FlowId("train"): built},
        serving(engine),
        unpinned(),
        node=lambda: SOLVER_NODE,
        counters=NodeCounters(),
        clock=SystemClock(),
        timeout_s=timeout_s,
        text_share=text_share,
    )
    return runner, built.workflow


@pytest.mark.parametrize(
    ("function", "timeout_s", "text_share", "outcomes"),
    [
        ("crash", 30.0, 1.0, [CallOutcome.ANSWERED]),
        ("endless", 1.0, 1.0, [CallOutcome.ANSWERED]),
        ("silent", 30.0, 1.0, []),
        ("crash", 30.0, 0.0, []),
    ],
)
async def test_a_failed_session_of_a_sampled_group_keeps_its_calls(
    function: str, timeout_s: float, text_share: float, outcomes: list[CallOutcome]
) -> None:
    async with AsyncExitStack() as resources:
        runner, workflow = runner_of(FakeEngine(), spec(function), timeout_s=timeout_s, text_share=text_share)
        await start_managed((workflow,), resources)
        result = await runner.run(make.task(), RolloutRecorder())
        assert isinstance(workflow, SessionSource)
        assert workflow.take_failed_calls(make.task().id) == (), "the workflow forgets them"
    assert result.failure is not None
    assert [call.outcome for call in result.failed_calls] == outcomes
    assert all('"messages"' in call.request and '"choices"' in call.reply for call in result.failed_calls)
    assert all(call.turn is None for call in result.failed_calls)


@pytest.mark.long
async def test_the_calls_of_an_agent_that_succeeds_are_in_its_trajectories() -> None:
    async with AsyncExitStack() as resources:
        runner, workflow = runner_of(FakeEngine(), spec("ask_twice"))
        await start_managed((workflow,), resources)
        result = await runner.run(make.task(prompt_given=make.prompt()), RolloutRecorder())
    assert result.failure is None, result.failure
    assert result.failed_calls == ()
    assert len(result.trajectories[0].calls) == 2


@pytest.mark.parametrize("stopped_after", [0, 1])
async def test_a_deterministic_agent_continues_on_another_node(stopped_after: int) -> None:
    engine, recorder = ContinuingEngine("letters", version=1), RolloutRecorder()
    engine.answers_at_most = stopped_after
    async with AsyncExitStack() as resources:
        runner, workflow = runner_of(engine, spec("ask_twice"))
        await start_managed((workflow,), resources)
        running = asyncio.create_task(runner.run(make.task(), recorder))
        await engine.until_requested(stopped_after + 1)
        assert isinstance(workflow, SessionSource)
        (live,) = workflow.live_sessions()
        assert (live.task, live.calls, live.waiting_calls) == (make.task().id, stopped_after, 1)
        await recorder.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert not workflow.live_sessions()
    handed_back = recorder.generations_to_hand_back()

    another, resumed = ContinuingEngine("letters", version=2), RolloutRecorder(handed_back)
    async with AsyncExitStack() as resources:
        runner, workflow = runner_of(another, spec("ask_twice"))
        await start_managed((workflow,), resources)
        result = await runner.run(make.task(), resumed)

    assert result.failure is None, result.failure
    (trajectory,) = result.trajectories
    written = stopped_after * (len("letters") + 1) + 4
    assert sum(len(recorded.generation.tokens) for recorded in handed_back) == written
    assert resumed.continued_tokens == result.continued_tokens == written
    assert len(another.requests) == 2 - stopped_after
    assert sum(span.length for span in trajectory.spans if span.version == 1) == written
    assert np.count_nonzero(trajectory.loss_mask()) == 2 * (len("letters") + 1)
    assert len(trajectory.calls) == 2


@pytest.mark.long
async def test_another_agent_begins_anew_on_another_node() -> None:
    """The recordings of calls that are not repeated stay unused."""
    engine, recorder = ContinuingEngine("letters", version=1), RolloutRecorder()
    async with AsyncExitStack() as resources:
        runner, workflow = runner_of(engine, spec("ask"))
        await start_managed((workflow,), resources)
        await runner.run(make.task(prompt_given=make.prompt()), recorder)
    await recorder.stop()
    changed = make.task(prompt_given=Prompt(id=make.prompt().id, fields={"question": "other", "answer": ""}))
    resumed = RolloutRecorder(recorder.generations_to_hand_back())
    another = ContinuingEngine("letters", version=2)
    async with AsyncExitStack() as resources:
        runner, workflow = runner_of(another, spec("ask"))
        await start_managed((workflow,), resources)
        result = await runner.run(changed, resumed)
    assert result.failure is None
    assert (result.continued_tokens, len(another.requests)) == (0, 1)


async def test_an_engine_that_fails_fails_the_episode_at_the_engine() -> None:
    engine = FakeEngine(version=1)
    engine.problem = RolloutFailed("gone", boundary=Boundary.ENGINE, code="rollout.engine_failed")
    async with AsyncExitStack() as resources:
        runner, workflow = runner_of(engine, spec("ask"))
        await start_managed((workflow,), resources)
        result = await runner.run(make.task(), RolloutRecorder())
    assert result.failure is not None
    assert result.failure.boundary is Boundary.ENGINE


@pytest.mark.parametrize("text", ["file", "stdout"])
@pytest.mark.parametrize("path", AGENT_FILES.cases())
async def test_what_an_agent_left_in_place_of_a_file_is_not_read(text: str, path: str) -> None:
    reward = TextReward()
    score = {"text": text, **({"path": path} if text == "file" else {})}
    async with started(spec("leaves_traps", score=score)) as workflow:
        await episode(workflow, reward)
    assert reward.texts == [""]


@pytest.mark.parametrize("function", ["leaves_traps", "nests_deeply"])
async def test_a_value_that_an_agent_wrote_itself_is_no_score(function: str) -> None:
    async with started(spec(function, score={"by": "value"})) as workflow:
        with raises_code(RolloutFailed, "agent.invalid_reward") as caught:
            await episode(workflow, TextReward())
    assert caught.value.boundary is Boundary.REWARD
