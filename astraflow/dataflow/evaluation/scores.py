"""Scores of a policy from a few samples of each prompt: pure functions over rewards and answers.

Every figure is a mean over prompts. The samples of one prompt are correlated, so a prompt counts as one observation in
the standard error, however many samples it has. Failed samples are left out: a prompt may have fewer than others.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb, sqrt
from typing import TypeAlias

from astraflow.contract.ids import PolicyId


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One policy's reward and answer in one sample of a prompt."""

    reward: float
    answer: str = ""
    """Empty when there is none; it then has no vote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over prompts."""

    value: float
    error: float | None
    """Standard error; None for a single prompt."""


Samples: TypeAlias = Sequence[Sample]
"""Samples of one prompt."""

Slot: TypeAlias = tuple[PolicyId, str]
"""Policy and role; the role is empty when the workflow names none."""


def samples_by_slot(prompts: Sequence[Iterable[Mapping[Slot, Sample]]]) -> dict[Slot, list[Samples]]:
    """Returns the samples of every prompt for each policy and role that took part in a sample."""
    slots = dict.fromkeys(slot for prompt in prompts for sample in prompt for slot in sample)
    return {slot: [[sample[slot] for sample in prompt if slot in sample] for prompt in prompts] for slot in slots}


def score_name(role: str, figure: str) -> str:
    """Returns the name of a figure, with the role before it when there is one.

    >>> score_name("verifier", "avg@4"), score_name("", "avg@4")
    ('verifier.avg@4', 'avg@4')
    """
    return f"{role}.{figure}" if role else figure


def figures(samples: int) -> tuple[str, ...]:
    """Returns the names of all figures; `maj@k` needs answers.

    >>> figures(4)
    ('avg@4', 'pass@1', 'pass@2', 'pass@4', 'maj@4')
    """
    return (f"avg@{samples}", *(f"pass@{k}" for k in _powers_up_to(samples)), f"maj@{samples}")


def scores(prompts: Iterable[Samples], *, samples: int, correct_threshold: float) -> dict[str, Estimate]:
    """Returns every figure by name: `avg@k`, `pass@1`, `pass@2`, `pass@4` ... `pass@k`, and `maj@k`.

    samples: k, the samples of a prompt when none failed. correct_threshold: the smallest reward of a correct answer.
    A figure that no prompt has is left out: `pass@k` when every prompt has a failed sample, `maj@k` without answers.

    >>> sure, unsure = Sample(reward=1, answer="4"), Sample(reward=0, answer="5")
    >>> estimates = scores([[sure, unsure], [sure, sure]], samples=2, correct_threshold=0.5)
    >>> {name: estimate.value for name, estimate in estimates.items()}
    {'avg@2': 0.75, 'pass@1': 0.75, 'pass@2': 1.0, 'maj@2': 0.75}
    """
    values = values_by_figure(prompts, samples=samples, correct_threshold=correct_threshold)
    return {name: estimate(of_prompts) for name, of_prompts in values.items()}


def values_by_figure(prompts: Iterable[Samples], *, samples: int, correct_threshold: float) -> dict[str, list[float]]:
    """Returns the value of every figure for each prompt that has it; the arguments are those of `scores`."""
    sampled = [prompt for prompt in prompts if prompt]
    has_answers = any(sample.answer for prompt in sampled for sample in prompt)
    figures: dict[str, Callable[[Samples], float | None]] = {f"avg@{samples}": average}
    for k in _powers_up_to(samples):
        figures[f"pass@{k}"] = _passing(k, correct_threshold)
    if has_answers:
        figures[f"maj@{samples}"] = lambda prompt: majority(prompt, correct_threshold=correct_threshold)
    measured = {name: [figure(prompt) for prompt in sampled] for name, figure in figures.items()}
    values = {name: [value for value in figure_values if value is not None] for name, figure_values in measured.items()}
    return {name: figure_values for name, figure_values in values.items() if figure_values}


def average(prompt: Samples) -> float:
    """Returns the mean reward."""
    return sum(sample.reward for sample in prompt) / len(prompt)


def pass_at(k: int, *, samples: int, correct: int) -> float | None:
    """Returns the probability that at least one of `k` answers is correct, when `correct` of `samples` were.

    This is the share of all subsets of size k with a correct answer: an unbiased estimate, unlike "1 minus the k-th
    power of the share of wrong answers". None if k exceeds the number of samples.
    Source: Chen et al., arXiv:2107.03374, section 2.1.

    >>> pass_at(1, samples=4, correct=1), pass_at(2, samples=4, correct=1), pass_at(4, samples=4, correct=1)
    (0.25, 0.5, 1.0)
    """
    if k > samples:
        return None
    return 1.0 - comb(samples - correct, k) / comb(samples, k)


def majority(prompt: Samples, *, correct_threshold: float) -> float:
    """Returns the probability that the most frequent answer is correct; ties are broken by chance.

    A sample without an answer has no vote; without any vote the result is 0.
    Source: self-consistency, Wang et al., arXiv:2203.11171.

    >>> votes = [Sample(reward=1, answer="4"), Sample(reward=0, answer="5"), Sample(reward=0)]
    >>> majority(votes, correct_threshold=0.5), majority([*votes, votes[0]], correct_threshold=0.5)
    (0.5, 1.0)
    """
    votes = Counter(sample.answer for sample in prompt if sample.answer)
    if not votes:
        return 0.0
    max_votes = max(votes.values())
    winners = {answer for answer, count in votes.items() if count == max_votes}
    # A reward may score equal answers differently, by their form for example: it counts by its correct share.
    winning_samples = [sample for sample in prompt if sample.answer in winners]
    return _right(winning_samples, correct_threshold) / len(winning_samples)


def estimate(values: Sequence[float]) -> Estimate:
    """Returns the mean of at least one value with its standard error.

    >>> estimate([0.0, 1.0])
    Estimate(value=0.5, error=0.5)
    """
    mean = sum(values) / len(values)
    if len(values) == 1:
        return Estimate(value=mean, error=None)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return Estimate(value=mean, error=sqrt(variance / len(values)))


def _passing(k: int, correct_threshold: float) -> Callable[[Samples], float | None]:
    return lambda prompt: pass_at(k, samples=len(prompt), correct=_right(prompt, correct_threshold))


def _right(prompt: Samples, correct_threshold: float) -> int:
    return sum(sample.reward >= correct_threshold for sample in prompt)


def _powers_up_to(samples: int) -> list[int]:
    """Returns 1, 2, 4 ... and `samples` itself."""
    powers = [2**exponent for exponent in range(samples.bit_length()) if 2**exponent < samples]
    return [*powers, samples]
