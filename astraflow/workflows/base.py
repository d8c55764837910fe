"""Interface of workflows, and their interface to the policies of a node."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Protocol, TypeAlias, runtime_checkable

from astraflow.contract.ids import PolicyId, TaskId
from astraflow.contract.rollouts.agent_calls import AgentCall, LiveSession
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling
from astraflow.contract.rollouts.limits import EpisodeBounds
from astraflow.contract.rollouts.tasks import Prompt, Task
from astraflow.contract.rollouts.trajectories import Int32Array, Trajectory
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.rewards.base import JudgePolicy, PolicyReward, Reward, Score, score_completion, source_of
from astraflow.runtime.plugins import plugin_cause
from astraflow.runtime.tracing import span

MAX_ANSWER_CHARS = 200
"""Longer answers are replaced by their hash: answers are only compared, and are part of every trajectory."""


class RewardScorer:
    """Calls one reward."""

    def __init__(self, reward: Reward) -> None:
        self.reward = reward

    def asking(self, policies: Mapping[PolicyId, JudgePolicy]) -> "RewardScorer":
        """Returns the scorer of one episode, whose reward may ask these policies."""
        return RewardScorer(self.reward.asking(policies)) if isinstance(self.reward, PolicyReward) else self

    async def score(self, prompt: Prompt, completion: str, finish: Finish, *, tokens: int | None = None) -> Score:
        """Scores a completion. Raises: RolloutFailed at the boundary `reward`; do not catch it.

        tokens: tokens that the policy wrote, for rewards that depend on the length.
        """
        try:
            with span("rl.reward"):
                score = with_short_answer(
                    await score_completion(self.reward, prompt, completion, finish, tokens=tokens)
                )
        except Exception as problem:  # a reward may raise anything
            raise RolloutFailed(
                plugin_cause(problem), boundary=Boundary.REWARD, code="rollout.reward_failed"
            ) from problem
        if not score.is_finite:
            raise RolloutFailed(
                f"cannot use the score {score.value} of the {source_of(self.reward)} for the prompt {prompt.id!r}: it "
                "or one of its terms is not finite; return finite numbers",
                boundary=Boundary.REWARD,
                code="rollout.non_finite_reward",
            )
        return score


def with_short_answer(score: Score) -> Score:
    """Returns the score; the hash of a long answer replaces it."""
    if len(score.answer) <= MAX_ANSWER_CHARS:
        return score
    return replace(score, answer=blake2b(score.answer.encode(errors="surrogatepass"), digest_size=16).hexdigest())


class PolicyClient(Protocol):
    """Client of one policy, for a workflow while it runs one task."""

    @property
    def tokenizer(self) -> ChatTokenizer:
        """Tokenizer and chat format of the policy."""

    @property
    def allows_grammars(self) -> bool:
        """True if samples by a JSON schema or an expression can be used: they are not trained, or kept sets are
        recorded. An engine may still refuse them."""

    async def generate(self, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Continues `prompt`. Any number of calls may run at once.

        Raises: RolloutFailed at the boundary `engine`, also when generation was interrupted; do not catch it.
        """


PolicyClients: TypeAlias = Mapping[PolicyId, PolicyClient]
"""Client of each policy of a workflow."""


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

    async def run(self, task: Task, policies: PolicyClients, scorer: RewardScorer) -> Sequence[Trajectory]:
        """Runs one episode; returns at least one trajectory, each of the policy that wrote it."""


class OnePolicy:
    """Base of workflows with one policy."""

    def __init__(self, policy: str) -> None:
        self._policy = PolicyId(policy)

    @property
    def policies(self) -> tuple[PolicyId, ...]:
        return (self._policy,)


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
