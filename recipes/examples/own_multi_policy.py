"""A workflow of your own with two policies: one reverses the letters of a question, the other one reverses them back.

    astraflow --plugin recipes/examples/own_multi_policy.py run recipes/examples/own_multi_policy.toml

Copy both files, change the roles, their prompts and their rewards, and keep the name in `register` equal to `kind` in
the recipe.
"""

from collections.abc import Mapping
from typing import Annotated

from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.workflows import workflows
from astraflow.workflows.base import PolicyClient, RewardScorer
from astraflow.workflows.components.answers import AnswerOptions, question_of
from astraflow.workflows.components.roles import Team, ask_in_role, scored_answer, trajectories_of


class ThereAndBackOptions(AnswerOptions):
    """Policies of the roles, in addition to the options of answers; each option has a default and a description."""

    there: Annotated[str, SettableBy.AGENT] = "there"
    """Policy that answers the question."""
    back: Annotated[str, SettableBy.AGENT] = "back"
    """Policy that gets the first one's answer as its question; may be the same policy."""


@workflows.register("there_and_back", options=ThereAndBackOptions)
class ThereAndBack(Team):
    """The role `there` has the flow's reward. The role `back` gets 1 when it restores the letters of the question."""

    def __init__(self, options: ThereAndBackOptions) -> None:
        super().__init__({"there": options.there, "back": options.back})
        self._options = options

    async def run(
        self, task: Task, policies: Mapping[PolicyId, PolicyClient], scorer: RewardScorer
    ) -> tuple[Trajectory, ...]:
        """Asks both policies, one after the other."""
        question = question_of(task.prompt)
        there = await scored_answer(self.role("there", policies, self._options), task, scorer)
        back = await ask_in_role(self.role("back", policies, self._options), f"rev {there.text}=", parent=there)
        back.score = float(back.finish is Finish.STOP and f"rev {back.text}=" == question)
        return trajectories_of((there, back))
