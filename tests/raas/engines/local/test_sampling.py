"""Tokens follow the distribution whose logprobs are reported."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astraflow.raas.engines.local.sampling import draw, log_distribution, random_uniforms

KEYS = np.arange(64, dtype=np.uint64) * np.uint64(2**57 + 12345)


def drawn(
    logits: list[float],
    *,
    temperature: float = 1.0,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    count: int = 4096,
) -> torch.Tensor:
    """Returns the share of each token among many draws, and the reported probabilities: `[2, vocabulary]`."""
    rows = torch.tensor(logits).expand(count, -1)
    cuts = [None if cut is None else torch.full((count,), cut) for cut in (top_p, top_k, min_p)]
    logprobs = log_distribution(rows, torch.full((count,), temperature), cuts[0], top_k=cuts[1], min_p=cuts[2])
    chances = random_uniforms(np.full(count, 7, dtype=np.uint64), np.arange(count, dtype=np.uint64))
    tokens = draw(logprobs, torch.from_numpy(chances))
    return torch.stack([torch.bincount(tokens, minlength=len(logits)) / count, logprobs[0].exp()])


def test_random_numbers_fill_the_unit_interval_evenly() -> None:
    numbers = random_uniforms(np.repeat(KEYS, 256), np.tile(np.arange(256, dtype=np.uint64), 64))

    assert ((numbers >= 0) & (numbers < 1)).all()
    counts, _ = np.histogram(numbers, bins=16, range=(0, 1))
    assert np.abs(counts / len(numbers) - 1 / 16).max() < 0.008
    assert len(np.unique(numbers)) == len(numbers)


def test_random_numbers_of_neighbouring_keys_and_positions_are_uncorrelated() -> None:
    table = random_uniforms(np.repeat(KEYS, 64), np.tile(np.arange(64, dtype=np.uint64), 64)).reshape(64, 64)

    for left, right in ((table[:-1], table[1:]), (table[:, :-1], table[:, 1:])):
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 0.06


def test_sampled_frequencies_match_the_reported_probabilities() -> None:
    for temperature in (0.5, 1.0, 2.0):
        shares, probabilities = drawn([0.0, 1.0, 2.0, -1.0], temperature=temperature)
        torch.testing.assert_close(shares, probabilities, atol=0.03, rtol=0)


def test_top_p_keeps_the_smallest_set_of_tokens_and_renormalises() -> None:
    shares, probabilities = drawn([2.0, 1.0, 0.0, -1.0], top_p=0.7)

    assert (probabilities > 0).tolist() == [True, True, False, False]
    assert (shares[2:] == 0).all()
    torch.testing.assert_close(probabilities.sum(), torch.tensor(1.0))
    torch.testing.assert_close(shares, probabilities, atol=0.03, rtol=0)


def test_top_k_keeps_k_tokens_and_renormalises() -> None:
    shares, probabilities = drawn([2.0, 1.0, 1.0, -1.0], top_k=2)

    assert (probabilities > 0).tolist() == [True, True, False, False]  # of equal ones, the first
    torch.testing.assert_close(probabilities.sum(), torch.tensor(1.0))
    torch.testing.assert_close(shares, probabilities, atol=0.03, rtol=0)


def test_min_p_keeps_tokens_relative_to_the_best_one() -> None:
    shares, probabilities = drawn([2.0, 1.0, 0.0, -1.0], min_p=0.2)  # e^-1 = 0.37, e^-2 = 0.14

    assert (probabilities > 0).tolist() == [True, True, False, False]
    torch.testing.assert_close(shares, probabilities, atol=0.03, rtol=0)


def test_each_row_has_its_own_truncation() -> None:
    rows = torch.tensor([2.0, 1.0, 0.0, -1.0]).expand(3, -1)
    top_k, min_p = torch.tensor([0, 1, 0]), torch.tensor([0.0, 0.0, 0.2])
    logprobs = log_distribution(rows, torch.ones(3), torch.tensor([1.0, 1.0, 0.1]), top_k=top_k, min_p=min_p)

    assert torch.isfinite(logprobs).tolist() == [[True] * 4, [True, False, False, False], [True, False, False, False]]
    torch.testing.assert_close(logprobs[0], rows[0].log_softmax(-1))


def test_any_top_p_keeps_the_best_token() -> None:
    _, probabilities = drawn([2.0, 1.0, 0.0], top_p=1e-9)

    assert probabilities.tolist() == [1.0, 0.0, 0.0]


@pytest.mark.long
@given(
    logits=st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=20),
    top_p=st.floats(0.01, 1.0),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_only_tokens_of_the_distribution_are_drawn(logits: list[float], top_p: float, chance: float) -> None:
    logprobs = log_distribution(torch.tensor([logits]), torch.ones(1), torch.tensor([top_p]))

    token = draw(logprobs, torch.tensor([chance], dtype=torch.float64))

    assert torch.isfinite(logprobs[0, token]).all()
