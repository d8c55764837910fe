"""Division of a batch over optimizer steps and ranks, and the shares that ranks receive."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.batches import Batch, Row
from astraflow.contract.ids import BatchId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.trainer.engines.base import Batching
from astraflow.trainer.step.flops import ForwardCost
from astraflow.trainer.step.packing import balanced_parts, imbalance
from astraflow.trainer.step.rows import StepRows
from astraflow.trainer.step.shares import Plan, Share, plan_step, row_data

COST = ForwardCost(per_token=3e9, per_pair=4 * 28 * 2048.0, per_target=6e8)
"""Cost of a model with 1.7 billion parameters."""


def lognormal_batch(*, rows: int, members: int, seed: int) -> Batch:
    """Returns answers of lognormal lengths with sigma 0.8 and a median of 400 tokens."""
    draws = np.random.default_rng(seed)
    batch_rows = []
    for group in range(rows // members):
        prompt = draws.integers(0, 100, 200)
        for member in range(members):
            answer = draws.integers(0, 100, int(min(draws.lognormal(6, 0.8), 2500)) + 1)
            batch_rows.append(
                Row(
                    group=GroupId(f"train:{group}"),
                    task=TaskId(f"train:{group}/{member}"),
                    node=NodeId("node-1"),
                    trajectory=Trajectory(
                        policy=PolicyId("solver"),
                        tokens=np.concatenate([prompt, answer]).astype(np.int32),
                        logprobs=np.full(len(answer), -1.0, dtype=np.float32),
                        spans=(
                            Span(author=Author.CONTEXT, length=len(prompt)),
                            Span(author=Author.MODEL, length=len(answer), version=Version(0)),
                        ),
                        reward=float(member),
                    ),
                )
            )
    return Batch(
        id=BatchId("solver:1"),
        policy=PolicyId("solver"),
        version=Version(0),
        is_redelivered=False,
        rows=tuple(batch_rows),
    )


def plan_of(
    batch: Batch,
    *,
    minibatches: int = 1,
    data_ranks: int = 1,
    max_tokens: int = 16_384,
    batching: Batching = Batching.PACKED,
) -> Plan:
    rows = StepRows.of(batch)
    return plan_step(
        rows,
        row_data(rows, is_excluded=[False] * len(batch.rows)),
        torch.arange(len(batch.rows)).float(),
        minibatches=minibatches,
        data_ranks=data_ranks,
        max_tokens=max_tokens,
        cost=COST,
        batching=batching,
    )


@pytest.mark.long
@given(costs=st.lists(st.floats(0, 1e6), max_size=40), parts=st.integers(1, 9))
def test_every_item_is_in_exactly_one_part(costs: list[float], parts: int) -> None:
    divided = balanced_parts(costs, parts)

    assert len(divided) == parts
    assert sorted(index for part in divided for index in part) == list(range(len(costs)))


@pytest.mark.parametrize("members", [1, 8])
@pytest.mark.parametrize("seed", range(3))
def test_eight_ranks_get_equal_work_without_padding(members: int, seed: int) -> None:
    facts = plan_of(lognormal_batch(rows=256, members=members, seed=seed), data_ranks=8).facts

    assert facts.imbalance <= 1.02
    assert facts.padding == 0


def test_a_row_above_the_mean_bounds_the_balance() -> None:
    batch = lognormal_batch(rows=3, members=1, seed=0)
    facts = plan_of(batch, data_ranks=8).facts

    assert facts.imbalance > 2
    assert facts.padding == 5  # ranks without a row


@pytest.mark.parametrize(("data_ranks", "minibatches"), [(1, 1), (3, 1), (2, 4)])
def test_every_trained_token_is_in_one_pack_of_one_rank(data_ranks: int, minibatches: int) -> None:
    batch = lognormal_batch(rows=32, members=4, seed=1)

    shares = plan_of(batch, data_ranks=data_ranks, minibatches=minibatches, max_tokens=2000).shares

    counts = torch.zeros(32, dtype=torch.int64)
    for share in shares:
        packs = [pack for part in share.optimizer_batches for pack in part.packs]
        assert sum(len(pack.targets) for pack in packs) == len(share.behaviour_logprobs)
        counts += torch.bincount(share.token_data(torch.device("cpu")).row_indices, minlength=32)
    assert counts.tolist() == [row.trajectory.model_tokens for row in batch.rows]
    for parts in zip(*(share.optimizer_batches for share in shares), strict=True):
        assert len({len(part.packs) for part in parts}) == 1
        assert all(torch.equal(part.lengths, parts[0].lengths) for part in parts)


def test_optimizer_batches_have_similar_numbers_of_tokens() -> None:
    (share,) = plan_of(lognormal_batch(rows=128, members=4, seed=2), minibatches=4).shares

    assert imbalance([part.targets for part in share.optimizer_batches]) < 1.1


def test_the_number_of_optimizer_batches_is_at_most_the_number_of_groups() -> None:
    (share,) = plan_of(lognormal_batch(rows=8, members=4, seed=2), minibatches=4).shares

    assert len(share.optimizer_batches) == 2


def test_a_batch_without_trained_tokens_has_one_empty_optimizer_batch() -> None:
    rows = StepRows.of(lognormal_batch(rows=2, members=2, seed=0))
    facts = row_data(rows, is_excluded=[True, True])

    plan = plan_step(
        rows, facts, torch.zeros(2), minibatches=2, data_ranks=2, max_tokens=100, cost=COST, batching=Batching.PACKED
    )

    shares = [Share.decode(*share.encode()) for share in plan.shares]
    assert [[len(part.packs) for part in share.optimizer_batches] for share in shares] == [[0], [0]]
    assert not facts.is_counted.any()
    assert (plan.facts.tokens, plan.facts.imbalance) == (0, 1.0)


def test_rows_of_another_version_are_marked() -> None:
    batch = lognormal_batch(rows=4, members=2, seed=0)
    newer = replace(batch, version=Version(1))

    assert plan_of(batch).shares[0].is_own_version.all()
    assert not plan_of(newer).shares[0].is_own_version.any()


@pytest.mark.parametrize("data_ranks", [1, 5])
def test_a_share_round_trips_through_its_encoding(data_ranks: int) -> None:
    for share in plan_of(lognormal_batch(rows=12, members=4, seed=3), data_ranks=data_ranks, minibatches=2).shares:
        facts, arrays = share.encode()

        copy = Share.decode(facts, arrays)

        assert copy.version == share.version
        assert all(
            torch.equal(getattr(copy.rows, field.name), getattr(share.rows, field.name)) for field in fields(share.rows)
        )
        for name in ("row_advantages", "is_own_version", "turn_rows", "turn_indices", "turn_lengths"):
            assert torch.equal(getattr(copy, name), getattr(share, name)), name
        tokens, expected_tokens = (each.token_data(torch.device("cpu")) for each in (copy, share))
        for field in fields(tokens):
            value, expected_value = (getattr(each, field.name) for each in (tokens, expected_tokens))
            assert (value is None and expected_value is None) or torch.equal(value, expected_value), field.name
        for actual, expected in zip(copy.optimizer_batches, share.optimizer_batches, strict=True):
            assert torch.equal(actual.lengths, expected.lengths)
            for pack, original in zip(actual.packs, expected.packs, strict=True):
                assert pack.segments == original.segments
                for name in ("input_ids", "positions", "predictors", "targets"):
                    assert torch.equal(getattr(pack, name), getattr(original, name)), name
