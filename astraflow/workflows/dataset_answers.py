"""Workflow without a model: the answers of the dataset are the trajectories. For supervised fine-tuning and DPO."""

from itertools import cycle
from typing import Annotated

import numpy as np

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import Version
from astraflow.contract.rollouts.generation import Finish, Generation, VersionSpan
from astraflow.contract.rollouts.tasks import Prompt, Task
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.datasets.base import ANSWER, earlier_messages
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.rewards.base import Score
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.workflows import workflows
from astraflow.workflows.base import OnePolicy, PolicyClients, RewardScorer
from astraflow.workflows.components.answers import question_of
from astraflow.workflows.components.trajectory_builder import TrajectoryBuilder, with_text


class DatasetAnswersOptions(Config):
    """Policy, system message, and the field of rejected answers."""

    policy: Annotated[str, SettableBy.AGENT] = "solver"
    """Policy that is trained on the answers."""
    system: Annotated[str, SettableBy.AGENT] = ""
    """System message before the question; none when empty."""
    rejected_field: Annotated[str, SettableBy.AGENT] = ""
    """Field of the prompt with a worse answer, for preference losses: the group then has two members. Empty: none."""


@workflows.register("dataset_answers", options=DatasetAnswersOptions)
class DatasetAnswers(OnePolicy):
    """Reads answers instead of sampling them. Dataflow runs this workflow itself, so that no node is needed.

    The answer of the dataset has the reward 1, a rejected one the reward 0. The flow's reward is not computed.
    """

    def __init__(self, options: DatasetAnswersOptions) -> None:
        super().__init__(options.policy)
        self._options = options

    @property
    def group_size(self) -> int:
        """Answers per prompt: 2 with a rejected one."""
        return 2 if self._options.rejected_field else 1

    def trajectory(self, prompt: Prompt, member: int, tokenizer: ChatTokenizer, version: Version) -> Trajectory:
        """Returns the answer of a member as a trajectory, with its text: 0 is the correct one, 1 the rejected one.

        version: of the trainer, which counts as the author. Recorded logprobs are 0 and mean nothing.
        Raises: InvalidInput when the prompt has no such answer.
        """
        system = [{"role": "system", "content": self._options.system}] if self._options.system else []
        answer = self._answer(prompt, self._options.rejected_field if member else ANSWER)
        tokens = tokenizer.encode_answer(answer)
        builder = TrajectoryBuilder(self._policy)
        turns = (*earlier_messages(prompt.fields), question_of(prompt))
        roles = cycle(("user", "assistant"))
        messages = [{"role": role, "content": text} for role, text in zip(roles, turns, strict=False)]
        builder.add_context(tokenizer.encode_chat([*system, *messages]))
        builder.add_generation(
            Generation(
                tokens=tokens,
                logprobs=np.zeros(len(tokens), dtype=np.float32),
                spans=(VersionSpan(length=len(tokens), version=version),),
                finish=Finish.STOP,
            )
        )
        return with_text(builder.build(Score(value=float(member == 0), answer=answer)), tokenizer)

    async def run(self, task: Task, policies: PolicyClients, scorer: RewardScorer) -> tuple[Trajectory, ...]:
        """Raises InvalidInput: dataflow leases no task of such a flow to a node."""
        raise InvalidInput(
            f"cannot run task {task.id!r} on a node: its flow trains on the answers of its dataset; use the workflow "
            "'single_turn' for an evaluation",
            code="workflow.no_rollout",
        )

    def _answer(self, prompt: Prompt, field: str) -> str:
        value = prompt.fields.get(field)
        if not isinstance(value, str | int | float) or not str(value):
            raise InvalidInput(
                f"cannot train on prompt {prompt.id!r}: its field {field!r} has no answer; use a dataset whose prompts "
                "all have one, or name the field in the options of the dataset or of the workflow",
                code="workflow.no_answer",
            )
        return str(value)
