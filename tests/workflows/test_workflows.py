import numpy as np
import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.limits import EpisodeBounds
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.rewards import rewards
from astraflow.rewards.base import Score
from astraflow.workflows import workflows
from astraflow.workflows.base import BoundedWorkflow, RewardScorer
from tests import make
from tests.errors import raises_code
from tests.fakes.policy import FakePolicy

SOLVER, VERIFIER = PolicyId("solver"), PolicyId("verifier")
EXACT = RewardScorer(rewards.build({"kind": "exact_match"}))


async def solved(*replies: str, **options: object) -> tuple[FakePolicy, Trajectory]:
    policy = FakePolicy(*replies)
    workflow = workflows.build({"kind": "single_turn", **options})
    (trajectory,) = await workflow.run(make.task(), {SOLVER: policy}, EXACT)
    return policy, trajectory


@pytest.mark.anyio
async def test_a_correct_answer_is_scored_and_recorded_with_its_prompt() -> None:
    policy, trajectory = await solved("dcba", max_new_tokens=6, temperature=0.7, top_p=0.9)

    assert policy.asked(0) == "<|im_start|>user\nrev abcd=<|im_end|>\n<|im_start|>assistant\n"
    assert (policy.samplings[0].max_new_tokens, policy.samplings[0].temperature) == (6, 0.7)
    assert policy.samplings[0].stop_tokens == policy.tokenizer.stop_tokens
    assert (trajectory.policy, trajectory.reward, trajectory.is_truncated) == (SOLVER, 1.0, False)
    assert trajectory.model_tokens == 5
    assert trajectory.tokens[: -trajectory.model_tokens].tolist() == policy.prompts[0].tolist()


@pytest.mark.anyio
async def test_a_truncated_answer_is_marked_and_scores_zero() -> None:
    _, trajectory = await solved("dcba", max_new_tokens=4)

    assert (trajectory.reward, trajectory.is_truncated) == (0.0, True)


@pytest.mark.anyio
async def test_a_system_message_comes_first() -> None:
    policy, _ = await solved("dcba", system="Be brief.")

    assert policy.asked(0).startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")


@pytest.mark.anyio
async def test_a_teacher_reads_a_question_with_the_fields_of_the_prompt() -> None:
    policy, trajectory = await solved("dcba", system="Be brief.", teacher_question="{question}{answer} {braces}, so:")

    read = policy.tokenizer.decode(np.array(trajectory.teacher_prompt), keep_special_tokens=True)
    assert read.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")
    assert read.endswith("rev abcd=dcba {braces}, so:<|im_end|>\n<|im_start|>assistant\n")
    assert "dcba" not in policy.asked(0)


@pytest.mark.anyio
async def test_a_teachers_question_without_a_field_of_the_prompt_is_refused() -> None:
    with raises_code(InvalidInput, "workflow.no_field", "'{solution}'"):
        await solved("dcba", teacher_question="{solution}")


@pytest.mark.anyio
async def test_engine_and_reward_failures_have_their_boundary() -> None:
    workflow = workflows.build({"kind": "single_turn"})
    no_answer = RewardScorer(rewards.build({"kind": "exact_match", "answer_field": "solution"}))

    with raises_code(RolloutFailed, "rollout.engine_failed", "gone") as engine:
        await workflow.run(
            make.task(),
            {SOLVER: FakePolicy(RolloutFailed("gone", boundary=Boundary.ENGINE, code="rollout.engine_failed"))},
            EXACT,
        )
    with raises_code(RolloutFailed, "rollout.reward_failed", "InvalidInput", "'letters:0'") as reward:
        await workflow.run(make.task(), {SOLVER: FakePolicy("dcba")}, no_answer)

    assert engine.value.boundary is Boundary.ENGINE
    assert reward.value.boundary is Boundary.REWARD


@pytest.mark.anyio
async def test_a_reward_can_be_async_and_must_be_finite() -> None:
    class Slow:
        async def score(self, prompt: Prompt, completion: str, finish: Finish) -> float:
            return float(completion)

    assert await RewardScorer(Slow()).score(make.prompt(), "0.25", Finish.STOP) == Score(value=0.25)
    with raises_code(
        RolloutFailed, "rollout.non_finite_reward", "'Slow' (score in test_workflows.py, line ", "'letters:0'"
    ):
        await RewardScorer(Slow()).score(make.prompt(), "nan", Finish.STOP)


@pytest.mark.anyio
async def test_the_parsed_answer_is_in_the_trajectory() -> None:
    workflow = workflows.build({"kind": "single_turn"})
    (trajectories,) = await workflow.run(make.task(), {SOLVER: FakePolicy("abcd")}, EXACT)
    assert (trajectories.reward, trajectories.answer) == (0.0, "abcd")


@pytest.mark.anyio
async def test_long_answers_are_replaced_by_their_hash() -> None:
    class Whole:
        def score(self, prompt: Prompt, completion: str, finish: Finish) -> Score:
            return Score(value=1.0, answer=completion)

    scorer = RewardScorer(Whole())
    long = [(await scorer.score(make.prompt(), text, Finish.STOP)).answer for text in ("a" * 201, "a" * 201, "a" * 202)]
    assert long[0] == long[1] != long[2]
    assert max(map(len, long)) < 201
    assert (await scorer.score(make.prompt(), "a" * 200, Finish.STOP)).answer == "a" * 200


@pytest.mark.anyio
async def test_all_sampling_options_reach_the_engine_and_verdicts_are_unstructured() -> None:
    options = {"top_k": 7, "min_p": 0.25, "stop_strings": ["end"], "seed": 3, "json_schema": '{"type": "string"}'}
    policy, _ = await solved("dcba", **options)
    sampling = policy.samplings[0]
    assert (sampling.top_k, sampling.min_p, sampling.stop_strings, sampling.seed) == (7, 0.25, ("end",), 3)
    assert sampling.json_schema == '{"type": "string"}'

    policies = {SOLVER: FakePolicy("dcba"), VERIFIER: FakePolicy("approve")}
    await workflows.build({"kind": "solve_and_verify", **options}).run(make.task(), policies, EXACT)
    assert policies[SOLVER].samplings[0].json_schema
    verdict = policies[VERIFIER].samplings[0]
    assert (verdict.json_schema, verdict.stop_strings, verdict.top_k) == ("", (), 7)


CONVERSATION = {"max_turns": 3, "max_new_tokens": 10, "max_context": 100}


@pytest.mark.parametrize(
    ("spec", "bounds"),
    [
        (
            {"kind": "single_turn", "max_new_tokens": 6, "system": "Be brief."},
            EpisodeBounds(trajectories=1, written=6, context=4096 + 4 * 9),
        ),
        ({"kind": "multi_turn", **CONVERSATION}, EpisodeBounds(trajectories=1, tokens=100, written=30)),
        (
            {"kind": "multi_turn", "max_turns": 30, "max_new_tokens": 10, "max_context": 100},
            EpisodeBounds(trajectories=1, tokens=100, written=100),
        ),
        ({"kind": "spawn", **CONVERSATION, "max_agents": 5}, EpisodeBounds(trajectories=5, tokens=100, written=30)),
        (
            {"kind": "plan_and_solve", "max_new_tokens": 6, "plan_max_new_tokens": 9, "solutions": 4},
            EpisodeBounds(trajectories=5, written=9),
        ),
        ({"kind": "solve_and_verify", "verdict_max_new_tokens": 900}, EpisodeBounds(trajectories=3, written=900)),
        ({"kind": "route", "experts": ["a", "b", "c"]}, EpisodeBounds(trajectories=4, written=512)),
    ],
    ids=lambda value: value.get("kind") if isinstance(value, dict) else "",
)
def test_a_workflow_states_the_bounds_of_its_episodes(spec: dict[str, object], bounds: EpisodeBounds) -> None:
    workflow = workflows.build(spec)
    assert isinstance(workflow, BoundedWorkflow)
    assert workflow.bounds == bounds
