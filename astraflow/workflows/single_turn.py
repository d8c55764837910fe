"""Workflow with one question, one answer and one score."""

from collections.abc import Sequence
from typing import Annotated

from astraflow.contract.rollouts.limits import EpisodeBounds
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.models.tokenizers import Message
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.workflows import workflows
from astraflow.workflows.base import OnePolicy, PolicyClients, RewardScorer
from astraflow.workflows.components.answers import (
    TEMPLATE_TOKENS,
    AnswerOptions,
    filled,
    question_of,
    request_answer,
)


class SingleTurnOptions(AnswerOptions):
    """Policy and system message of the single-turn workflow."""

    policy: Annotated[str, SettableBy.AGENT] = "solver"
    """Policy that answers."""
    system: Annotated[str, SettableBy.AGENT] = ""
    """System message before the question; none when empty."""
    teacher_question: Annotated[str, SettableBy.AGENT] = ""
    """Question that a teacher reads in place of the prompt's, for self-distillation, such as `{question} A correct
    answer is: {answer}`. `{name}` stands for the prompt's field of that name. Empty: the same question."""


@workflows.register("single_turn", options=SingleTurnOptions)
class SingleTurn(OnePolicy):
    """Reinforcement learning from verifiable rewards in its simplest form."""

    def __init__(self, options: SingleTurnOptions) -> None:
        super().__init__(options.policy)
        self._options = options

    @property
    def bounds(self) -> EpisodeBounds:
        return self._options.answer_bounds(trajectories=1, context=TEMPLATE_TOKENS + 4 * len(self._options.system))

    async def run(self, task: Task, policies: PolicyClients, scorer: RewardScorer) -> tuple[Trajectory, ...]:
        """Asks the prompt's question and scores the answer."""
        messages, client = self._messages(question_of(task.prompt)), policies[self._policy]
        teacher_prompt: Sequence[int] = ()
        if self._options.teacher_question and not task.pinned:
            question = filled(self._options.teacher_question, task.prompt)
            teacher_prompt = client.tokenizer.encode_chat(self._messages(question)).tolist()
        answer = await request_answer(self._policy, client, messages, self._options)
        score = await scorer.score(task.prompt, answer.text, answer.finish, tokens=answer.tokens)
        return (answer.trajectory_builder.build(score, teacher_prompt=teacher_prompt),)

    def _messages(self, question: str) -> list[Message]:
        system = [{"role": "system", "content": self._options.system}] if self._options.system else []
        return [*system, {"role": "user", "content": question}]
