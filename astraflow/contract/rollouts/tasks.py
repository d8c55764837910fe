"""Work that a node leases: prompts, tasks and leases; and the group of all episodes of one prompt."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from astraflow.contract.ids import FlowId, GroupId, PolicyId, PromptId, TaskId, Version
from astraflow.contract.rollouts.partial_rollouts import RecordedGeneration
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.contract.values import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One dataset item. `fields` holds the values for the workflow's format and the reward's check."""

    id: PromptId
    fields: Mapping[str, Json]


def prompt_position(prompt: str) -> float:
    """Returns the position of a prompt in a fixed random order, from 0 to below 1. Samples prefer the first ones, so
    that they show the same prompts again.

    >>> [round(prompt_position(f"letters:{index}"), 3) for index in (1, 2)]
    [0.551, 0.865]
    """
    return int.from_bytes(blake2b(prompt.encode(), digest_size=6).digest(), "big") / 2**48


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Assignment of a prompt that produces one episode. Members of a group share the prompt and differ in `member`."""

    id: TaskId
    group: GroupId
    flow: FlowId
    member: int
    attempt: int
    """0 for the first attempt; grows when the infrastructure failed. An expired lease or a hand-back is not a failed
    attempt."""
    prompt: Prompt
    pinned: Mapping[PolicyId, Version] = field(default_factory=dict)
    """For an evaluation, the versions that must write every token; empty for training, which uses the node's newest."""
    resume_from: tuple[RecordedGeneration, ...] = ()
    """Generations of an earlier node that handed the task back: to be continued, not generated again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Lease of tasks to a node, valid until `lease_s` seconds pass without a heartbeat that names them."""

    tasks: tuple[Task, ...]
    lease_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All episodes of one prompt: the unit of group-relative advantages. It is never split."""

    id: GroupId
    flow: FlowId
    prompt: Prompt
    episodes: tuple[Episode, ...]
