"""A workflow of your own with one policy and several turns: after a wrong answer it reads how much of it is right.

    astraflow --plugin recipes/examples/own_multi_turn.py run recipes/examples/own_multi_turn.toml

Copy both files, and change the feedback.
"""

from collections.abc import Mapping

from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Ending, Trajectory
from astraflow.workflows import workflows
from astraflow.workflows.base import PolicyClient, RewardScorer
from astraflow.workflows.components.answers import question_of
from astraflow.workflows.components.conversation import Conversation, ConversationOptions


class GuidedOptions(ConversationOptions):
    """Options in the recipe: `policy`, and limits such as `max_turns`, `max_context` and `temperature`."""

    policy: str = "solver"
    """Policy that answers."""


@workflows.register("guided", options=GuidedOptions)
class Guided:
    """Answers until one is right or a limit is reached, in one trajectory with the reward of the last answer."""

    def __init__(self, options: GuidedOptions) -> None:
        self._options = options
        self._policy = PolicyId(options.policy)

    @property
    def policies(self) -> tuple[PolicyId, ...]:
        """Policies that an episode asks."""
        return (self._policy,)

    async def run(
        self, task: Task, policies: Mapping[PolicyId, PolicyClient], scorer: RewardScorer
    ) -> tuple[Trajectory, ...]:
        """Runs one episode. Failures of engine and reward are exceptions: let them pass."""
        question = {"role": "user", "content": question_of(task.prompt)}
        conversation = Conversation(self._policy, policies[self._policy], self._options, [question])
        ending = None
        while ending is None:
            turn = await conversation.answer()
            score = await scorer.score(task.prompt, turn.text, turn.finish, tokens=turn.tokens)
            ending = Ending.DONE if score.value >= 1 else conversation.ending()
            if ending is None:
                message = {"role": "user", "content": feedback(turn.text, str(task.prompt.fields["answer"]))}
                if not conversation.append([message], speaker="environment"):
                    ending = Ending.CONTEXT  # no room for an answer
        metrics = {"turns": conversation.turns}
        return (conversation.builder.build(score, metrics=metrics, ending=ending),)


def feedback(text: str, answer: str) -> str:
    """Returns what the policy reads after a wrong answer."""
    right = sum(letter == expected for letter, expected in zip(text, answer, strict=False))
    return f"{right} of {len(answer)} letters are right. Answer again."
