"""Tasks of other projects' environments, as prompts."""

import json
from typing import Annotated, Any

from pydantic import Field
from xxhash import xxh3_128

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets import datasets
from astraflow.datasets.base import ANSWER, QUESTION, check_index
from astraflow.environments.foreign.workers import ForeignOptions, answer_of
from astraflow.runtime.config.setting_permissions import SettableBy

TASK = "task"
"""Field of a prompt: the task, as its package wrote it."""


class VerifiersTasksOptions(ForeignOptions):
    """Environment whose tasks are the prompts."""

    id: Annotated[str, SettableBy.RECIPE] = Field(pattern=r"^[\w./@-]{1,200}$")
    """Name of the installed package with the taskset."""
    args: Annotated[dict[str, Any], SettableBy.RECIPE] = Field(default_factory=dict)
    """Options of the taskset."""
    agent: Annotated[dict[str, Any], SettableBy.RECIPE] = Field(default_factory=dict)
    """Options of the agent's seat, such as `harness`, `runtime` and `max_turns`."""
    limit: int = Field(default=0, ge=0, le=10**7)
    """Number of tasks, the first ones; 0: all. An endless taskset needs it."""


@datasets.register("verifiers", options=VerifiersTasksOptions)
class VerifiersTasks:
    """Tasks of an environment of the package `verifiers`, in its order.

    Fields: question (the text of the task's prompt), answer (empty: the environment decides), task.
    """

    def __init__(self, options: VerifiersTasksOptions, _seed: int) -> None:
        request = options.model_dump(mode="json", include={"id", "args", "agent", "limit"})
        self._id = options.id
        self._tasks: list[dict[str, Any]] = answer_of("verifiers", options, {"operation": "tasks", **request})
        if not self._tasks:
            raise InvalidInput(
                f"cannot use the environment {options.id!r}: it has no tasks; choose other options",
                code="dataset.empty",
            )

    @property
    def size(self) -> int:
        """Number of tasks."""
        return len(self._tasks)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the tasks."""
        return xxh3_128(json.dumps(self._tasks, sort_keys=True).encode()).hexdigest()

    def prompt(self, index: int) -> Prompt:
        """Returns task number `index`."""
        check_index(index, self.size)
        task = self._tasks[index]
        fields = {QUESTION: task["question"], ANSWER: "", TASK: task["task"]}
        return Prompt(id=PromptId(f"{self._id}:{index}"), fields=fields)
