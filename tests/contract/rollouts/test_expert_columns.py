"""Experts of tokens as bytes: one or two for each, absent rows, and columns that are those of another mixture."""

import numpy as np
import pytest

from astraflow.contract.rollouts.expert_columns import decoded_experts, encoded_experts, has_other_experts
from astraflow.contract.rollouts.recording import Mixture
from astraflow.contract.rollouts.token_columns import TokenColumn, joined_columns

SMALL = Mixture(layers=3, chosen=2, experts=256)
LARGE = Mixture(layers=3, chosen=2, experts=257)


@pytest.mark.parametrize(("mixture", "width"), [(SMALL, 6), (LARGE, 12)])
def test_the_bytes_of_a_column_hold_all_experts(mixture: Mixture, width: int) -> None:
    chosen = np.arange(mixture.experts - 12, mixture.experts).reshape(2, 3, 2)
    column = encoded_experts(chosen, mixture)
    assert column.dtype == np.uint8
    assert (column.shape, mixture.width) == ((2, width), width)
    np.testing.assert_array_equal(decoded_experts(column, mixture), chosen)
    assert not has_other_experts(column, mixture).any()


@pytest.mark.parametrize("mixture", [SMALL, LARGE])
def test_tokens_without_experts_and_columns_padded_to_a_larger_mixture_are_valid(mixture: Mixture) -> None:
    larger = Mixture(layers=9, chosen=4, experts=8)
    parts = [
        ({TokenColumn.EXPERTS: encoded_experts(np.ones((1, 3, 2), int), mixture)}, 1),
        ({TokenColumn.EXPERTS: encoded_experts(np.zeros((1, 9, 4), int), larger)}, 1),
        ({}, 1),
    ]
    column = joined_columns(parts)[TokenColumn.EXPERTS]
    assert has_other_experts(column, mixture).tolist() == [False, True, False]
    assert decoded_experts(column, mixture)[[0, 2]].reshape(2, -1).tolist() == [[1] * 6, [-1] * 6]


@pytest.mark.parametrize("mixture", [Mixture(layers=3, chosen=2, experts=8), LARGE])
def test_experts_of_another_mixture_are_invalid(mixture: Mixture) -> None:
    valid = encoded_experts(np.zeros((3, 3, 2), int), mixture)
    beyond = valid.copy()
    beyond[1, 1] = 8
    wider = np.concatenate([valid, np.zeros((3, 1), np.uint8)], 1)
    assert has_other_experts(beyond, mixture).tolist() == [False, True, False]
    assert has_other_experts(wider, mixture).all()
    assert has_other_experts(valid[:, :-1], mixture).all()
    with pytest.raises(ValueError, match="experts 0 to 257"):
        encoded_experts(np.full((1, 3, 2), 257) * np.arange(2), mixture)
    with pytest.raises(ValueError, match="shape"):
        encoded_experts(np.zeros((1, 2, 2), int), mixture)
