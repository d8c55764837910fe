"""Workflows with several roles, with scripted policies: rewards, roles, parents, and what each role sees."""

from collections.abc import Mapping, Sequence

import pytest

from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.rewards import rewards
from astraflow.workflows import workflows
from astraflow.workflows.base import RewardScorer
from astraflow.workflows.components.roles import RoleWorkflow
from astraflow.workflows.solve_and_select import parse_choice
from tests import make
from tests.errors import raises_code
from tests.fakes.policy import FakePolicy

EXACT = RewardScorer(rewards.build({"kind": "exact_match"}))
RIGHT, WRONG = "dcba", "abcd"


async def episode(kind: str, policies: Mapping[str, FakePolicy], **options: object) -> Sequence[Trajectory]:
    workflow = workflows.build({"kind": kind, **options})
    return await workflow.run(make.task(), {PolicyId(name): policy for name, policy in policies.items()}, EXACT)


def outline(trajectories: Sequence[Trajectory]) -> list[tuple[str, str, float, int | None]]:
    return [
        (played_trajectories.policy, played_trajectories.role, played_trajectories.reward, played_trajectories.parent)
        for played_trajectories in trajectories
    ]


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("<choice>A</choice>", "A"),
        ("First <choice>A</choice>, but <choice> B </choice>", "B"),
        ("A", None),
        ("<choice>C</choice>", None),
        ("", None),
    ],
)
def test_the_last_tag_is_the_choice(text: str, choice: str | None) -> None:
    assert parse_choice(text) == choice


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answers", "choice", "reward", "is_answer_right"),
    [
        ((RIGHT, WRONG), "<choice>A</choice>", 1.0, True),
        ((RIGHT, WRONG), "<choice>B</choice>", 0.0, False),
        ((WRONG, RIGHT), "<choice>B</choice>", 1.0, True),
        ((WRONG, RIGHT), "<choice>A</choice>", 0.0, False),
        ((RIGHT, RIGHT), "<choice>B</choice>", 0.5, True),
        ((WRONG, WRONG), "<choice>A</choice>", 0.5, False),
        ((RIGHT, WRONG), "both", 0.0, True),
        ((RIGHT, RIGHT), "both", 0.0, True),
    ],
)
async def test_a_selector_is_rewarded_where_the_choice_decides(
    answers: tuple[str, str], choice: str, reward: float, is_answer_right: bool
) -> None:
    selector = FakePolicy(choice)
    trajectories = await episode("solve_and_select", {"solver": FakePolicy(*answers), "selector": selector})

    assert sorted(trajectory.reward for trajectory in trajectories[:2]) == sorted(
        float(text == RIGHT) for text in answers
    )
    assert outline(trajectories)[1:] == [
        ("solver", "solver", float(is_answer_right), None),
        ("selector", "selector", reward, 1),
    ]
    prompt_text = selector.asked(0)
    assert prompt_text.index(f"[candidate A]\n{answers[0]}") < prompt_text.index(f"[candidate B]\n{answers[1]}")


@pytest.mark.anyio
async def test_a_planner_gets_the_mean_reward_of_the_solutions_that_follow_its_plan() -> None:
    solver = FakePolicy(RIGHT, WRONG, RIGHT, WRONG)
    trajectories = await episode(
        "plan_and_solve", {"planner": FakePolicy("Reverse it."), "solver": solver}, solutions=4
    )

    assert outline(trajectories) == [
        ("planner", "planner", 0.5, None),
        *(("solver", "solver", float(text == RIGHT), 0) for text in (RIGHT, WRONG, RIGHT, WRONG)),
    ]
    assert "[planner]\nReverse it." in solver.asked(3)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("choice", "small", "large", "expected"),
    [
        ("small", RIGHT, "", [("router", "router", 1.0, None), ("small", "expert_1", 1.0, 0)]),
        ("small", WRONG, "", [("router", "router", 0.0, None), ("small", "expert_1", 0.0, 0)]),
        (
            "large",
            WRONG,
            RIGHT,
            [("router", "router", 1.0, None), ("small", "expert_1", 0.0, 0), ("large", "expert_2", 1.0, 0)],
        ),
        (
            "large",
            RIGHT,
            RIGHT,
            [("router", "router", 0.0, None), ("small", "expert_1", 1.0, 0), ("large", "expert_2", 1.0, 0)],
        ),
        (
            "large",
            WRONG,
            WRONG,
            [("router", "router", 0.0, None), ("small", "expert_1", 0.0, 0), ("large", "expert_2", 0.0, 0)],
        ),
        ("huge", RIGHT, "", [("router", "router", 0.0, None), ("small", "expert_1", 1.0, 0)]),
    ],
)
async def test_a_router_is_rewarded_for_the_cheapest_expert_that_is_right(
    choice: str, small: str, large: str, expected: list[tuple[str, str, float, int | None]]
) -> None:
    policies = {
        "router": FakePolicy(f"<expert>{choice}</expert>"),
        "small": FakePolicy(small),
        "large": FakePolicy(large),
    }
    trajectories = await episode("route", policies)

    assert outline(trajectories) == expected
    assert [trajectory.labels for trajectory in trajectories[1:]] == [{}] * (len(trajectories) - 2) + [
        {"is_picked": "yes"}
    ]


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["plan_and_solve", "solve_and_select", "solve_and_verify"])
async def test_a_failure_of_one_role_fails_the_episode_with_its_boundary(kind: str) -> None:
    gone = RolloutFailed("gone", boundary=Boundary.ENGINE, code="rollout.engine_failed")
    others = {name: FakePolicy("text") for name in ("planner", "selector", "verifier")}

    with raises_code(RolloutFailed, "rollout.engine_failed") as failure:
        await episode(kind, {"solver": FakePolicy(gone, gone), **others})

    assert failure.value.boundary is Boundary.ENGINE


@pytest.mark.parametrize(
    ("kind", "roles"),
    [
        ("plan_and_solve", {"planner": "planner", "solver": "solver"}),
        ("route", {"router": "router", "expert_1": "small", "expert_2": "large"}),
        ("solve_and_select", {"solver": "solver", "selector": "selector"}),
        ("solve_and_verify", {"solver": "solver", "verifier": "verifier"}),
    ],
)
def test_the_roles_name_the_policies(kind: str, roles: dict[str, str]) -> None:
    workflow = workflows.build({"kind": kind})

    assert isinstance(workflow, RoleWorkflow)
    assert dict(workflow.roles) == roles
    assert workflow.policies == tuple(roles.values())
