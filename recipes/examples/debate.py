"""A workflow of your own with two policies: the second answers in view of the first one's answer."""

from collections.abc import Mapping
from typing import Annotated

from astraflow.contract.ids import PolicyId
from astraflow.contract.tasks import Task
from astraflow.contract.trajectories import Trajectory
from astraflow.runtime.setting_permissions import SettableBy
from astraflow.workflows import workflows
from astraflow.workflows.answers import AnswerOptions, question_of
from astraflow.workflows.base import PolicyClient
from astraflow.workflows.reward_scorer import RewardScorer
from astraflow.workflows.roles import Team, ask_in_role, trajectories_of


class DebateOptions(AnswerOptions):
    """Policies of the roles."""

    first: Annotated[str, SettableBy.AGENT] = "first"
    """Policy that answers first."""
    second: Annotated[str, SettableBy.AGENT] = "second"
    """Policy that sees the first answer; may be the same."""


@workflows.register("debate", options=DebateOptions)
class Debate(Team):
    """Two answers, the second in view of the first; each has its own reward."""

    def __init__(self, options: DebateOptions) -> None:
        super().__init__({"first": options.first, "second": options.second})
        self._options = options

    async def run(
        self, task: Task, policies: Mapping[PolicyId, PolicyClient], scorer: RewardScorer
    ) -> tuple[Trajectory, ...]:
        """Asks both and scores both."""
        question = question_of(task.prompt)
        opening = await ask_in_role(self.role("first", policies, self._options), question)
        reply = await ask_in_role(self.role("second", policies, self._options), question, (opening,))
        for said in (opening, reply):
            said.score = await scorer.score(task.prompt, said.text, said.finish)
        return trajectories_of((opening, reply))
