"""Builders of domain objects with sensible defaults."""

import numpy as np

from astraflow.contract.batches import Batch, Row
from astraflow.contract.generation import Sampling
from astraflow.contract.ids import BatchId, FlowId, GroupId, NodeId, PolicyId, PromptId, TaskId, Version
from astraflow.contract.tasks import Prompt, Task
from astraflow.contract.trajectories import Author, Episode, Span, Trajectory
from astraflow.contract.weights import Dtype, Probe
from astraflow.models.byte_tokenizer import ByteTokenizer
from astraflow.weights.tensors import VerifiedWeights, build_layout


def prompt(ordinal: int = 0) -> Prompt:
    return Prompt(id=PromptId(f"letters:{ordinal}"), fields={"question": "rev abcd=", "answer": "dcba"})


def task(
    *, flow: str = "train", group: int = 0, member: int = 0, attempt: int = 0, prompt_given: Prompt | None = None
) -> Task:
    group_id = GroupId(f"{flow}:{group}")
    return Task(
        id=TaskId(f"{group_id}/{member}"),
        group=group_id,
        flow=FlowId(flow),
        member=member,
        attempt=attempt,
        prompt=prompt_given or prompt(group),
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


def episode(
    task_id: str = "train:0/0",
    *,
    node: str = "node-1",
    reward: float = 1.0,
    version: int = 0,
    model_tokens: int = 5,
) -> Episode:
    return Episode(
        task=TaskId(task_id),
        node=NodeId(node),
        trajectories=(trajectory(reward=reward, version=version, model_tokens=model_tokens),),
        duration_s=0.1,
    )


def batch(
    step: int = 1, *, policy: str = "solver", version: int = 0, born: int = 0, groups: int = 2, members: int = 2
) -> Batch:
    """Batch `policy:step` for a trainer at `version`; its rows were begun with version `born`, rewards alternate."""
    return Batch(
        id=BatchId(f"{policy}:{step}"),
        policy=PolicyId(policy),
        version=Version(version),
        is_redelivered=False,
        rows=tuple(
            Row(
                group=GroupId(f"train:{step}.{group}"),
                task=TaskId(f"train:{step}.{group}/{member}"),
                node=NodeId("node-1"),
                trajectory=trajectory(policy=policy, version=born, reward=float(member % 2)),
            )
            for group in range(groups)
            for member in range(members)
        ),
    )


def verified_weights(version: int = 0, *, policy: str = "solver", probe: Probe | None = None) -> VerifiedWeights:
    """A tiny version, all of its bits equal to its number."""
    bits = np.full(8, version, dtype="<u2")
    manifest, buffer = build_layout(
        {"weight": (Dtype.BFLOAT16, (2, 4), bits)}, policy=PolicyId(policy), version=Version(version), probe=probe
    )
    return VerifiedWeights(manifest=manifest, buffer=buffer)


def sampling(max_new_tokens: int = 16) -> Sampling:
    """For the byte tokenizer."""
    return Sampling(max_new_tokens=max_new_tokens, stop_tokens=ByteTokenizer().stop_tokens)
