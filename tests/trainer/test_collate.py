"""A batch in tensors is the batch: every trajectory as if it stood alone, however it was packed and cut."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.contract.batches import Batch, Row
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import BatchId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.spans import Author, Span
from astraflow.contract.trajectories import Trajectory
from astraflow.models.causal import hidden_states, logits_at
from astraflow.trainer.collate import Collated, PackingLimits, collate
from tests import make_torch

ROOMY = PackingLimits(pack_tokens=1000, micro_batch_tokens=100_000)


def trajectory(pieces: Sequence[tuple[Author, Sequence[int]]], *, version: int = 0, reward: float = 1.0) -> Trajectory:
    tokens = np.array([token for _, part in pieces for token in part], dtype=np.int32)
    written = sum(len(part) for author, part in pieces if author is Author.MODEL)
    return Trajectory(
        policy=PolicyId("solver"),
        tokens=tokens,
        logprobs=-np.arange(1, written + 1, dtype=np.float32),
        spans=tuple(
            Span(author=author, length=len(part), version=Version(version) if author is Author.MODEL else None)
            for author, part in pieces
        ),
        reward=reward,
    )


def single_turn(prompt: Sequence[int], answer: Sequence[int]) -> Trajectory:
    return trajectory([(Author.CONTEXT, prompt), (Author.MODEL, answer)])


def batch(groups: Sequence[Sequence[Trajectory]]) -> Batch:
    rows = tuple(
        Row(
            group=GroupId(f"train:{number}"),
            task=TaskId(f"train:{number}/{member}"),
            node=NodeId("node-1"),
            trajectory=found,
        )
        for number, members in enumerate(groups)
        for member, found in enumerate(members)
    )
    return Batch(id=BatchId("solver:1"), policy=PolicyId("solver"), version=Version(0), is_redelivered=False, rows=rows)


token = st.integers(4, 9)
texts = st.lists(token, min_size=1, max_size=5)


@st.composite
def some_trajectories(draw: st.DrawFn) -> list[Trajectory]:
    """Members of a group: their prompts agree in some first tokens, and there may be several turns."""
    prompt = draw(texts)
    members = []
    for _ in range(draw(st.integers(1, 4))):
        turns = draw(st.lists(st.tuples(texts, texts), max_size=2))
        own = draw(st.sampled_from([prompt, [*prompt, 5], prompt[:-1] or prompt]))
        pieces = [(Author.CONTEXT, own), (Author.MODEL, draw(texts))]
        for context, answer in turns:
            pieces += [(Author.CONTEXT, context), (Author.MODEL, answer)]
        members.append(trajectory(pieces))
    return members


def by_row(collated: Collated, rows: int) -> list[list[tuple[int, float, float]]]:
    """For each row, (token, recorded logprob, the model's logprob) of every token trained on, in order."""
    model = make_torch.model()
    found: list[list[tuple[int, float, float]]] = [[] for _ in range(rows)]
    for part in collated.micro_batches:
        with torch.no_grad():
            hidden = hidden_states(
                model, part.input_ids, position_ids=part.position_ids, attention_mask=part.attention_mask()
            )
            logprobs = logits_at(model, hidden, part.sources).log_softmax(-1)
        for place, (target, owner) in enumerate(zip(part.targets.tolist(), part.owners.tolist(), strict=True)):
            found[owner].append((target, float(part.behaviour[place]), float(logprobs[place, target])))
    return found


@settings(max_examples=25)
@given(
    groups=st.lists(some_trajectories(), min_size=1, max_size=4),
    pack_tokens=st.sampled_from([1, 12, 1000]),
    micro_batch_tokens=st.sampled_from([1, 30, 100_000]),
)
def test_every_trajectory_is_computed_as_if_it_stood_alone(
    groups: list[list[Trajectory]], pack_tokens: int, micro_batch_tokens: int
) -> None:
    whole = batch(groups)

    collated = collate(whole, PackingLimits(pack_tokens=pack_tokens, micro_batch_tokens=micro_batch_tokens))

    model = make_torch.model()
    for row, found in zip(whole.rows, by_row(collated, len(whole.rows)), strict=True):
        mask = row.trajectory.loss_mask()
        assert [token for token, _, _ in found] == row.trajectory.tokens[mask].tolist()
        assert [recorded for _, recorded, _ in found] == row.trajectory.logprobs.tolist()
        expected = make_torch.logprobs(model, row.trajectory.tokens, 1)[mask[1:]]
        np.testing.assert_allclose([own for _, _, own in found], expected, atol=1e-5)


def test_a_shared_prompt_is_there_once() -> None:
    prompt = list(range(10, 30))
    members = [single_turn(prompt, [member, 5, 6]) for member in range(8)]

    collated = collate(batch([members]), ROOMY)

    assert [part.input_ids.shape for part in collated.micro_batches] == [(1, 20 + 8 * 2)]


def test_long_trajectories_stand_alone_and_need_no_mask() -> None:
    members = [single_turn(range(4, 14), range(4, 64)) for _ in range(3)]

    collated = collate(batch([members]), PackingLimits(pack_tokens=100, micro_batch_tokens=100_000))

    assert [part.input_ids.shape for part in collated.micro_batches] == [(3, 69)]
    assert collated.micro_batches[0].attention_mask() is None


def test_micro_batches_keep_to_their_budget_and_sort_by_width() -> None:
    groups = [[single_turn([4, 5], range(4, 4 + length))] for length in (30, 3, 28, 4, 5)]

    collated = collate(batch(groups), PackingLimits(pack_tokens=1, micro_batch_tokens=62))

    shapes = [tuple(part.input_ids.shape) for part in collated.micro_batches]
    assert shapes == [(2, 31), (3, 6)]


def test_rows_left_out_and_rows_without_model_tokens_are_in_no_micro_batch() -> None:
    silent = trajectory([(Author.CONTEXT, [4, 5])])
    kept, dropped = single_turn([4], [5, 6]), single_turn([4], [7])

    collated = collate(batch([[kept, silent, dropped]]), ROOMY, is_left_out=[False, False, True])

    assert collated.lengths.tolist() == [2, 0, 1]
    assert [part.owners.tolist() for part in collated.micro_batches] == [[0, 0]]


def test_nothing_to_learn_makes_no_micro_batch() -> None:
    assert collate(batch([[trajectory([(Author.CONTEXT, [4, 5])])]]), ROOMY).micro_batches == ()


def test_every_token_knows_its_version() -> None:
    crossing = Trajectory(
        policy=PolicyId("solver"),
        tokens=np.arange(4, 9, dtype=np.int32),
        logprobs=np.zeros(4, dtype=np.float32),
        spans=(
            Span(author=Author.CONTEXT, length=1),
            Span(author=Author.MODEL, length=3, version=Version(2)),
            Span(author=Author.MODEL, length=1, version=Version(5)),
        ),
        reward=0.0,
    )

    (part,) = collate(batch([[crossing]]), ROOMY).micro_batches

    assert part.versions.tolist() == [2, 2, 2, 5]


def test_groups_are_numbered_and_rewards_in_row_order() -> None:
    collated = collate(batch([[single_turn([4], [5])] * 2, [single_turn([4], [5])]]), ROOMY)

    assert collated.groups.tolist() == [0, 0, 1]
    assert collated.rewards.tolist() == [1.0] * 3


def test_a_first_token_without_context_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one token"):
        collate(batch([[trajectory([(Author.MODEL, [4, 5])])]]), ROOMY)
