"""Measures of the mismatch between engine and trainer, and the bound at which training stops."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given

from astraflow.algorithms.config import AlgorithmConfig
from astraflow.algorithms.mismatch import MismatchSums, check_mismatch, measure_mismatch
from astraflow.algorithms.tokens import Ranks, TokenData
from astraflow.contract.errors import InvalidInput
from astraflow.contract.mismatch import mismatch_cause
from tests.algorithms.data import Rows, Token, batch_of, on_ranks, rows
from tests.errors import raises_code


def measured(token_rows: Rows, is_own: list[bool] | None = None) -> dict[str, float]:
    batch = batch_of(token_rows)
    tokens = replace(batch.tokens, is_own_version=torch.tensor(is_own)) if is_own else batch.tokens
    return measure_mismatch(batch.logprobs, tokens, rows=len(token_rows)).metrics(bound=None)


@pytest.mark.long
@given(rows)
def test_the_measures_match_their_formulas(token_rows: Rows) -> None:
    gaps = [t.logprob - t.behaviour for row in token_rows for t in row]
    ratios = [math.exp(gap) for gap in gaps]
    distance = math.fsum(abs(r - 1) for r in ratios)

    assert measured(token_rows) == pytest.approx(
        {
            "mismatch_k3": math.fsum(r - 1 - gap for r, gap in zip(ratios, gaps, strict=True)) / len(gaps),
            "mismatch_js": math.fsum((r * math.log(2 * r / (1 + r)) + math.log(2 / (1 + r))) / 2 for r in ratios)
            / len(gaps),
            "mismatch_factor": math.fsum(math.exp(abs(gap)) for gap in gaps) / len(gaps),
            "mismatch_sample_size": math.fsum(ratios) ** 2 / len(gaps) / math.fsum(r * r for r in ratios),
            "mismatch_cut": sum(not 0.5 <= r <= 5 for r in ratios) / len(gaps),
            "mismatch_mass": math.fsum(ratios) / len(gaps),
            "mismatch_one_sided": math.fsum(1 - r for r in ratios) / distance if distance > 1e-3 * len(gaps) else 0,
            "mismatch_max": max(map(abs, gaps)),
        },
        rel=1e-9,
        abs=1e-9,
    )


def test_only_tokens_of_the_own_version_with_a_recorded_logprob_are_measured() -> None:
    token_rows = [[Token(behaviour=-1.1), Token(behaviour=-3.0), Token(behaviour=math.nan)]]

    assert measured(token_rows, [True, False, True])["mismatch_max"] == pytest.approx(0.1)
    assert measured(token_rows, [False, False, False]) == {}
    assert measured([[]]) == {}


@pytest.mark.long
@given(rows)
def test_sums_do_not_depend_on_parts_and_ranks(token_rows: Rows) -> None:
    batch = batch_of(token_rows)

    def share(rank: int, count: int) -> tuple[torch.Tensor, TokenData]:
        mine = (batch.tokens.row_indices % count == rank).nonzero()[:, 0]
        return batch.logprobs[mine], batch.tokens.select(mine)

    def on_rank(rank: int, ranks: Ranks) -> MismatchSums:
        return measure_mismatch(*share(rank, 2), rows=len(token_rows)).over(ranks)

    whole = measure_mismatch(batch.logprobs, batch.tokens, rows=len(token_rows)).metrics(bound=0.5)
    parts = measure_mismatch(*share(0, 2), rows=len(token_rows)) + measure_mismatch(*share(1, 2), rows=len(token_rows))
    assert parts.metrics(bound=0.5) == pytest.approx(whole)
    for result in on_ranks(2, on_rank):
        assert result.metrics(bound=0.5) == pytest.approx(whole)


def test_training_stops_after_consecutive_steps_above_the_bound() -> None:
    config = AlgorithmConfig(max_mismatch=0.01, max_mismatch_steps=2)

    count = check_mismatch(0, {"mismatch_k3": 0.02}, config)
    assert count == 1
    assert check_mismatch(count, {}, config) == 1, "a step without own tokens says nothing"
    assert check_mismatch(count, {"mismatch_k3": 0.01}, config) == 0
    with raises_code(InvalidInput, "algorithm.mismatch", "0.01", "0.03", "in both directions"):
        check_mismatch(count, {"mismatch_k3": 0.03}, config)


def test_without_a_bound_training_continues() -> None:
    assert check_mismatch(0, {"mismatch_k3": 9.0}, AlgorithmConfig(max_mismatch=None, max_mismatch_steps=1)) == 0


def test_a_divergence_of_nan_counts_as_above_the_bound() -> None:
    assert check_mismatch(0, {"mismatch_k3": math.nan}, AlgorithmConfig()) == 1


def samples(seed: int, *, top_p: float = 1.0, noise: float = 0.0, temperature: float = 1.0) -> dict[str, float]:
    """Returns the metrics of 4,000 tokens, each of a distribution of its own; the engine differs in one way."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4000, 12, generator=generator, dtype=torch.float64) * 2
    served = (logits + noise * torch.randn(logits.shape, generator=generator, dtype=torch.float64)) / temperature
    engine = served.softmax(-1)
    ordered = engine.sort(descending=True)
    is_kept = torch.zeros_like(engine, dtype=torch.bool)
    is_kept.scatter_(1, ordered.indices, ordered.values.cumsum(-1) - ordered.values < top_p)
    engine = engine.where(is_kept, 0.0)
    engine /= engine.sum(-1, keepdim=True)
    chosen = torch.multinomial(engine, 1, generator=generator)
    batch = batch_of([[Token() for _ in range(len(chosen))]])
    tokens = replace(
        batch.tokens,
        behaviour_logprobs=engine.gather(1, chosen)[:, 0].log(),
        is_own_version=torch.ones(len(chosen), dtype=torch.bool),
    )
    return measure_mismatch(logits.log_softmax(-1).gather(1, chosen)[:, 0], tokens, rows=1).metrics(bound=0.02)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("engine", "cause"),
    [
        ({"top_p": 0.9}, "mismatch_filtered"),
        ({"top_p": 0.9, "noise": 0.01}, "mismatch_filtered"),
        ({"noise": 0.3}, "mismatch_unexplained"),
        ({"noise": 1.0}, "mismatch_unexplained"),
        ({"temperature": 0.7}, "mismatch_unexplained"),
    ],
    ids=str,
)
def test_a_filter_is_told_from_other_differences(engine: dict[str, float], cause: str, seed: int) -> None:
    metrics = samples(seed, **engine)

    assert metrics["mismatch_of_bound"] == pytest.approx(metrics["mismatch_k3"] / 0.02)
    assert mismatch_cause(metrics)[0] == cause
