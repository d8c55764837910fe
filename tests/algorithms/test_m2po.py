"""The clip range of M2PO: against a loop that drops tokens one by one, and over any number of ranks."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from astraflow.algorithms.losses import losses
from astraflow.algorithms.losses.m2po import M2poState, solve_clip_range
from astraflow.algorithms.tokens import Ranks, SingleRank
from tests.algorithms.data import (
    Rows,
    TestBatch,
    Token,
    assert_close,
    batch_of,
    close,
    on_ranks,
    outcome,
    random_rows,
    rows,
)

gaps = st.lists(st.floats(0, 4, width=32), max_size=20)


def by_dropping(gap_values: list[float], threshold: float) -> float:
    """Drops the largest squared gap until the mean of the rest is below the threshold; returns the largest left."""
    squares = sorted(gap**2 for gap in gap_values)
    if not squares or math.fsum(squares) / len(squares) <= threshold:
        return math.inf
    while len(squares) > 1 and math.fsum(squares) / len(squares) >= threshold:
        squares.pop()
    return math.sqrt(squares[-1])


@pytest.mark.long
@pytest.mark.parametrize("threshold", [0.004, 0.04, 1.0])
@given(gap_values=gaps)
def test_the_fewest_largest_gaps_are_masked(threshold: float, gap_values: list[float]) -> None:
    result = solve_clip_range(torch.tensor(gap_values, dtype=torch.float64), threshold=threshold)

    assert close(float(result.largest_gap), by_dropping(gap_values, threshold)) or math.isinf(result.largest_gap)
    assert math.isinf(result.largest_gap) == math.isinf(by_dropping(gap_values, threshold))


def candidates(token_rows: Rows) -> list[float]:
    tokens = [t for row in token_rows for t in row]
    return [abs(t.logprob - t.behaviour) for t in tokens if (t.logprob - t.behaviour) * t.advantage > 0]


@pytest.mark.long
@given(rows)
def test_the_loss_is_ppo_with_the_range_of_the_batch(token_rows: Rows) -> None:
    gap = by_dropping(candidates(token_rows), 0.04)
    low, high = 1 - min(1 - math.exp(-gap), 0.95), 1 + min(math.expm1(min(gap, 9.0)), 20.0)
    batch = batch_of(token_rows)

    result = outcome(losses.build({"kind": "m2po"}), batch)

    slopes, clipped = [], 0
    for t in (t for row in token_rows for t in row):
        ratio, log_ratio = math.exp(t.logprob - t.behaviour), t.logprob - t.behaviour
        is_clipped = (t.advantage > 0 and log_ratio > math.log(high) + 1e-12) or (
            t.advantage < 0 and log_ratio < math.log(low) - 1e-12
        )
        slopes.append(0.0 if is_clipped else -ratio * t.advantage / len(batch.logprobs))
        clipped += is_clipped
    assert_close(result.logprob_grad, slopes)
    assert close(result.metrics["m2po_ratio_high"] / len(slopes), high)
    assert close(result.metrics["m2po_ratio_low"] / len(slopes), low)
    assert result.metrics["clip_fraction"] == clipped
    squares = [leaving**2 for leaving in candidates(token_rows)]
    assert close(result.metrics["m2po_second_moment"] / len(slopes), math.fsum(squares) / max(len(squares), 1))


@pytest.mark.long
@given(rows)
def test_with_a_huge_threshold_the_loss_is_ppo_with_the_outer_bounds(token_rows: Rows) -> None:
    ppo = {"kind": "ppo", "clip_low": 0.95, "clip_high": 20.0}
    batch = batch_of(token_rows)

    expected = outcome(losses.build(ppo), batch)
    result = outcome(losses.build({"kind": "m2po", "threshold": 1e30}), batch)

    assert close(result.loss, expected.loss)
    assert_close(result.logprob_grad, expected.logprob_grad)


def test_the_largest_kept_gap_has_a_gradient_in_float32() -> None:
    generator = torch.Generator().manual_seed(3)
    for _ in range(50):
        behaviour = -torch.rand(40, generator=generator)
        logprobs = behaviour + 0.4 * torch.randn(40, generator=generator)
        state = solve_clip_range((logprobs - behaviour).abs(), threshold=0.04)
        token_rows = [
            [Token(advantage=1.0 if new > old else -1.0)] for new, old in zip(logprobs, behaviour, strict=True)
        ]
        batch = in_float32(batch_of(token_rows), logprobs, behaviour)

        result = outcome(losses.build({"kind": "m2po"}), batch)

        is_kept = (logprobs - behaviour).abs() <= state.largest_gap
        assert torch.equal(result.logprob_grad != 0, is_kept)
        assert 0 < is_kept.sum() < 40


def in_float32(batch: TestBatch, logprobs: Tensor, behaviour: Tensor) -> TestBatch:
    tokens = replace(
        batch.tokens,
        behaviour_logprobs=behaviour,
        current_logprobs=logprobs,
        advantages=batch.tokens.advantages.float(),
    )
    return replace(batch, tokens=tokens, logprobs=logprobs, entropy=batch.entropy.float(), values=logprobs)


@pytest.mark.parametrize("seed", range(5))
def test_the_range_is_exactly_equal_on_any_number_of_ranks(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    batch = batch_of(random_rows(generator, rows=16, tokens=40))
    loss = losses.build({"kind": "m2po"})

    def state(rank: int, count: int, ranks: Ranks) -> M2poState:
        mine = (batch.tokens.row_indices % count == rank).nonzero()[:, 0]
        solved: M2poState = loss.prepare(batch.tokens.select(mine), batch.statistics, ranks).objective
        return solved

    expected = state(0, 1, SingleRank())
    assert math.isfinite(expected.largest_gap)
    for count in (2, 4):
        for token_rows in on_ranks(count, lambda rank, ranks: state(rank, count, ranks)):  # noqa: B023
            assert torch.equal(token_rows.largest_gap, expected.largest_gap)
            assert torch.equal(token_rows.second_moment, expected.second_moment)


def test_a_rank_without_tokens_does_not_change_the_result() -> None:
    token_rows = [[Token(logprob=-0.5), Token(logprob=-0.9)], [Token(logprob=-1.4, advantage=-1.0)]]
    loss, batch = losses.build({"kind": "m2po"}), batch_of(token_rows)

    expected, result = outcome(loss, batch), outcome(loss, batch, [[[0, 1]], [[]], [[]]])

    assert result.metrics == pytest.approx(expected.metrics)
    assert_close(result.logprob_grad, expected.logprob_grad)
