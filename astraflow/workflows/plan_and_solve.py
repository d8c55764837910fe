"""Workflow of a planner and a solver that follows its plan."""

from typing import Annotated

from pydantic import Field

from astraflow.contract.rollouts.limits import EpisodeBounds
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.workflows import workflows
from astraflow.workflows.base import PolicyClients, RewardScorer
from astraflow.workflows.components.answers import AnswerOptions, question_of
from astraflow.workflows.components.roles import (
    Team,
    ask_in_role,
    at_once,
    scored_answer,
    trajectories_of,
)

PLANNER_INSTRUCTION = "You are the planner. Write a short plan for this task. Do not carry it out."
SOLVER_INSTRUCTION = "You are the solver. Follow the planner's plan and answer the task."


class PlanAndSolveOptions(AnswerOptions):
    """Policies of the roles, and limits."""

    planner: Annotated[str, SettableBy.AGENT] = "planner"
    """Policy that plans."""
    solver: Annotated[str, SettableBy.AGENT] = "solver"
    """Policy that answers the question; may be the planner's."""
    plan_max_new_tokens: int = Field(default=512, ge=1)
    """Length limit of a plan. Tokens."""
    solutions: int = Field(default=1, ge=1, le=64)
    """Answers that follow a plan; more of them estimate the value of the plan better."""


@workflows.register("plan_and_solve", options=PlanAndSolveOptions)
class PlanAndSolve(Team):
    """A `planner` writes a plan, and each answer of the `solver` follows it.

    Each answer has its own reward, and the planner gets their mean.
    """

    def __init__(self, options: PlanAndSolveOptions) -> None:
        super().__init__({"planner": options.planner, "solver": options.solver})
        self._options = options

    @property
    def bounds(self) -> EpisodeBounds:
        return self._options.answer_bounds(trajectories=1 + self._options.solutions)

    async def run(self, task: Task, policies: PolicyClients, scorer: RewardScorer) -> tuple[Trajectory, ...]:
        """Plans, then solves."""
        options = self._options
        planner = self.reviewer(
            "planner", policies, options, PLANNER_INSTRUCTION, max_new_tokens=options.plan_max_new_tokens
        )
        solver = self.role("solver", policies, options, instruction=SOLVER_INSTRUCTION)
        plan = await ask_in_role(planner, question_of(task.prompt))
        solutions = await at_once(scored_answer(solver, task, scorer, (plan,)) for _ in range(options.solutions))
        plan.score = sum(solution.reward for solution in solutions) / len(solutions)
        return trajectories_of((plan, *solutions))
