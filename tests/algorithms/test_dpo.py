"""DPO against its formula on pairs, and over splits that separate the rows of a pair."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astraflow.algorithms.losses import losses
from tests.algorithms.data import Rows, Token, assert_close, batch_of, close, outcome, rows


def reference(token_rows: Rows, groups: list[int], slots: list[int], beta: float) -> tuple[float, list[float]]:
    """Returns the loss, and its derivative by each token's logprob."""
    gains = [sum(t.logprob - t.reference for t in row) for row in token_rows]
    pairs = [
        (chosen, rejected)
        for chosen, rejected in itertools.permutations(range(len(token_rows)), 2)
        if (groups[chosen], slots[chosen]) == (groups[rejected], slots[rejected])
        and token_rows[chosen]
        and token_rows[rejected]
        and token_rows[chosen][0].advantage > token_rows[rejected][0].advantage
    ]
    loss, slopes = 0.0, [0.0] * len(token_rows)
    for chosen, rejected in pairs:
        margin = beta * (gains[chosen] - gains[rejected])
        loss += math.log1p(math.exp(-margin)) / len(pairs)
        slope = -beta / (1 + math.exp(margin)) / len(pairs)
        slopes[chosen] += slope
        slopes[rejected] -= slope
    return loss, [slopes[row] for row, tokens in enumerate(token_rows) for _ in tokens]


@pytest.mark.long
@given(token_rows=rows, data=st.data())
def test_the_loss_is_the_mean_over_pairs(token_rows: Rows, data: st.DataObject) -> None:
    count = len(token_rows)
    groups = data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    slots = data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    same = [[t._replace(advantage=row[0].advantage) for t in row] for row in token_rows]
    batch = batch_of(same, groups=groups, slots=slots)

    whole = outcome(losses.build({"kind": "dpo"}), batch)
    apart = outcome(losses.build({"kind": "dpo"}), batch, [[[row]] for row in range(count)])

    loss, slopes = reference(same, groups, slots, 0.1)
    for result in (whole, apart):
        assert close(result.loss, loss)
        assert_close(result.logprob_grad, slopes)
    assert apart.metrics == pytest.approx(whole.metrics)


def test_equal_rewards_make_no_pair() -> None:
    third = 1 / 3
    token_rows = [[Token(advantage=third, logprob=-0.5)] * length for length in (1, 3, 7, 49)]

    result = outcome(losses.build({"kind": "dpo"}), batch_of(token_rows))

    assert result.loss == 0
    assert not result.logprob_grad.any()


def test_metrics_are_means_over_pairs() -> None:
    better, worse = [Token(advantage=1.0, logprob=-0.5)] * 3, [Token(advantage=0.0, logprob=-2.0)]
    batch = batch_of([better, worse, worse])

    result = outcome(losses.build({"kind": "dpo"}), batch)

    assert result.metrics["dpo_accuracy"] / batch.statistics.tokens == pytest.approx(1)
    assert result.metrics["dpo_margin"] / batch.statistics.tokens == pytest.approx(0.1 * (3 * 0.5 + 1.0))
    undecided = outcome(losses.build({"kind": "dpo"}), batch_of([[Token(advantage=1.0)], [Token(advantage=0.0)]]))
    assert undecided.metrics["dpo_accuracy"] == 0, "equal implied rewards are not right"


def test_a_batch_without_pairs_has_no_gradient() -> None:
    result = outcome(losses.build({"kind": "dpo"}), batch_of([[Token()], [Token()]]))

    assert (result.loss, torch.count_nonzero(result.logprob_grad).item()) == (0.0, 0)
