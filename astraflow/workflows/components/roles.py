"""Roles: the parts that policies play in one episode, and what they say in them."""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

from astraflow.contract.errors import InternalError
from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Ending, Trajectory
from astraflow.rewards.base import Score
from astraflow.workflows.base import PolicyClient, PolicyClients, RewardScorer
from astraflow.workflows.components.answers import Answer, AnswerOptions, question_of, request_answer

TEAM_HEADER = "Outputs of your teammates:"

Result = TypeVar("Result")


@runtime_checkable
class RoleWorkflow(Protocol):
    """A workflow with several roles. One policy may play several of them."""

    @property
    def roles(self) -> Mapping[str, PolicyId]:
        """Policy of each role. A later attempt of the same role, such as `solver.retry`, is not listed."""


class Team:
    """Base of workflows with roles: the policy of each role, and the roles of an episode."""

    def __init__(self, roles: Mapping[str, str]) -> None:
        """roles: policy of each role."""
        self._roles = {name: PolicyId(policy) for name, policy in roles.items()}

    @property
    def roles(self) -> Mapping[str, PolicyId]:
        return self._roles

    @property
    def policies(self) -> tuple[PolicyId, ...]:
        """Policies that play a role, each once."""
        return tuple(dict.fromkeys(self._roles.values()))

    def reviewer(
        self, name: str, policies: PolicyClients, options: AnswerOptions, instruction: str, *, max_new_tokens: int
    ) -> "Role":
        """Returns a role for one episode whose text is no answer: without the JSON schema and stop strings of one."""
        plain = options.model_copy(update={"json_schema": "", "stop_strings": ()})
        return self.role(name, policies, plain, instruction=instruction, max_new_tokens=max_new_tokens)

    def role(
        self,
        name: str,
        policies: PolicyClients,
        options: AnswerOptions,
        *,
        instruction: str = "",
        max_new_tokens: int | None = None,
    ) -> "Role":
        """Returns a role for one episode. name: a role, or a later attempt of it, such as `solver.retry`."""
        policy = self._roles[name.partition(".")[0]]
        return Role(
            name=name,
            policy=policy,
            client=policies[policy],
            options=options,
            instruction=instruction,
            max_new_tokens=max_new_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """Part that a policy plays in one episode."""

    name: str
    """Role of its trajectories; `solver.retry` is a later attempt of `solver`."""
    policy: PolicyId
    client: PolicyClient
    options: AnswerOptions
    instruction: str = ""
    """Text after the task and the teammates' outputs; none when empty."""
    max_new_tokens: int | None = None
    """Length limit of an answer; None: that of the options. Tokens."""


@dataclass(slots=True, kw_only=True, eq=False)
class Utterance:
    """One answer in a role: a trajectory once it has its score."""

    role: str
    answer: Answer
    parent: "Utterance | None" = None
    """Utterance that led to this one."""
    score: Score | float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    ending: Ending | None = None
    heading: str = ""
    """Name under which teammates see it; empty: the role."""

    @property
    def text(self) -> str:
        """Text of the answer, without special tokens."""
        return self.answer.text

    @property
    def finish(self) -> Finish:
        """Reason for the end of the generation."""
        return self.answer.finish

    @property
    def tokens(self) -> int:
        """Number of tokens that the policy wrote."""
        return self.answer.tokens

    @property
    def reward(self) -> float:
        """Value of the score. Raises: InternalError before it has one."""
        if self.score is None:
            raise InternalError(
                f"cannot build the trajectory of role {self.role!r}: it has no score; set `score` before the end",
                code="workflow.no_score",
            )
        return Score.of(self.score).value


async def ask_in_role(
    role: Role, task: str, team_context: Sequence[Utterance] = (), *, parent: Utterance | None = None
) -> Utterance:
    """Asks a policy for one answer in a role. Raises: RolloutFailed.

    The prompt is one message: the task, the outputs of teammates, and the role's instruction.
    parent: the utterance that led to this one; None: the last one of `team_context`, if any.
    """
    messages = [{"role": "user", "content": role_prompt(role, task, team_context)}]
    answer = await request_answer(role.policy, role.client, messages, role.options, max_new_tokens=role.max_new_tokens)
    return Utterance(role=role.name, answer=answer, parent=parent or (team_context[-1] if team_context else None))


async def scored_answer(
    role: Role,
    task: Task,
    scorer: RewardScorer,
    team_context: Sequence[Utterance] = (),
    *,
    parent: Utterance | None = None,
) -> Utterance:
    """Asks a policy for one answer to the question of a task, and scores it with the flow's reward.

    Raises: RolloutFailed.
    """
    utterance = await ask_in_role(role, question_of(task.prompt), team_context, parent=parent)
    utterance.score = await scorer.score(task.prompt, utterance.text, utterance.finish, tokens=utterance.tokens)
    return utterance


def role_prompt(role: Role, task: str, team_context: Sequence[Utterance] = ()) -> str:
    """Returns the text of a role's prompt; without teammates and instruction it is the task alone."""
    team = (
        "\n\n".join(
            [TEAM_HEADER, *(f"[{utterance.heading or utterance.role}]\n{utterance.text}" for utterance in team_context)]
        )
        if team_context
        else ""
    )
    return "\n\n".join(part for part in (task, team, role.instruction) if part)


def trajectories_of(utterances: Sequence[Utterance]) -> tuple[Trajectory, ...]:
    """Returns the trajectories of scored utterances, in order; every parent is among them and before its children.

    Order the utterances so that the last one of a role is the role's final answer: evaluations count that one.
    Raises: InternalError when an utterance has no score.
    """
    indices = {id(utterance): index for index, utterance in enumerate(utterances)}
    return tuple(_trajectory(turn, None if turn.parent is None else indices[id(turn.parent)]) for turn in utterances)


async def at_once(calls: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Runs the calls at the same time and returns their results in order. The first failure cancels the others and is
    raised itself, so that a `RolloutFailed` keeps its boundary."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as problems:
        raise problems.exceptions[0] from None
    return [task.result() for task in tasks]


def _trajectory(utterance: Utterance, parent: int | None) -> Trajectory:
    reward = utterance.reward
    return utterance.answer.trajectory_builder.build(
        reward if utterance.score is None else utterance.score,
        role=utterance.role,
        parent=parent,
        parent_turn=None if parent is None else 0,
        metrics=utterance.metrics,
        labels=utterance.labels,
        ending=utterance.ending,
    )
