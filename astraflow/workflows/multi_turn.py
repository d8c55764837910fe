"""Workflow of one policy that answers again after a wrong answer."""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from astraflow.contract.rollouts.limits import EpisodeBounds
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Ending, Trajectory
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.workflows import workflows
from astraflow.workflows.base import OnePolicy, PolicyClients, RewardScorer
from astraflow.workflows.components.answers import question_of
from astraflow.workflows.components.conversation import Conversation, ConversationOptions


class MultiTurnOptions(ConversationOptions):
    """Policy, texts and discount of the workflow."""

    policy: Annotated[str, SettableBy.AGENT] = "solver"
    """Policy that answers."""
    system: Annotated[str, SettableBy.AGENT] = ""
    """System message before the question; none when empty."""
    max_turns: int = Field(default=3, ge=1)
    """Answers to a question, retries included."""
    correct_threshold: float = 0.5
    """Reward from which an answer counts as correct and ends the episode."""
    feedback: Annotated[str, SettableBy.AGENT] = "This answer is wrong. Find the mistake and answer again."
    """Message after a wrong answer."""
    turn_discount: float = Field(default=1.0, gt=0, le=1)
    """Weight of a later answer, as seen from the turn before it: an answer after n retries counts with the n-th
    power."""


@workflows.register("multi_turn", options=MultiTurnOptions)
class MultiTurn(OnePolicy):
    """Question, answer, and after a wrong answer feedback and another try, in one trajectory.

    The reward is that of the last answer, times the discount for each retry. The feedback says only that the answer is
    wrong, never what is right.
    """

    def __init__(self, options: MultiTurnOptions) -> None:
        super().__init__(options.policy)
        self._options = options

    @property
    def bounds(self) -> EpisodeBounds:
        return self._options.conversation_bounds(conversations=1)

    async def run(self, task: Task, policies: PolicyClients, scorer: RewardScorer) -> tuple[Trajectory, ...]:
        """Asks until the answer is right, or a limit ends the episode."""
        options = self._options
        system = [{"role": "system", "content": options.system}] if options.system else []
        question = {"role": "user", "content": question_of(task.prompt)}
        conversation = Conversation(self._policy, policies[self._policy], options, [*system, question])
        feedback = {"role": "user", "content": options.feedback}
        ending = None
        while ending is None:
            turn = await conversation.answer()
            score = await scorer.score(task.prompt, turn.text, turn.finish, tokens=turn.tokens)
            ending = Ending.DONE if score.value >= options.correct_threshold else conversation.ending()
            if ending is None and not conversation.append([feedback], speaker="environment"):
                ending = Ending.CONTEXT
        retries = conversation.turns - 1
        trajectory = conversation.builder.build(
            replace(score, value=score.value * options.turn_discount**retries),
            metrics={"turns": conversation.turns},
            turn_rewards=[0.0] * retries + [score.value],
            turn_discounts=[options.turn_discount] * conversation.turns if options.turn_discount < 1 else (),
            ending=ending,
        )
        return (trajectory,)
