"""The suite on the workflows without tools and environments, and on workflows that break its promises."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import pytest

from astraflow.conformance.workflows import CHECKS, WorkflowCheck, check_workflow
from astraflow.contract.ids import PolicyId
from astraflow.contract.plugins import Outcome
from astraflow.contract.rollouts.failures import RolloutFailed
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.testing.plugins import WorkflowSuite
from astraflow.workflows import workflows
from astraflow.workflows.base import PolicyClient, RewardScorer
from astraflow.workflows.components.answers import AnswerOptions, request_answer
from astraflow.workflows.scripted.policies import in_order
from tests import make

SOLVER = PolicyId("solver")


class TestSingleTurn(WorkflowSuite):
    @pytest.fixture
    def subject(self) -> Callable[[], WorkflowCheck]:
        return lambda: WorkflowCheck(spec={"kind": "single_turn"}, prompt=make.prompt(), reply=in_order("dcba"))


class TestSolveAndVerify(WorkflowSuite):
    @pytest.fixture
    def subject(self) -> Callable[[], WorkflowCheck]:
        def reply(policy: PolicyId, index: int) -> str:
            return "abcd" if policy == SOLVER else "Not reversed: reject."

        return lambda: WorkflowCheck(spec={"kind": "solve_and_verify"}, prompt=make.prompt(), reply=reply)


class FaultyOptions(Config):
    """Fault of the workflow."""

    fault: Annotated[str, SettableBy.AGENT] = ""


opened = 0


@workflows.register("test_faulty", options=FaultyOptions)
class Faulty:
    """Answers once, with one fault."""

    def __init__(self, options: FaultyOptions) -> None:
        self._fault = options.fault
        self._episodes = 0
        self.policies = (SOLVER, SOLVER) if options.fault == "names_twice" else (SOLVER,)

    async def run(
        self, task: Task, policies: Mapping[PolicyId, PolicyClient], scorer: RewardScorer
    ) -> Sequence[Trajectory]:
        global opened
        self._episodes += 1
        question = f"{self._episodes}" if self._fault == "counts" else "question"
        opened += 1
        try:
            answer = await request_answer(
                SOLVER, policies[SOLVER], [{"role": "user", "content": question}], AnswerOptions()
            )
            score = await scorer.score(task.prompt, answer.text, answer.finish)
        except RolloutFailed:
            opened -= 1
            if self._fault != "hides_failures":
                raise
            return (make.trajectory(),)
        except asyncio.CancelledError:
            if self._fault == "ignores_cancellation":
                return ()
            opened -= self._fault != "leaks"
            raise
        opened -= 1
        if self._fault == "raises_on_nonsense":
            int(answer.text)
        trajectory = answer.trajectory_builder.build(score)
        if self._fault == "other_tokens":
            return (replace(trajectory, tokens=np.where(trajectory.loss_mask(), trajectory.tokens, 1)),)
        return (replace(trajectory, policy=PolicyId("stranger")) if self._fault == "stranger" else trajectory,)


@pytest.mark.parametrize(
    ("fault", "broken"),
    [
        ("", set()),
        ("names_twice", {0}),
        ("stranger", {1, 2, 5}),
        ("other_tokens", {2, 5}),
        ("counts", {4}),
        ("raises_on_nonsense", {5}),
        ("hides_failures", {6, 7}),
        ("ignores_cancellation", {8}),
        ("leaks", {8}),
    ],
)
@pytest.mark.anyio
async def test_each_fault_breaks_its_promise(fault: str, broken: set[int]) -> None:
    global opened
    opened = 0
    check = WorkflowCheck(
        spec={"kind": "test_faulty", "fault": fault},
        prompt=make.prompt(),
        reply=in_order("1"),
        open_resources=lambda: opened if fault == "leaks" else 0,
    )

    results = await check_workflow(check)

    assert [result.promise for result in results] == list(CHECKS)
    failed: set[Any] = {index for index, result in enumerate(results) if result.outcome is Outcome.FAILED}
    assert failed == broken, results
