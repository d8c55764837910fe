"""Verdicts, rewards, roles and prompts of the solver and the verifier."""

import pytest

from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.rewards import rewards
from astraflow.workflows import workflows
from astraflow.workflows.base import RewardScorer
from astraflow.workflows.solve_and_verify import APPROVE, REJECT, parse_verdict, parse_verification_prompt
from tests import make
from tests.fakes.policy import FakePolicy

SOLVER, VERIFIER = PolicyId("solver"), PolicyId("verifier")
EXACT = RewardScorer(rewards.build({"kind": "exact_match"}))


async def episode(replies: tuple[str, ...], verdict: str) -> tuple[dict[PolicyId, FakePolicy], tuple[Trajectory, ...]]:
    policies = {SOLVER: FakePolicy(*replies), VERIFIER: FakePolicy(verdict)}
    workflow = workflows.build({"kind": "solve_and_verify"})
    return policies, tuple(await workflow.run(make.task(), policies, EXACT))


@pytest.mark.parametrize(
    ("text", "approves"),
    [
        (f"It is right. {APPROVE}", True),
        (f"It is wrong. {REJECT}", False),
        ("<Verdict> Approve </VERDICT>\n", True),
        (f"{APPROVE} No, wait. {REJECT}", False),
        (f"I would reject this if ... but no. {APPROVE}", True),
        ("I approve.", True),
        ("Approved, as the sum is right", True),
        ("This must be rejected.", False),
        ("I disapprove.", None),
        ("Approve or reject? I cannot tell.", None),
        ("It looks right.", None),
        ("<verdict>maybe</verdict>", None),
        ("", None),
    ],
)
def test_verdicts_are_read_from_the_last_tag_or_the_only_word(text: str, approves: bool | None) -> None:
    assert parse_verdict(text) is approves


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("replies", "verdict", "expected"),
    [
        (("dcba",), APPROVE, [("solver", 1.0), ("verifier", 1.0)]),
        (("abcd",), APPROVE, [("solver", 0.0), ("verifier", 0.0)]),
        (("abcd", "dcba"), f"No. {REJECT}", [("solver", 0.0), ("verifier", 1.0), ("solver.retry", 1.0)]),
        (("abcd", "abcd"), REJECT, [("solver", 0.0), ("verifier", 1.0), ("solver.retry", 0.0)]),
        (("dcba", "abcd"), REJECT, [("solver", 1.0), ("verifier", 0.0), ("solver.retry", 0.0)]),
        (("dcba", "dcba"), REJECT, [("solver", 1.0), ("verifier", 0.0), ("solver.retry", 1.0)]),
        (("dcba",), "It looks right.", [("solver", 1.0), ("verifier", 0.0)]),
        (("abcd",), "approve or reject", [("solver", 0.0), ("verifier", 0.0)]),
    ],
)
async def test_every_attempt_has_its_reward_and_the_verifier_is_rewarded_for_agreeing_with_it(
    replies: tuple[str, ...], verdict: str, expected: list[tuple[str, float]]
) -> None:
    _, trajectories = await episode(replies, verdict)

    assert [(trajectory.role, trajectory.reward) for trajectory in trajectories] == expected
    assert [trajectory.policy for trajectory in trajectories] == [SOLVER, VERIFIER, SOLVER][: len(trajectories)]
    assert [trajectory.parent for trajectory in trajectories] == [None, 0, 1][: len(trajectories)]
    assert trajectories[1].metrics["approves"] == float(len(trajectories) == 2)


@pytest.mark.anyio
async def test_the_verifier_sees_the_answer_and_the_retry_sees_the_whole_verification() -> None:
    policies, _ = await episode(("abcd", "dcba"), f"It is not reversed. {REJECT}")

    assert policies[SOLVER].asked(0) == "<|im_start|>user\nrev abcd=<|im_end|>\n<|im_start|>assistant\n"
    request = parse_verification_prompt(policies[VERIFIER].asked(0))
    assert request is not None
    assert (request.question, request.answer) == ("<|im_start|>user\nrev abcd=", "abcd")
    retry = policies[SOLVER].asked(1)
    assert retry.index("rev abcd=") < retry.index("[solver]\nabcd") < retry.index(f"It is not reversed. {REJECT}")


@pytest.mark.anyio
async def test_one_policy_may_play_both_roles() -> None:
    both = FakePolicy("abcd", REJECT, "dcba")
    workflow = workflows.build({"kind": "solve_and_verify", "verifier": "solver"})

    trajectories = await workflow.run(make.task(), {SOLVER: both}, EXACT)

    assert workflow.policies == (SOLVER,)
    assert [(trajectory.policy, trajectory.role) for trajectory in trajectories] == [
        (SOLVER, "solver"),
        (SOLVER, "verifier"),
        (SOLVER, "solver.retry"),
    ]
