"""Rows in columns: their plan is the one of the same rows as objects, and no object is built for a row."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.algorithms.config import AlgorithmConfig
from astraflow.contract.batches import Batch, Row, Rows
from astraflow.contract.ids import GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.trainer.backends.probe import probe_text_from_batch
from astraflow.trainer.step.flops import ForwardCost
from astraflow.trainer.step.metrics import step_metrics
from astraflow.trainer.step.planner import StepPlanner
from astraflow.trainer.step.rows import StepRows
from astraflow.trainer.step.runner import StepResult
from astraflow.wire.codecs.data import decode_batch, encode_batch
from tests import make

COST = ForwardCost(per_token=3e9, per_pair=4 * 28 * 2048.0, per_target=6e8)
NO_STEP = StepResult(
    loss=0.0,
    updates=(),
    critic_updates=(),
    critic={},
    token_means={},
    mismatch={},
    seconds={},
    passes=0.0,
    critic_passes=0.0,
)

lengths = st.integers(1, 4)
parts_of_turns = st.lists(lengths, min_size=1, max_size=2)
unit_values = st.floats(0, 1, width=32)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    """Returns a trajectory of 0 to 3 turns, with or without a role and rewards of turns."""
    spans = [Span(author=Author.CONTEXT, length=draw(lengths))]
    turns = draw(st.lists(parts_of_turns, max_size=3))
    for parts in turns:
        versions = [draw(st.integers(0, 2)) for _ in parts]
        spans += [
            Span(author=Author.MODEL, length=length, version=Version(version))
            for length, version in zip(parts, versions, strict=True)
        ]
        spans.append(Span(author=Author.CONTEXT, length=draw(lengths)))
    written = sum(map(sum, turns))
    count = sum(span.length for span in spans)
    return Trajectory(
        policy=PolicyId("solver"),
        tokens=np.array(draw(st.lists(st.integers(4, 6), min_size=count, max_size=count)), dtype=np.int32),
        logprobs=-np.arange(1, written + 1, dtype=np.float32),
        spans=tuple(spans),
        reward=draw(unit_values),
        is_truncated=draw(st.booleans()),
        role=draw(st.sampled_from(["", "", "solver", "critic"])),
        turn_rewards=tuple(draw(unit_values) for _ in turns) if draw(st.booleans()) else (),
        turn_discounts=tuple(draw(unit_values) for _ in turns) if draw(st.booleans()) else (),
    )


def batch(groups: Sequence[Sequence[Trajectory]]) -> Batch:
    """Returns a batch of groups; two trajectories are of one task."""
    rows = [
        Row(
            group=GroupId(f"train:{group}"),
            task=TaskId(f"train:{group}/{member // 2}"),
            node=NodeId(f"node-{member}"),
            trajectory=trajectory,
        )
        for group, members in enumerate(groups)
        for member, trajectory in enumerate(members)
    ]
    return replace(make.batch(version=2), rows=rows)


def received(sent: Batch) -> Batch:
    """Returns the batch after its way through messages, one for each group."""
    groups: dict[GroupId, list[Row]] = {}
    for row in sent.rows:
        groups.setdefault(row.group, []).append(row)
    messages = [decode_batch(encode_batch(replace(sent, rows=rows))) for rows in groups.values()]
    return replace(sent, rows=Rows.joined([Rows.of(message.rows) for message in messages if message is not None]))


def planner(*, data_ranks: int = 2, max_tokens: int = 10**6, **algorithm: Any) -> StepPlanner:
    return StepPlanner(AlgorithmConfig(**algorithm), data_ranks=data_ranks, micro_batch_tokens=max_tokens, cost=COST)


@settings(max_examples=30)
@given(
    groups=st.lists(st.lists(trajectories(), min_size=1, max_size=4), min_size=1, max_size=3),
    data_ranks=st.integers(1, 3),
    max_tokens=st.sampled_from([1, 20, 10**6]),
)
def test_a_received_batch_has_the_plan_of_the_same_rows(
    groups: list[list[Trajectory]], data_ranks: int, max_tokens: int
) -> None:
    sent = batch(groups)
    planning = planner(data_ranks=data_ranks, max_tokens=max_tokens, minibatches=2, mask_truncated=True)

    plan, expected = planning.plan(received(sent)), planning.plan(sent)

    assert plan.facts == expected.facts
    for share, own in zip(plan.shares, expected.shares, strict=True):
        (facts, arrays), (own_facts, own_arrays) = share.encode(), own.encode()
        assert facts == own_facts
        assert arrays.keys() == own_arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, own_arrays[name], err_msg=name)


@settings(max_examples=30)
@given(members=st.lists(trajectories(), min_size=1, max_size=4))
def test_packed_tokens_are_those_of_each_trajectory(members: list[Trajectory]) -> None:
    rows = StepRows.of(received(batch([members])))

    for row, trajectory in enumerate(members):
        mask = trajectory.loss_mask()
        begins = mask & ~np.insert(mask[:-1], 0, False)
        turns = (np.cumsum(begins) - 1)[mask]
        fields = rows.turns([row])
        logprobs, lengths = fields.pop("behaviour_logprobs"), fields["turn_lengths"]
        tokens = {name: values.repeat_interleave(lengths).tolist() for name, values in fields.items()}
        assert logprobs.tolist() == trajectory.logprobs.tolist()
        assert tokens["turn_rows"] == [row] * trajectory.model_tokens
        assert tokens["turn_indices"] == turns.tolist()
        assert tokens["turn_rewards"] == [(trajectory.turn_rewards or (0.0,) * 3)[turn] for turn in turns]
        assert tokens["turn_discounts"] == [(trajectory.turn_discounts or (1.0,) * 3)[turn] for turn in turns]
        assert rows.is_own_version[row] == all(span.version in (None, 2) for span in trajectory.spans)


@contextmanager
def recorded_constructions() -> Iterator[list[str]]:
    """Yields the names of the objects for single rows that the block builds."""
    constructors = {kind.__init__.__code__: kind.__name__ for kind in (Trajectory, Row)}
    built: list[str] = []

    def record(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in constructors:
            built.append(constructors[frame.f_code])

    sys.setprofile(record)
    try:
        yield built
    finally:
        sys.setprofile(None)


def test_planning_a_received_batch_builds_no_object_for_a_row() -> None:
    whole = received(make.batch(groups=2, members=3))
    with recorded_constructions() as built:
        plan = planner().plan(whole)
        step_metrics(whole, plan, NO_STEP, duration_s=1.0, peak_flops=None)
        text = probe_text_from_batch(whole, sequences=2, tokens=8)
    assert text is not None
    assert plan.facts.tokens == torch.stack([share.rows.lengths for share in plan.shares[:1]]).sum()
    assert built == []

    with recorded_constructions() as built:
        assert len(whole.rows[:]) == 6
    assert "Row" in built
