"""The port of workflows, and the seam through which they reach the policies of a node."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from astraflow.contract.generation import Generation, Sampling
from astraflow.contract.ids import PolicyId
from astraflow.contract.tasks import Task
from astraflow.contract.trajectories import Int32Array, Trajectory
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.workflows.judge import Judge


class PolicyPort(Protocol):
    """One policy, as a workflow sees it while it runs one task."""

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The policy's tokenizer and chat format."""

    async def generate(self, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Continue `prompt`. Any number may run at once.

        Raises: RolloutBroke at the boundary `engine`, also when the generation was cut short; let it pass.
        """


class Workflow(Protocol):
    """Turns a task into an episode. Built by `workflows.build(spec)` once for each flow on every node.

    It holds no state between episodes: many run at once. What it raises makes a failed episode at the boundary
    `workflow`; a `RolloutBroke` names its own. Trajectories are put together with a `Transcript`.

    A plug-in is a class in a module that registers itself; list the module under the entry point group
    `astraflow.workflows`:

        @workflows.register("think_twice", options=ThinkTwiceOptions)
        class ThinkTwice:
            def __init__(self, options: ThinkTwiceOptions) -> None: ...
    """

    @property
    def policies(self) -> tuple[PolicyId, ...]:
        """The policies it talks to; a node leases no task of the flow before it serves them all."""

    async def run(self, task: Task, policies: Mapping[PolicyId, PolicyPort], judge: Judge) -> Sequence[Trajectory]:
        """One episode: at least one trajectory, each of the policy that wrote it."""
