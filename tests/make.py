"""Builders of domain objects with sensible defaults."""

import numpy as np

from astraflow.contract.ids import FlowId, GroupId, NodeId, PolicyId, PromptId, TaskId, Version
from astraflow.contract.tasks import Prompt, Task
from astraflow.contract.trajectories import Author, Episode, Span, Trajectory


def prompt(ordinal: int = 0) -> Prompt:
    return Prompt(id=PromptId(f"letters:{ordinal}"), fields={"question": "rev abcd=", "answer": "dcba"})


def task(*, flow: str = "train", group: int = 0, member: int = 0) -> Task:
    group_id = GroupId(f"{flow}:{group}")
    return Task(
        id=TaskId(f"{group_id}/{member}"),
        group=group_id,
        flow=FlowId(flow),
        member=member,
        attempt=0,
        prompt=prompt(group),
    )


def trajectory(
    *, policy: str = "solver", prompt_tokens: int = 3, model_tokens: int = 5, version: int = 0, reward: float = 1.0
) -> Trajectory:
    return Trajectory(
        policy=PolicyId(policy),
        tokens=np.arange(prompt_tokens + model_tokens, dtype=np.int32),
        logprobs=np.full(model_tokens, -0.5, dtype=np.float32),
        spans=(
            Span(author=Author.CONTEXT, length=prompt_tokens),
            Span(author=Author.MODEL, length=model_tokens, version=Version(version)),
        ),
        reward=reward,
    )


def episode(task_id: str = "train:0/0", *, node: str = "node-1", reward: float = 1.0, version: int = 0) -> Episode:
    return Episode(
        task=TaskId(task_id), node=NodeId(node), trajectories=(trajectory(reward=reward, version=version),), duration_s=0.1
    )
