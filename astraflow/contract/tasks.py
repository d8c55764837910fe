"""What a node is asked to do."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from astraflow.contract.ids import FlowId, GroupId, PolicyId, PromptId, TaskId, Version
from astraflow.contract.partials import Recorded
from astraflow.contract.values import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One dataset item. `fields` holds what the workflow formats and what the reward checks against."""

    id: PromptId
    fields: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One prompt to be turned into one episode. Members of a group share the prompt and differ in `member`."""

    id: TaskId
    group: GroupId
    flow: FlowId
    member: int
    attempt: int
    """0 at first; grows when the infrastructure failed. A lease that ran out or was handed back is no failed try."""
    prompt: Prompt
    pinned: Mapping[PolicyId, Version] = field(default_factory=dict)
    """For an evaluation, the versions that must write every token; empty for training: the newest the node has."""
    resume: tuple[Recorded, ...] = ()
    """What an earlier node wrote for it before it handed the task back: to be continued, not written again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Tasks a node owns until `lease_s` seconds pass without a beat that names them."""

    tasks: tuple[Task, ...]
    lease_s: float
