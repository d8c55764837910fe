"""Token advantages equal those of a loop, on any number of ranks."""

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
from tests.algorithms.data import Rows, TestBatch, Token, assert_close, batch_of, on_ranks, rows


def applied(token_rows: Rows, **spec: object) -> TokenData:
    batch = batch_of(token_rows)
    return token_advantages.build(spec)(batch.tokens, batch.statistics.rows, SingleRank())


@pytest.mark.long
@given(rows)
def test_turn_discount_decays_with_the_following_turns(token_rows: Rows) -> None:
    expected = [
        t.advantage * 0.9 ** ((len(row) - 1) // 2 - position // 2)
        for row in token_rows
        for position, t in enumerate(row)
    ]

    assert_close(applied(token_rows, kind="turn_discount", gamma=0.9).advantages, expected)


Turns = tuple[float | None, float | None]
"""Reward and discount of a turn; None in rows without turn rewards."""


def with_turns(token_rows: Rows, turns: list[list[Turns]]) -> TestBatch:
    """Returns the batch with turn rewards and discounts; a turn has two tokens, the last of a row one or two."""
    batch = batch_of(token_rows)
    turn_of_tokens = [
        turns[row][position // 2] for row, tokens in enumerate(token_rows) for position in range(len(tokens))
    ]
    return replace(
        batch,
        tokens=replace(
            batch.tokens,
            turn_rewards=torch.tensor([reward or 0.0 for reward, _ in turn_of_tokens], dtype=torch.float64),
            turn_discounts=torch.tensor([1.0 if d is None else d for _, d in turn_of_tokens], dtype=torch.float64),
        ),
    )


@st.composite
def turns_of_rows(draw: st.DrawFn) -> tuple[Rows, list[list[Turns]]]:
    """Returns rows, and rewards and discounts of their turns; some rows have neither."""
    token_rows = draw(rows)
    number, share = st.floats(-2, 2), st.sampled_from([0.0, 0.5, 0.9, 1.0])
    turns: list[list[Turns]] = []
    for row in token_rows:
        count, has_turns = (len(row) + 1) // 2, draw(st.booleans())
        turns.append([(draw(number), draw(share)) if has_turns else (None, None) for _ in range(count)])
    return token_rows, turns


def returns_of(row: list[Token], turns: list[Turns]) -> list[float]:
    """Returns the return of each turn by its definition: every later reward times the discounts between them."""
    rewards = [reward or 0.0 for reward, _ in turns]
    rewards[-1] += row[-1].advantage - sum(rewards)
    discounts = [1.0 if discount is None else discount for _, discount in turns]
    return [
        sum(math.prod(discounts[turn:later]) * rewards[later] for later in range(turn, len(turns)))
        for turn in range(len(turns))
    ]


def with_row_rewards(token_rows: Rows) -> Rows:
    """Returns the rows with the same advantage in all tokens of a row, as at the beginning of a step."""
    return [[token._replace(advantage=row[-1].advantage) for token in row] for row in token_rows]


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("per_slot", [False, True])
@given(drawn=turns_of_rows())
def test_turn_returns_match_their_definition_on_any_number_of_ranks(
    count: int, per_slot: bool, drawn: tuple[Rows, list[list[Turns]]]
) -> None:
    token_rows, turns = with_row_rewards(drawn[0]), drawn[1]
    batch = with_turns(token_rows, turns)
    groups, slots = [row // 3 for row in range(len(token_rows))], [row % 2 for row in range(len(token_rows))]
    data = replace(batch.statistics.rows, groups=torch.tensor(groups), slots=torch.tensor(slots))
    advantage = token_advantages.build({"kind": "turn_returns", "per_slot": per_slot})
    returns = [returns_of(row, turns[index]) if row else [] for index, row in enumerate(token_rows)]
    keys = [(group, slot if per_slot else 0) for group, slot in zip(groups, slots, strict=True)]
    baselines = {
        key: statistics.fmean(
            statistics.fmean(values) for values, own in zip(returns, keys, strict=True) if own == key and values
        )
        for index, key in enumerate(keys)
        if returns[index]
    }
    expected = torch.tensor(
        [
            returns[row][position // 2] - baselines[keys[row]]
            for row, tokens in enumerate(token_rows)
            for position in range(len(tokens))
        ],
        dtype=torch.float64,
    )

    def share(rank: int, ranks: Ranks) -> torch.Tensor:
        mine = batch.tokens.select((batch.tokens.row_indices % count == rank).nonzero()[:, 0])
        return advantage(mine, data, ranks).advantages

    for rank, result in enumerate(on_ranks(count, share)):
        assert_close(result, expected[batch.tokens.row_indices % count == rank])


def test_turn_returns_without_turn_rewards_are_the_centred_rewards() -> None:
    token_rows = [[Token(advantage=1.0)] * 5, [Token(advantage=0.0)] * 2, [Token(advantage=0.5)]]

    assert_close(applied(token_rows, kind="turn_returns").advantages, [0.5] * 5 + [-0.5] * 2 + [0.0])
    assert_close(applied(token_rows, kind="turn_returns", baseline="none").advantages, [1.0] * 5 + [0.0] * 2 + [0.5])


@pytest.mark.long
@given(turns_of_rows())
def test_gae_places_turn_rewards_at_the_ends_of_turns(drawn: tuple[Rows, list[list[Turns]]]) -> None:
    token_rows, turns = with_row_rewards(drawn[0]), drawn[1]
    batch = with_turns(token_rows, turns)
    gamma, decay = 0.9, 0.8

    result = token_advantages.build({"kind": "gae", "gamma": gamma, "gae_lambda": decay})(
        batch.tokens, batch.statistics.rows, SingleRank()
    )

    expected = []
    for row, own in zip(token_rows, turns, strict=True):
        following, advantage, advantages = 0.0, 0.0, []
        rest = (row[-1].advantage if row else 0.0) - sum(reward or 0.0 for reward, _ in own)
        for position in reversed(range(len(row))):
            is_last, (reward, discount) = position == len(row) - 1, own[position // 2]
            is_turn_end = is_last or position % 2 == 1
            weight = gamma * (1.0 if discount is None or not is_turn_end else discount) * (not is_last)
            gained = (reward or 0.0) * is_turn_end + rest * is_last
            advantage = gained + weight * following - row[position].old_value + weight * decay * advantage
            following = row[position].old_value
            advantages.append(advantage)
        expected += advantages[::-1]
    assert_close(result.advantages, expected)


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 2, 4])
@given(token_rows=rows)
def test_whitened_advantages_do_not_depend_on_the_number_of_ranks(count: int, token_rows: Rows) -> None:
    batch, whitened = batch_of(token_rows), token_advantages.build({"kind": "whitened"})
    values = [t.advantage for row in token_rows for t in row]
    mean, spread = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0

    def share(rank: int, ranks: Ranks) -> torch.Tensor:
        mine = batch.tokens.select((batch.tokens.row_indices % count == rank).nonzero()[:, 0])
        return whitened(mine, batch.statistics.rows, ranks).advantages

    result = on_ranks(count, share)

    expected = torch.tensor([(value - mean) / (spread + 1e-8) for value in values], dtype=torch.float64)
    for rank, rank_values in enumerate(result):
        # Equal values have a spread of rounding errors only, which the reference does not share.
        if spread > 1e-6:
            assert_close(rank_values, expected[batch.tokens.row_indices % count == rank])


def generalized(row: list[Token], gamma: float, decay: float) -> list[float]:
    """Sums the discounted differences, with the reward at the last token (Schulman et al., equation 16)."""
    values = [*(t.old_value for t in row), 0.0]
    rewards = [0.0] * (len(row) - 1) + [t.advantage for t in row[-1:]]
    deltas = [rewards[t] + gamma * values[t + 1] - values[t] for t in range(len(row))]
    return [sum((gamma * decay) ** (k - t) * deltas[k] for k in range(t, len(row))) for t in range(len(row))]


@pytest.mark.long
@pytest.mark.parametrize(("gamma", "decay"), [(1.0, 0.95), (0.9, 0.5), (1.0, 1.0), (0.99, 0.0)])
@given(token_rows=rows)
def test_gae_matches_its_formula(gamma: float, decay: float, token_rows: Rows) -> None:
    result = applied(token_rows, kind="gae", gamma=gamma, gae_lambda=decay)

    expected = [value for row in token_rows for value in generalized(row, gamma, decay)]
    assert_close(result.advantages, expected)
    assert result.returns is not None
    assert_close(
        result.returns, [a + t.old_value for a, t in zip(expected, (t for row in token_rows for t in row), strict=True)]
    )


def test_with_lambda_1_the_returns_are_the_rewards() -> None:
    token_rows = [[Token(old_value=0.3), Token(old_value=-0.2, advantage=2.0)], [Token(advantage=-1.0)]]

    returns = applied(token_rows, kind="gae", gae_lambda=1.0).returns

    assert returns is not None
    assert_close(returns, [2.0, 2.0, -1.0])


@given(st.lists(st.tuples(st.floats(-2, 2), st.sampled_from([0.0, 0.5, 1.0])), max_size=40))
def test_decayed_sums_match_a_loop(token_rows: list[tuple[float, float]]) -> None:
    expected, following = [], 0.0
    for value, decay in reversed(token_rows):
        following = value + decay * following
        expected.append(following)
    values, decays = torch.tensor(token_rows, dtype=torch.float64).reshape(-1, 2).unbind(1)

    assert_close(decayed_sums(values, decays), expected[::-1])


@pytest.mark.long
@given(rows)
def test_distillation_is_the_clipped_log_ratio_of_the_teacher(token_rows: Rows) -> None:
    result = applied(token_rows, kind="distillation")

    assert_close(
        result.advantages,
        [
            0.0 if math.exp(t.proximal) - math.exp(t.behaviour) < -0.2 else t.reference - t.proximal
            for row in token_rows
            for t in row
        ],
    )


def test_distillation_can_add_to_the_reward_and_drops_unrecorded_tokens() -> None:
    token_rows = [[Token(reference=-0.5), Token(reference=-0.5, behaviour=math.nan)]]

    result = applied(token_rows, kind="distillation", coefficient=2.0, reward_coefficient=0.5)

    assert_close(result.advantages, [2 * 0.5 + 0.5, 0.0])


def test_a_token_that_the_teacher_cannot_write_has_no_advantage() -> None:
    token_rows = [[Token(reference=-math.inf), Token(reference=math.nan), Token(reference=-0.5)]]

    assert_close(applied(token_rows, kind="distillation").advantages, [0.0, 0.0, 0.5])


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
