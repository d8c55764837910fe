"""One question, one answer, one score."""

from collections.abc import Mapping
from typing import Annotated

from astraflow.contract.ids import PolicyId
from astraflow.contract.tasks import Task
from astraflow.contract.trajectories import Trajectory
from astraflow.runtime.overrides import SetBy
from astraflow.workflows import workflows
from astraflow.workflows.asking import AnswerOptions, ask, question_of
from astraflow.workflows.base import PolicyPort
from astraflow.workflows.judge import Judge


class SingleTurnOptions(AnswerOptions):
    """Who answers, and how."""

    policy: Annotated[str, SetBy.AGENT] = "solver"
    """The policy that answers."""
    system: Annotated[str, SetBy.AGENT] = ""
    """System message before the question; none when empty."""


@workflows.register("single_turn", options=SingleTurnOptions)
class SingleTurn:
    """Reinforcement learning from verifiable rewards in its plainest form."""

    def __init__(self, options: SingleTurnOptions) -> None:
        self._options = options
        self._policy = PolicyId(options.policy)

    @property
    def policies(self) -> tuple[PolicyId, ...]:
        """The one that answers."""
        return (self._policy,)

    async def run(self, task: Task, policies: Mapping[PolicyId, PolicyPort], judge: Judge) -> tuple[Trajectory, ...]:
        """Ask the prompt's question, score the answer."""
        system = [{"role": "system", "content": self._options.system}] if self._options.system else []
        messages = [*system, {"role": "user", "content": question_of(task.prompt)}]
        answer = await ask(self._policy, policies[self._policy], messages, self._options)
        return (answer.transcript.trajectory(await judge.score(task.prompt, answer.text, answer.finish)),)
