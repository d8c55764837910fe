"""Interface of workflows, and their interface to the policies of a node."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Protocol, runtime_checkable

from astraflow.contract.ids import PolicyId, TaskId
from astraflow.contract.rollouts.agent_calls import AgentCall, LiveSession
from astraflow.contract.rollouts.generation import Generation, Sampling
from astraflow.contract.rollouts.limits import EpisodeBounds
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Int32Array, Trajectory
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.workflows.reward_scorer import RewardScorer


class PolicyClient(Protocol):
    """Client of one policy, for a workflow while it runs one task."""

    @property
    def tokenizer(self) -> ChatTokenizer:
        """Tokenizer and chat format of the policy."""

    async def generate(self, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Continues `prompt`. Any number of calls may run at once.

        Raises: RolloutFailed at the boundary `engine`, also when generation was interrupted; do not catch it.
        """


class Workflow(Protocol):
    """Turns a task into an episode. Built by `workflows.build(spec)` once for each flow on every node.

    It has no state between episodes, because many run at once. A workflow with environments or tools, which own
    processes or connections, is a `ManagedPlugin`. An exception makes a failed episode at the boundary
    `workflow`; a `RolloutFailed` names its boundary. Trajectories are built with a `TrajectoryBuilder`.

    A plugin is a class in a module that registers itself; list the module under the entry point group
    `astraflow.workflows`:

        @workflows.register("think_twice", options=ThinkTwiceOptions)
        class ThinkTwice:
            def __init__(self, options: ThinkTwiceOptions) -> None: ...
    """

    @property
    def policies(self) -> tuple[PolicyId, ...]:
        """Policies that the workflow uses; a node leases tasks of the flow only once it serves all of them."""

    async def run(
        self, task: Task, policies: Mapping[PolicyId, PolicyClient], scorer: RewardScorer
    ) -> Sequence[Trajectory]:
        """Runs one episode; returns at least one trajectory, each of the policy that wrote it."""


@runtime_checkable
class BoundedWorkflow(Protocol):
    """Workflow that knows bounds of its episodes. Dataflow refuses results beyond them, so a bound must hold for every
    episode that the workflow can produce."""

    @property
    def bounds(self) -> EpisodeBounds:
        """Bounds of an episode; a field is None where the options give no bound."""


@runtime_checkable
class SessionSource(Protocol):
    """Workflow whose episodes are sessions of agent programs, which the node reports while they run."""

    def live_sessions(self) -> Sequence[LiveSession]:
        """Returns the sessions that run now, in any order."""

    def take_failed_calls(self, task: TaskId) -> Sequence[AgentCall]:
        """Returns the calls of a task's failed or cancelled episode, and forgets them; none for any other task. Called
        once after every episode."""


def episode_seed(task: Task) -> int:
    """Returns the seed of an episode's environments and tools: the same on every node, another for each member.

    >>> from astraflow.contract.ids import FlowId, GroupId, PromptId, TaskId
    >>> from astraflow.contract.rollouts.tasks import Prompt
    >>> prompt = Prompt(id=PromptId("p"), fields={})
    >>> task = Task(id=TaskId("f:0/1"), group=GroupId("f:0"), flow=FlowId("f"), member=1, attempt=0, prompt=prompt)
    >>> episode_seed(task)
    1164502827
    """
    return int.from_bytes(blake2b(str(task.id).encode(), digest_size=4).digest(), "big") >> 1
