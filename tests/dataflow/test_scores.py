"""Scores compared with slow and obvious ways to compute them."""

import itertools
import random
from fractions import Fraction
from statistics import fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.dataflow.evaluation.scores import Estimate, Sample, Samples, majority, pass_at, scores

RIGHT_FROM = 0.5

answers = st.sampled_from(["", "a", "b", "c"])
samples_of_a_prompt = st.lists(
    st.builds(Sample, reward=st.sampled_from([0.0, 0.25, 0.5, 1.0]), answer=answers), min_size=1, max_size=7
)


def is_right(sample: Sample) -> bool:
    return sample.reward >= RIGHT_FROM


def pass_by_trying(prompt: Samples, k: int) -> Fraction:
    """Counts the sets of k answers that contain a correct one, over all such sets."""
    drawn = list(itertools.combinations(prompt, k))
    return Fraction(sum(any(is_right(sample) for sample in chosen) for chosen in drawn), len(drawn))


def majority_by_trying(prompt: Samples) -> float:
    """Holds the vote, then draws at random among the winners and among the samples with that answer."""
    given_answers = sorted({sample.answer for sample in prompt} - {""})
    counts = {answer: sum(sample.answer == answer for sample in prompt) for answer in given_answers}
    winners = [answer for answer in given_answers if counts[answer] == max(counts.values())]
    if not winners:
        return 0.0
    chances = [
        Fraction(sum(is_right(sample) for sample in prompt if sample.answer == winner), counts[winner])
        for winner in winners
    ]
    return float(sum(chances, Fraction(0)) / len(winners))


@pytest.mark.long
@given(prompt=samples_of_a_prompt, k=st.integers(1, 8))
def test_pass_at_k_matches_enumeration(prompt: Samples, k: int) -> None:
    estimate = pass_at(k, samples=len(prompt), correct=sum(map(is_right, prompt)))
    assert estimate is None if k > len(prompt) else estimate == pytest.approx(float(pass_by_trying(prompt, k)))


@pytest.mark.long
@given(prompt=samples_of_a_prompt)
def test_the_majority_score_matches_enumeration(prompt: Samples) -> None:
    assert majority(prompt, correct_threshold=RIGHT_FROM) == pytest.approx(majority_by_trying(prompt))


@pytest.mark.long
@given(prompt=samples_of_a_prompt, order=st.randoms())
def test_the_order_of_samples_does_not_matter(prompt: list[Sample], order: random.Random) -> None:
    shuffled = list(prompt)
    order.shuffle(shuffled)
    assert majority(shuffled, correct_threshold=RIGHT_FROM) == majority(prompt, correct_threshold=RIGHT_FROM)


@pytest.mark.long
@settings(max_examples=60)
@given(prompts=st.lists(samples_of_a_prompt | st.just([]), max_size=6), samples=st.integers(1, 9))
def test_scores_are_means_over_prompts_with_standard_errors(prompts: list[list[Sample]], samples: int) -> None:
    round_scores = scores(prompts, samples=samples, correct_threshold=RIGHT_FROM)
    sampled = [prompt for prompt in prompts if prompt]
    means = [fmean(sample.reward for sample in prompt) for prompt in sampled]
    assert round_scores.get(f"avg@{samples}") == approximately(means)
    for k in (1, 2, 4, 8, samples):
        values = [float(pass_by_trying(prompt, k)) for prompt in sampled if len(prompt) >= k]
        assert k > samples or round_scores.get(f"pass@{k}") == approximately(values)
    has_answers = any(sample.answer for prompt in sampled for sample in prompt)
    votes = [majority_by_trying(prompt) for prompt in sampled] if has_answers else []
    assert round_scores.get(f"maj@{samples}") == approximately(votes)
    assert len(round_scores) <= 2 + len({1, 2, 4, 8, samples})


@pytest.mark.long
@given(prompt=samples_of_a_prompt)
def test_pass_at_k_does_not_decrease_with_k(prompt: Samples) -> None:
    round_scores = scores([prompt], samples=len(prompt), correct_threshold=RIGHT_FROM)
    passes = [round_scores[name].value for name in round_scores if name.startswith("pass@")]
    assert passes == sorted(passes)


def test_a_tied_vote_scores_its_expected_value() -> None:
    tie = [Sample(reward=1.0, answer="4"), Sample(reward=0.0, answer="5"), Sample(reward=0.0, answer="6")]
    assert majority(tie, correct_threshold=RIGHT_FROM) == pytest.approx(1 / 3)


def test_a_single_prompt_has_no_standard_error() -> None:
    round_scores = scores([[Sample(reward=0.5)]], samples=1, correct_threshold=RIGHT_FROM)
    assert round_scores == {"avg@1": Estimate(value=0.5, error=None), "pass@1": Estimate(value=1.0, error=None)}


def approximately(values: list[float]) -> object:
    """Matches an estimate of the mean of these values; None without values."""
    if not values:
        return None
    error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
    return _Near(fmean(values), error)


class _Near:
    def __init__(self, value: float, error: float | None) -> None:
        self._value, self._error = value, error

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Estimate)
            and other.value == pytest.approx(self._value)
            and (other.error is None if self._error is None else other.error == pytest.approx(self._error, abs=1e-6))
        )

    __hash__ = None  # type: ignore[assignment]  # compared, never stored
