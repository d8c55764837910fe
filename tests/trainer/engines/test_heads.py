"""The chunked head has the values and gradients of the full head, and never its memory."""

import gc
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from astraflow.models.output_head import HeadForm
from astraflow.trainer.engines.heads import target_scores

PLAIN = HeadForm()


def full_scores(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None,
    temperature: float,
    form: HeadForm = PLAIN,
) -> tuple[Tensor, Tensor]:
    logits = torch.nn.functional.linear(hidden, weight, bias) * form.scale
    if form.bound is not None:
        logits = form.bound * torch.tanh(logits / form.bound)
    logs = (logits / temperature).log_softmax(-1)
    return logs.gather(-1, targets[:, None])[:, 0], -(logs.exp() * logs).sum(-1)


@pytest.mark.parametrize("chunk_bytes", [1, 5000, 1 << 24])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(
    ("has_bias", "form"),
    [(False, PLAIN), (True, PLAIN), (True, HeadForm(scale=1.7)), (False, HeadForm(scale=0.5, bound=1.5))],
)
def test_values_and_gradients_match_the_full_head(
    chunk_bytes: int, temperature: float, has_bias: bool, form: HeadForm
) -> None:
    random = torch.Generator().manual_seed(0)
    hidden = torch.randn(23, 12, generator=random).requires_grad_()
    weight = torch.randn(301, 12, generator=random).requires_grad_()
    bias = torch.randn(301, generator=random).requires_grad_() if has_bias else None
    targets = torch.randint(0, 301, (23,), generator=random)
    by_logprob, by_entropy = torch.randn(2, 23, generator=random)
    inputs = [hidden, weight, *([bias] if bias is not None else [])]

    results = []
    for logprobs, entropy in (
        target_scores(hidden, weight, targets, bias=bias, form=form, temperature=temperature, chunk_bytes=chunk_bytes),
        full_scores(hidden, weight, targets, bias, temperature, form),
    ):
        loss = (logprobs * by_logprob + entropy * by_entropy).sum()
        results.append([logprobs, entropy, *torch.autograd.grad(loss, inputs)])

    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("chunk_bytes", [5000, 1 << 24])
def test_several_targets_of_a_token_have_the_values_and_gradients_of_single_ones(chunk_bytes: int) -> None:
    random = torch.Generator().manual_seed(2)
    hidden, weight = (torch.randn(size, 12, generator=random).requires_grad_() for size in (9, 301))
    targets = torch.randint(0, 301, (9, 4), generator=random)
    weights = torch.randn(9, 4, generator=random)

    together, entropy = target_scores(hidden, weight, targets, temperature=0.7, chunk_bytes=chunk_bytes)
    apart = torch.stack([target_scores(hidden, weight, part, temperature=0.7)[0] for part in targets.T], 1)

    torch.testing.assert_close(together, apart)
    assert entropy.shape == (9,)
    for actual, expected in zip(
        *(torch.autograd.grad((values * weights).sum(), [hidden, weight]) for values in (together, apart)), strict=True
    ):
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("chunk_bytes", [5000, 1 << 24])
@pytest.mark.parametrize("form", [PLAIN, HeadForm(scale=0.5, bound=1.5)])
def test_a_distribution_over_kept_sets_has_the_values_and_gradients_of_their_logits_alone(
    chunk_bytes: int, form: HeadForm
) -> None:
    random = torch.Generator().manual_seed(4)
    hidden, weight = (torch.randn(size, 12, generator=random).requires_grad_() for size in (23, 301))
    support = torch.stack([torch.randperm(301, generator=random)[:7] for _ in range(23)])
    targets = support[:, :2].clone()
    for row, size in enumerate(torch.randint(0, 7, (23,), generator=random).tolist()):
        support[row, size:] = -1  # 0: all tokens are kept; 1: the sampled one alone
    by_logprob, by_entropy = torch.randn(23, 1, generator=random), torch.randn(23, generator=random)
    temperatures = torch.rand(23, 1, generator=random) + 0.5

    logprobs, entropy = target_scores(
        hidden, weight, targets[:, :1], support=support, form=form, temperature=temperatures, chunk_bytes=chunk_bytes
    )
    logits = torch.nn.functional.linear(hidden.double(), weight.double()) * form.scale
    logits = (logits if form.bound is None else form.bound * torch.tanh(logits / form.bound)) / temperatures
    alone = [logits[row, kept[kept >= 0] if kept[0] >= 0 else slice(None)] for row, kept in enumerate(support)]
    expected = torch.stack([logits[row, targets[row, :1]] - own.logsumexp(0) for row, own in enumerate(alone)])
    entropies = torch.stack([-(own.softmax(0) * own.log_softmax(0)).sum() for own in alone])

    torch.testing.assert_close((logprobs.double(), entropy.double()), (expected, entropies), atol=1e-5, rtol=1e-5)
    for actual, correct in zip(
        *(
            torch.autograd.grad((values * by_logprob).sum() + (spread * by_entropy).sum(), [hidden, weight])
            for values, spread in ((logprobs, entropy), (expected, entropies))
        ),
        strict=True,
    ):
        torch.testing.assert_close(actual, correct, atol=1e-5, rtol=1e-5)


def test_a_frozen_head_has_no_gradient_but_propagates_one() -> None:
    hidden = torch.randn(5, 4).requires_grad_()
    weight, targets = torch.randn(7, 4), torch.arange(5)

    target_scores(hidden, weight, targets)[0].sum().backward()

    assert weight.grad is None
    expected = torch.autograd.grad(full_scores(hidden, weight, targets, None, 1.0)[0].sum(), hidden)[0]
    torch.testing.assert_close(hidden.grad, expected)


def test_without_targets_there_are_no_scores_and_a_zero_gradient() -> None:
    hidden, weight = torch.randn(0, 4).requires_grad_(), torch.randn(7, 4).requires_grad_()

    logprobs, entropy = target_scores(hidden, weight, torch.zeros(0, dtype=torch.int64))
    (logprobs.sum() + entropy.sum()).backward()

    assert logprobs.shape == entropy.shape == (0,)
    assert weight.grad is not None
    assert not weight.grad.any()


def test_logits_of_rounded_weights_are_summed_in_float32() -> None:
    random = torch.Generator().manual_seed(1)
    hidden = torch.randn(9, 8, generator=random).to(torch.bfloat16)
    weight = torch.randn(50, 8, generator=random).to(torch.bfloat16)
    targets = torch.arange(9)

    logprobs, entropy = target_scores(hidden, weight, targets, chunk_bytes=200)

    expected = full_scores(hidden, weight, targets, None, 1.0)
    assert logprobs.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(logprobs, expected[0].float(), atol=5e-2, rtol=0)


class PeakMemory:
    """Samples the resident memory of this process."""

    def __enter__(self) -> "PeakMemory":
        gc.collect()
        self.before = self.peak = _resident()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.is_set():
            self.peak = max(self.peak, _resident())
            time.sleep(0.001)

    @property
    def growth_bytes(self) -> int:
        """Highest growth since the begin."""
        return self.peak - self.before


def _resident() -> int:
    """Returns the resident memory in bytes. Source: proc(5)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.long
@pytest.mark.timeout(300)
def test_memory_does_not_grow_with_tokens_times_vocabulary() -> None:
    tokens, vocabulary, size = 4096, 151_936, 64
    hidden = torch.randn(tokens, size).requires_grad_()
    weight = (torch.randn(vocabulary, size) * 0.1).requires_grad_()
    targets = torch.randint(0, vocabulary, (tokens,))
    gradients = (hidden.numel() + weight.numel()) * 4

    with PeakMemory() as memory:
        logprobs, entropy = target_scores(hidden, weight, targets)
        (logprobs.sum() + entropy.sum()).backward()

    assert memory.growth_bytes <= gradients + 200e6
