import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from astraflow.contract.ids import GroupId, PolicyId, PromptId, Version
from astraflow.contract.nodes import TeacherChoice
from astraflow.contract.rollouts.agent_calls import MAX_EPISODE_CHARACTERS
from astraflow.contract.rollouts.failures import Boundary, Failure, RolloutFailed
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling, VersionSpan
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.contract.rollouts.tasks import Prompt, Task, prompt_position
from astraflow.contract.rollouts.token_columns import DEFAULT_SUPPORT, MAX_SUPPORT, TokenColumn
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.raas.counters import NodeCounters
from astraflow.raas.engines.base import PauseMode
from astraflow.raas.policies.pinned_versions import PinnedVersions
from astraflow.raas.policies.recorder import RolloutRecorder
from astraflow.raas.policies.sampling_check import SamplingCheck
from astraflow.raas.policies.served_policies import ServedPolicies
from astraflow.raas.tasks.runner import is_sampled, with_limited_calls
from astraflow.rewards import rewards
from astraflow.runtime.config.base import Config
from astraflow.workflows import workflows
from astraflow.workflows.base import PolicyClient, RewardScorer
from tests import make
from tests.errors import raises_code
from tests.fakes.agent_session import agent_trajectories
from tests.fakes.dataflow import FakeDataflow, flow
from tests.fakes.engine import FakeEngine
from tests.raas.parts import SOLVER, runner, serving

pytestmark = pytest.mark.anyio


class NoOptions(Config):
    """No options."""


@workflows.register("test_misbehaving", options=NoOptions)
class Misbehaving:
    """Behaves as the prompt's id specifies."""

    def __init__(self, options: NoOptions) -> None:
        self.policies = (SOLVER,)

    async def run(
        self, task: Task, policies: Mapping[PolicyId, PolicyClient], scorer: RewardScorer
    ) -> tuple[Trajectory, ...]:
        match str(task.flow):
            case "raises":
                raise KeyError("no such thing")
            case "returns_nothing":
                return ()
            case "times_out_by_itself":
                raise TimeoutError("the tool did not answer")
            case "hangs":
                await asyncio.Event().wait()
        return (make.trajectory(policy="stranger"),)


@workflows.register("test_agent", options=NoOptions)
class Agent:
    """Returns the trajectories of an agent's session, with its recorded calls."""

    def __init__(self, options: NoOptions) -> None:
        self.policies = (SOLVER,)

    async def run(
        self, task: Task, policies: Mapping[PolicyId, PolicyClient], scorer: RewardScorer
    ) -> tuple[Trajectory, ...]:
        return agent_trajectories()


class SamplerOptions(Config):
    """Sampling, and whether the trajectory has the answer or only one that was sampled as training needs it."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    json_schema: str = ""
    is_trained: bool = True


@workflows.register("test_sampler", options=SamplerOptions)
class Sampler:
    """Samples an answer as its options say, and another one from the whole distribution."""

    def __init__(self, options: SamplerOptions) -> None:
        self.policies = (SOLVER,)
        self._options = options

    async def run(
        self, task: Task, policies: Mapping[PolicyId, PolicyClient], scorer: RewardScorer
    ) -> tuple[Trajectory, ...]:
        values = self._options.model_dump(exclude={"is_trained"})
        prompt = np.arange(3, dtype=np.int32)
        other = await policies[SOLVER].generate(prompt, Sampling(max_new_tokens=8, **values, stop_tokens=(7,)))
        plain = await policies[SOLVER].generate(prompt, Sampling(max_new_tokens=8, stop_tokens=(9,)))
        trained = other if self._options.is_trained else plain
        model_spans = (Span(author=Author.MODEL, length=span.length, version=span.version) for span in trained.spans)
        return (
            Trajectory(
                policy=SOLVER,
                tokens=np.concatenate([prompt, trained.tokens]),
                logprobs=trained.logprobs,
                spans=(Span(author=Author.CONTEXT, length=3), *model_spans),
                reward=1.0,
            ),
        )


@rewards.register("test_broken", options=NoOptions)
class Broken:
    """Fails to compute a score."""

    def __init__(self, options: NoOptions) -> None:
        pass

    def score(self, prompt: Prompt, completion: str, finish: Finish) -> float:
        raise ZeroDivisionError("division by zero")


async def failure(name: str, engine: FakeEngine | None = None, **changes: Any) -> Failure:
    """Returns the failure of a task of that flow."""
    names = ("raises", "returns_nothing", "times_out_by_itself", "hangs", "returns_strangers")
    misbehaving = (flow(name, workflow={"kind": "test_misbehaving"}) for name in names)
    specs = (flow(), flow("broken_reward", reward={"kind": "test_broken"}), *misbehaving)
    counters = NodeCounters()
    run = runner(
        FakeDataflow(flows=specs), serving(engine or FakeEngine(version=0)), counters, timeout_s=0.05, **changes
    )

    episode = await run.run(make.task(flow=name), RolloutRecorder())

    assert episode.failure is not None
    assert episode.trajectories == ()
    assert counters.counters()["episodes_failed"] == 1
    assert counters.errors()[-1] == f"{episode.failure.boundary.value}: {episode.failure.message}"
    return episode.failure


@pytest.mark.parametrize(
    ("name", "boundary", "message"),
    [
        ("raises", Boundary.WORKFLOW, "KeyError: 'no such thing'"),
        ("returns_nothing", Boundary.WORKFLOW, "cannot use the episode: the workflow returned no trajectories"),
        (
            "returns_strangers",
            Boundary.WORKFLOW,
            "cannot use the episode: the workflow returned a trajectory of 'stranger'",
        ),
        ("times_out_by_itself", Boundary.WORKFLOW, "TimeoutError: the tool did not answer"),
        ("hangs", Boundary.ENGINE, "cannot finish the episode: no result after 0.05 s"),
        ("broken_reward", Boundary.REWARD, "ZeroDivisionError: division by zero"),
        ("unheard_of", Boundary.WORKFLOW, "cannot run the task: this node has no flow 'unheard_of'"),
    ],
)
async def test_failures_have_the_boundary_where_they_occurred(name: str, boundary: Boundary, message: str) -> None:
    problem = await failure(name)

    assert problem.boundary is boundary
    assert problem.message.startswith(message)


async def sampled(options: dict[str, Any], engine: FakeEngine | None = None, **changes: Any) -> Failure | None:
    """Returns the failure of an episode of a workflow that samples so. changes: of the flow."""
    spec = replace(flow(workflow={"kind": "test_sampler", **options}), temperatures={SOLVER: 1.0})
    run = runner(
        FakeDataflow(flows=(replace(spec, **changes),)), serving(engine or FakeEngine(version=0)), NodeCounters()
    )
    return (await run.run(make.task(), RolloutRecorder())).failure


@pytest.mark.parametrize(
    "options", [{"top_p": 0.8}, {"top_k": 5}, {"min_p": 0.1, "temperature": 0.7}, {"json_schema": "{}"}], ids=str
)
async def test_samples_of_a_distribution_that_is_not_recorded_are_not_trained(options: dict[str, Any]) -> None:
    failure = await sampled(options)

    assert failure is not None
    assert failure.boundary is Boundary.WORKFLOW
    assert "cannot train on the episode" in failure.message
    assert all(f"{name} {value}" in failure.message for name, value in options.items() if name != "json_schema")
    assert await sampled({**options, "is_trained": False}) is None, "samples for other purposes are free"
    assert await sampled(options, temperatures={}) is None, "an evaluation, or a loss that reads no recorded logprobs"


async def test_filtered_samples_are_trained_where_the_engine_records_kept_sets() -> None:
    engine, filtered = FakeEngine(version=0), {"top_p": 0.8, "min_p": 0.1}
    engine.records = frozenset((TokenColumn.SUPPORT,))

    assert await sampled(filtered, engine) is None
    assert await sampled({"top_k": MAX_SUPPORT + 1}, engine) is not None, "the sets would not fit"
    assert await sampled({"temperature": 0.0}, engine) is None
    assert await sampled(filtered, engine, temperatures={}) is None

    recorded = [(sampling.with_support, sampling.top_k) for sampling in engine.samplings]
    assert recorded[:2] == [(True, DEFAULT_SUPPORT), (False, 0)], "the answer, and one of the whole distribution"
    assert recorded[4] == (True, 1), "without a temperature only the most likely token can be sampled"
    assert recorded[-2:] == [(False, 0)] * 2, "an evaluation needs no kept sets"


async def test_a_temperature_other_than_that_of_the_algorithm_is_recorded() -> None:
    prompt, sampling = np.arange(3, dtype=np.int32), Sampling(max_new_tokens=8, stop_tokens=(7,))
    policies = serving(FakeEngine(version=0))
    recorded = []
    for temperatures in ({SOLVER: 1.0}, {SOLVER: 0.7}, {}):
        check = SamplingCheck(temperatures=temperatures)
        recorder = RolloutRecorder()
        (client,) = policies.for_task(make.task(), recorder, NodeCounters(), sampling_check=check).values()
        generation = await client.generate(prompt, sampling)
        assert recorder.generations_to_hand_back()[0].generation.columns.keys() == generation.columns.keys()
        recorded.append({column: values.tolist() for column, values in generation.columns.items()})
    assert recorded == [{}, {TokenColumn.TEMPERATURE: [[1.0]] * 5}, {}]


@pytest.mark.parametrize(
    ("records", "temperatures", "allows"),
    [((), {SOLVER: 1.0}, False), ((), {}, True), ((TokenColumn.SUPPORT,), {SOLVER: 1.0}, True)],
    ids=["trained", "not trained", "trained and recorded"],
)
def test_grammars_are_allowed_where_their_samples_are_recorded_or_not_trained(
    records: tuple[TokenColumn, ...], temperatures: dict[PolicyId, float], allows: bool
) -> None:
    engine, check = FakeEngine(version=0), SamplingCheck(temperatures=temperatures)
    engine.records = frozenset(records)
    (client,) = serving(engine).for_task(make.task(), RolloutRecorder(), NodeCounters(), sampling_check=check).values()
    assert client.allows_grammars == allows


def test_a_short_sample_for_another_purpose_is_not_mistaken_for_the_end_of_an_answer() -> None:
    """A judge's lone stop token at temperature 0 has the same token and logprob as that of a confident answer."""
    stop, zero = np.array([7], dtype=np.int32), np.zeros(1, dtype=np.float32)
    span = VersionSpan(version=Version(0), length=1)
    verdict = Generation(tokens=stop, logprobs=zero, spans=(span,), finish=Finish.STOP)
    check = SamplingCheck(temperatures={SOLVER: 1.0})
    check.record(SOLVER, Sampling(max_new_tokens=1, temperature=0.0), verdict)
    answer = replace(make.trajectory(model_tokens=5), logprobs=np.array([-1, -1, -1, -1, 0], dtype=np.float32))
    answer.tokens[-1] = 7

    check.check([answer])
    with raises_code(RolloutFailed, "rollout.other_distribution"):
        check.check([replace(make.trajectory(model_tokens=1), tokens=np.array([0, 1, 2, 7], np.int32), logprobs=zero)])


async def test_a_workflow_may_allow_other_samples() -> None:
    options = {"kind": "single_turn", "top_p": 0.8, "max_new_tokens": 8}
    refused = await sampled({}, workflow=options)
    allowed = await sampled({}, workflow={**options, "allow_truncated_sampling": True})

    assert refused is not None
    assert "top_p 0.8" in refused.message
    assert allowed is None


async def test_engine_errors_fail_at_the_engine_boundary() -> None:
    raising, odd, idle = (FakeEngine(version=0) for _ in range(3))
    raising.problem = RuntimeError("broken")
    odd.logprob = np.nan

    assert await failure("train", raising) == Failure(boundary=Boundary.ENGINE, message="RuntimeError: broken")
    assert "not finite" in (await failure("train", odd)).message
    idle.gate.clear()
    cut = asyncio.create_task(failure("train", idle))
    await idle.until_requested(1)
    await idle.pause(PauseMode.ABORT)
    assert "aborted" in (await cut).message


async def test_failure_messages_are_truncated() -> None:
    engine = FakeEngine(version=0)
    engine.problem = RuntimeError("x" * 10_000)

    assert len((await failure("train", engine)).message) == 500


async def test_a_sampled_episode_has_node_duration_and_text() -> None:
    counters = NodeCounters()
    run = runner(FakeDataflow(), serving(FakeEngine(version=2)), counters, text_share=1.0)

    episode = await run.run(make.task(attempt=2), RolloutRecorder())

    (trajectory,) = episode.trajectories
    assert (episode.node, episode.failure, episode.attempt) == ("node.1", None, 2)
    assert trajectory.prompt_text == "<|im_start|>user\nrev abcd=<|im_end|>\n<|im_start|>assistant\n"
    assert trajectory.completion_text == "dcba"
    assert trajectory.span_s[0] == 0.0
    assert 0.0 < trajectory.span_s[1] <= episode.duration_s
    assert counters.counters()["tokens_generated"] == 5
    assert [hop.name for hop in episode.hops] == ["rl.episode", "rl.generate", "rl.reward"]
    whole, generate, _ = episode.hops
    assert generate.detail == "policy solver, prompt_tokens 28"
    assert whole.began_at <= generate.began_at <= generate.ended_at <= whole.ended_at + 0.01


async def test_the_hops_of_a_failed_episode_show_the_error() -> None:
    engine = FakeEngine(version=2)
    engine.problem = ValueError("no memory")
    run = runner(FakeDataflow(), serving(engine), NodeCounters(), text_share=1.0)
    whole, generate = (await run.run(make.task(), RolloutRecorder())).hops
    assert (generate.name, generate.error) == ("rl.generate", "ValueError: no memory")
    assert "no memory" in whole.error


async def test_an_unsampled_episode_has_no_text_and_no_times() -> None:
    run = runner(FakeDataflow(), serving(FakeEngine(version=2)), NodeCounters())

    episode = await run.run(make.task(), RolloutRecorder())
    (trajectory,) = episode.trajectories

    assert episode.hops == ()
    assert (trajectory.prompt_text, trajectory.completion_text) == ("", "")
    assert (trajectory.text_ends, trajectory.span_s) == ((), ())


def training_task(number: int, *, prompt: int) -> Task:
    task = make.task()
    return replace(
        task, group=GroupId(f"train:{number}"), prompt=replace(task.prompt, id=PromptId(f"letters:{prompt}"))
    )


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 1.0])
def test_the_share_of_sampled_groups_is_the_same_in_every_batch(share: float) -> None:
    tasks = [training_task(number, prompt=number % 500) for number in range(4000)]
    sampled = [is_sampled(task, share) for task in tasks]

    assert sum(sampled) / len(sampled) == pytest.approx(share, abs=0.01)
    for begin in range(0, len(sampled), 32):
        batch = sum(sampled[begin : begin + 32])
        assert batch >= 32 * share * 7 / 8 - 1


def test_some_prompts_are_sampled_each_time_and_those_of_an_evaluation_in_each_round() -> None:
    first = min(range(500), key=lambda prompt: prompt_position(f"letters:{prompt}"))
    assert all(is_sampled(training_task(number, prompt=first), 0.1) for number in range(100))

    pinned = {PolicyId("solver"): Version(1)}
    rounds = [
        {
            prompt
            for prompt in range(500)
            if is_sampled(replace(training_task(index, prompt=prompt), pinned=pinned), 0.1)
        }
        for index in range(3)
    ]
    assert rounds[0] == rounds[1] == rounds[2]
    assert len(rounds[0]) / 500 == pytest.approx(0.1, abs=0.05)


async def test_every_trajectory_of_a_flow_with_a_group_reward_has_a_text_and_only_samples_have_times() -> None:
    specs = (flow(), replace(flow("compared"), attaches_texts=True))
    run = runner(FakeDataflow(flows=specs), serving(FakeEngine(version=0)), NodeCounters(), text_share=0.0)
    episodes = [await run.run(make.task(flow=name), RolloutRecorder()) for name in ("train", "compared")]
    (plain,), (compared,) = (episode.trajectories for episode in episodes)
    assert (plain.completion_text, plain.span_s) == ("", ())
    assert compared.completion_text
    assert compared.span_s == ()


@pytest.mark.parametrize(("text_share", "attaches_texts"), [(1.0, False), (0.0, False), (0.0, True)])
async def test_recorded_calls_are_sent_with_sampled_groups_only(text_share: float, attaches_texts: bool) -> None:
    specs = (replace(flow("agents", workflow={"kind": "test_agent"}), attaches_texts=attaches_texts),)
    run = runner(FakeDataflow(flows=specs), serving(FakeEngine(version=0)), NodeCounters(), text_share=text_share)
    episode = await run.run(make.task(flow="agents"), RolloutRecorder())
    trajectories = agent_trajectories()
    assert [trajectory.calls for trajectory in episode.trajectories] == [
        trajectory.calls if text_share else () for trajectory in trajectories
    ]


def test_the_calls_of_an_episode_are_cut_at_one_length_beyond_its_limit() -> None:
    (main, *rest) = agent_trajectories()
    calls = tuple(replace(main.calls[0], request="q" * 9000, reply="r" * 10) for _ in range(256))
    small = (replace(main, calls=calls[:10]), *rest)
    assert with_limited_calls(small) == small
    limited = with_limited_calls((replace(main, calls=calls), *rest))
    bodies = [body for trajectory in limited for call in trajectory.calls for body in (call.request, call.reply)]
    assert MAX_EPISODE_CHARACTERS / 4 < sum(map(len, bodies)) <= MAX_EPISODE_CHARACTERS
    assert [len(trajectory.calls) for trajectory in limited] == [256, *(len(other.calls) for other in rest)]
    assert limited[0].calls[0].reply == "r" * 10


class PinnedTo(PinnedVersions):
    """Provides the same policies for any pinned versions."""

    def __init__(self, policies: ServedPolicies) -> None:
        self._pinned_policies = policies

    @asynccontextmanager
    async def use_versions(self, pinned: Mapping[PolicyId, Version]) -> AsyncIterator[ServedPolicies]:
        yield self._pinned_policies


def judged_by_a_policy() -> FakeDataflow:
    judge = {"kind": "llm_judge", "policy": "judge", "lowest": 0, "highest": 1, "attempts": 1}
    return FakeDataflow(flows=(flow(reward=judge),), policies=("solver", "judge"))


async def test_a_policy_judges_the_episode_and_its_tokens_are_in_no_trajectory() -> None:
    solver, judge = FakeEngine(1), FakeEngine(0)
    judge.reply = "SCORE: 0.25"
    run = runner(judged_by_a_policy(), serving(solver, judge=judge), NodeCounters())

    (trajectory,) = (await run.run(make.task(), RolloutRecorder())).trajectories
    judge.problem = RuntimeError("out of memory")
    failed = (await run.run(make.task(), RolloutRecorder())).failure

    assert (trajectory.policy, trajectory.reward, len(judge.prompts)) == (SOLVER, 0.25, 2)
    assert failed is not None
    assert failed.boundary is Boundary.REWARD


async def test_a_verdict_is_recalled_when_another_node_continues_the_task() -> None:
    judge, recorder = FakeEngine(0), RolloutRecorder()
    judge.reply = "SCORE: 0.25"
    await runner(judged_by_a_policy(), serving(FakeEngine(1), judge=judge), NodeCounters()).run(make.task(), recorder)

    idle, resumed = FakeEngine(0), RolloutRecorder(recorder.generations_to_hand_back())
    run = runner(judged_by_a_policy(), serving(FakeEngine(1), judge=idle), NodeCounters())
    (trajectory,) = (await run.run(make.task(), resumed)).trajectories

    assert (trajectory.reward, idle.prompts) == (0.25, [])


async def test_an_evaluation_is_judged_by_the_version_for_training() -> None:
    judge, pinned = FakeEngine(0), FakeEngine(7)
    judge.reply = "SCORE: 1"
    policies = serving(FakeEngine(9), judge=judge)
    run = runner(judged_by_a_policy(), policies, NodeCounters(), pinned=PinnedTo(serving(pinned)))

    (trajectory,) = (await run.run(make.task(pinned=7), RolloutRecorder())).trajectories

    assert (trajectory.reward, len(pinned.prompts), len(judge.prompts)) == (1, 1, 1)


CHOICE = TeacherChoice(policy=SOLVER, field="part", teachers=("math", "code"))


@pytest.mark.parametrize("part", ["math", "code"])
async def test_a_field_of_the_prompt_chooses_the_teacher(part: str) -> None:
    spec = replace(flow(), teacher_choices=(CHOICE,))
    run = runner(FakeDataflow(flows=(spec,)), serving(FakeEngine(version=0)), NodeCounters())
    task = make.task()
    prompt = replace(task.prompt, fields={**task.prompt.fields, "part": part})

    episode = await run.run(replace(task, prompt=prompt), RolloutRecorder())

    assert [trajectory.teacher for trajectory in episode.trajectories] == [part]


@pytest.mark.parametrize("fields", [{}, {"part": "biology"}, {"part": 3}], ids=str)
async def test_a_prompt_without_a_teacher_fails_with_the_names_of_the_teachers(fields: dict[str, Any]) -> None:
    spec = replace(flow(), teacher_choices=(CHOICE,))
    run = runner(FakeDataflow(flows=(spec,)), serving(FakeEngine(version=0)), NodeCounters())
    task = make.task()
    prompt = replace(task.prompt, fields={**task.prompt.fields, **fields})

    episode = await run.run(replace(task, prompt=prompt), RolloutRecorder())

    assert episode.failure is not None
    assert episode.failure.boundary is Boundary.WORKFLOW
    assert "math, code" in episode.failure.message
