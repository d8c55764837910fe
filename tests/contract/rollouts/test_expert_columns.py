"""Experts of tokens as numbers of sets, absent rows, and columns that are those of another mixture."""

import numpy as np
import pytest

from astraflow.contract.rollouts.expert_columns import decoded_experts, encoded_experts, has_other_experts
from astraflow.contract.rollouts.recording import Mixture
from astraflow.contract.rollouts.token_columns import TokenColumn, joined_columns

SMALL = Mixture(layers=3, chosen=2, experts=256)
LARGE = Mixture(layers=3, chosen=2, experts=2570)


@pytest.mark.parametrize(
    ("mixture", "width"),
    [
        (SMALL, 6),  # 15 bits a layer
        (Mixture(layers=48, chosen=8, experts=128), 246),  # 41
        (Mixture(layers=4, chosen=10, experts=512), 39),  # 69 would be too many: 39 and 39
        (Mixture(layers=2, chosen=3, experts=3), 1),  # always the same set
        (Mixture(layers=2, chosen=1, experts=1), 1),
    ],
    ids=str,
)
def test_the_bytes_of_a_column_hold_the_sets_of_experts(mixture: Mixture, width: int) -> None:
    draws = np.random.default_rng(0)
    scores = draws.random((1030, mixture.layers, mixture.experts))
    chosen = np.argsort(scores, -1)[..., : mixture.chosen]
    chosen[0] = np.arange(mixture.chosen)
    chosen[1] = np.arange(mixture.experts - mixture.chosen, mixture.experts)
    column = encoded_experts(chosen, mixture)
    assert column.dtype == np.uint8
    assert (column.shape, mixture.width) == ((1030, width), width)
    np.testing.assert_array_equal(decoded_experts(column, mixture), np.sort(chosen, -1))
    assert not has_other_experts(column, mixture).any()
    assert encoded_experts(chosen[:0], mixture).shape == (0, width)


def test_numbers_beyond_all_sets_and_layers_without_a_set_have_no_experts() -> None:
    mixture = Mixture(layers=2, chosen=2, experts=8)  # 28 sets, 5 bits
    numbers = np.array([[0, 27], [28, 30], [31, 1]])
    column = np.packbits([[int(bit) for number in row for bit in f"{number:05b}"] for row in numbers], axis=1)
    assert decoded_experts(column, mixture).tolist() == [[[0, 1], [6, 7]], [[-1, -1], [-1, -1]], [[-1, -1], [0, 2]]]
    same = encoded_experts(np.array([[[5, 5], [3, 1]]]), mixture)
    assert decoded_experts(same, mixture).tolist() == [[[-1, -1], [1, 3]]]


@pytest.mark.parametrize("mixture", [SMALL, LARGE])
def test_tokens_without_experts_and_columns_padded_to_a_larger_mixture_are_valid(mixture: Mixture) -> None:
    larger = Mixture(layers=18, chosen=4, experts=8)
    parts = [
        ({TokenColumn.EXPERTS: encoded_experts(np.tile([0, 1], (1, 3, 1)), mixture)}, 1),
        ({TokenColumn.EXPERTS: encoded_experts(np.tile(np.arange(4), (1, 18, 1)), larger)}, 1),
        ({}, 1),
    ]
    column = joined_columns(parts)[TokenColumn.EXPERTS]
    assert has_other_experts(column, mixture).tolist() == [False, True, False]
    assert decoded_experts(column, mixture)[[0, 2]].reshape(2, -1).tolist() == [[0, 1] * 3, [-1] * 6]


def test_experts_of_another_mixture_are_invalid() -> None:
    mixture = Mixture(layers=3, chosen=2, experts=257)
    valid = encoded_experts(np.tile([0, 1], (3, 3, 1)), mixture)
    wider = np.concatenate([valid, np.array([[255], [0], [255]], np.uint8)], 1)
    assert has_other_experts(wider, mixture).tolist() == [False, True, False]
    assert has_other_experts(valid[:, :-1], mixture).all()
    with pytest.raises(ValueError, match="experts 0 to 257"):
        encoded_experts(np.full((1, 3, 2), 257) * np.arange(2), mixture)
    with pytest.raises(ValueError, match="shape"):
        encoded_experts(np.zeros((1, 2, 2), int), mixture)
