"""Advantages of tokens against loops, and over ranks."""

import math
import statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astraflow.algorithms.base import token_advantages
from astraflow.algorithms.token_advantages import decayed_sums
from astraflow.algorithms.tokens import Pass, Ranks, SingleRank, TokenData
from tests.algorithms.data import Rows, Token, assert_close, batch_of, on_ranks, rows


def applied(found: Rows, **spec: object) -> TokenData:
    batch = batch_of(found)
    return token_advantages.build(spec)(batch.tokens, batch.statistics.rows, SingleRank())


@given(rows)
def test_turn_discount_decays_with_the_following_turns(found: Rows) -> None:
    expected = [t.advantage * 0.9 ** ((len(row) - 1) // 2 - place // 2) for row in found for place, t in enumerate(row)]

    assert_close(applied(found, kind="turn_discount", gamma=0.9).advantages, expected)


@pytest.mark.parametrize("count", [1, 2, 4])
@given(found=rows)
def test_whitened_advantages_do_not_depend_on_the_number_of_ranks(count: int, found: Rows) -> None:
    batch, whitened = batch_of(found), token_advantages.build({"kind": "whitened"})
    values = [t.advantage for row in found for t in row]
    mean, spread = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0

    def share(rank: int, ranks: Ranks) -> torch.Tensor:
        mine = batch.tokens.select((batch.tokens.row_indices % count == rank).nonzero()[:, 0])
        return whitened(mine, batch.statistics.rows, ranks).advantages

    result = on_ranks(count, share)

    expected = torch.tensor([(value - mean) / (spread + 1e-8) for value in values], dtype=torch.float64)
    for rank, found_values in enumerate(result):
        # Equal values have a spread of rounding errors only, which the reference does not share.
        if spread > 1e-6:
            assert_close(found_values, expected[batch.tokens.row_indices % count == rank])


def generalized(row: list[Token], gamma: float, decay: float) -> list[float]:
    """Schulman et al., equation 16: sum of the discounted differences, with the reward at the last token."""
    values = [*(t.old_value for t in row), 0.0]
    rewards = [0.0] * (len(row) - 1) + [t.advantage for t in row[-1:]]
    deltas = [rewards[t] + gamma * values[t + 1] - values[t] for t in range(len(row))]
    return [sum((gamma * decay) ** (k - t) * deltas[k] for k in range(t, len(row))) for t in range(len(row))]


@pytest.mark.parametrize(("gamma", "decay"), [(1.0, 0.95), (0.9, 0.5), (1.0, 1.0), (0.99, 0.0)])
@given(found=rows)
def test_gae_matches_its_formula(gamma: float, decay: float, found: Rows) -> None:
    result = applied(found, kind="gae", gamma=gamma, gae_lambda=decay)

    expected = [value for row in found for value in generalized(row, gamma, decay)]
    assert_close(result.advantages, expected)
    assert result.returns is not None
    assert_close(
        result.returns, [a + t.old_value for a, t in zip(expected, (t for row in found for t in row), strict=True)]
    )


def test_with_lambda_1_the_returns_are_the_rewards() -> None:
    found = [[Token(old_value=0.3), Token(old_value=-0.2, advantage=2.0)], [Token(advantage=-1.0)]]

    returns = applied(found, kind="gae", gae_lambda=1.0).returns

    assert returns is not None
    assert_close(returns, [2.0, 2.0, -1.0])


@given(st.lists(st.tuples(st.floats(-2, 2), st.sampled_from([0.0, 0.5, 1.0])), max_size=40))
def test_decayed_sums_match_a_loop(found: list[tuple[float, float]]) -> None:
    expected, following = [], 0.0
    for value, decay in reversed(found):
        following = value + decay * following
        expected.append(following)
    values, decays = torch.tensor(found, dtype=torch.float64).reshape(-1, 2).unbind(1)

    assert_close(decayed_sums(values, decays), expected[::-1])


@given(rows)
def test_distillation_is_the_clipped_log_ratio_of_the_teacher(found: Rows) -> None:
    result = applied(found, kind="distillation")

    assert_close(
        result.advantages,
        [
            0.0 if math.exp(t.proximal) - math.exp(t.behaviour) < -0.2 else t.reference - t.proximal
            for row in found
            for t in row
        ],
    )


def test_distillation_can_add_to_the_reward_and_drops_unrecorded_tokens() -> None:
    found = [[Token(reference=-0.5), Token(reference=-0.5, behaviour=math.nan)]]

    result = applied(found, kind="distillation", coefficient=2.0, reward_coefficient=0.5)

    assert_close(result.advantages, [2 * 0.5 + 0.5, 0.0])


def test_token_advantages_declare_their_passes() -> None:
    assert token_advantages.build({"kind": "gae"}).needs == {Pass.VALUES}
    assert token_advantages.build({"kind": "distillation"}).needs == {Pass.TEACHER, Pass.PROXIMAL}
    assert token_advantages.build({"kind": "whitened"}).needs == frozenset()


def test_an_empty_share_keeps_its_dtype() -> None:
    batch = batch_of([[Token()], []])
    empty = batch.tokens.select(torch.zeros(0, dtype=torch.long))
    empty = replace(empty, advantages=empty.advantages.float())
    for kind in token_advantages.kinds():
        result = token_advantages.build({"kind": kind})(empty, batch.statistics.rows, SingleRank())
        assert len(result.advantages) == 0
