"""Batches of every kind of model have the values of each sequence alone, whatever runs beside it."""

import asyncio
from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Sequences

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.generation import Sampling
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array
from astraflow.raas.engines.local.batcher import Batcher, BatchLimits
from astraflow.raas.engines.local.choice import exact_batcher
from astraflow.raas.engines.local.lockstep import LockstepBatcher, RecomputingBatcher
from astraflow.raas.engines.local.sequences import Sequence
from astraflow.raas.engines.local.slots import SlotBatcher
from benchmarks.model_families.configurations import VOCABULARY, tiny_model
from tests.errors import raises_code

LIMITS = BatchLimits(sequences=32, cache_tokens=4096, prefill_tokens=1024, prefix_bytes=2**24)

WAYS = {
    "qwen3": "slots",
    "qwen3_5_text": "slots",
    "qwen3_next": "slots",
    "gpt_oss": "slots",
    "falcon_h1": "slots",
    "nemotron_h": "slots",
    "lfm2": "slots",
    "mamba2": "slots",
    "jamba": "slots",
    "gemma2": "slots",
    "cohere2": "slots",
    "deepseek_v3": "slots",
    "gemma4_text": "slots",
    "llama4_text": "lockstep",
    "deepseek_v32": "lockstep",
    "deepseek_v4": "lockstep",
    "rwkv": "recomputed",
}
"""Fastest exact batcher of each family."""


def enlarged(family: str) -> PreTrainedModel:
    """Returns a model with weights so large that attention and bounds of logits matter."""
    model = tiny_model(family)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.mul_(1.5)
    return model


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """Runs a test as the engine's thread runs."""
    with torch.inference_mode():
        yield


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    opened = asyncio.new_event_loop()
    yield opened
    opened.close()


class Requests:
    """Builds sequences of one test."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._draws = np.random.default_rng(3)

    def text(self, length: int) -> Int32Array:
        return self._draws.integers(4, VOCABULARY, size=length).astype(np.int32)

    def sequence(self, prompt: Int32Array, new: int, *, key: int, forced: Int32Array | None = None) -> Sequence:
        return Sequence(
            request_id=str(key),
            prompt=prompt,
            sampling=Sampling(max_new_tokens=new),
            random_key=key,
            forced=forced,
            reply=self._loop.create_future(),
        )

    def mixed(self) -> list[Sequence]:
        """Returns two groups, prompts of other lengths, and a scored sequence."""
        first, second = self.text(21), self.text(13)
        sequences = [self.sequence(first, 5 + member, key=member) for member in range(3)]
        sequences += [self.sequence(second, 6 + member, key=10 + member) for member in range(2)]
        sequences += [self.sequence(self.text(length), 9, key=20 + length) for length in (1, 21, 22)]
        return [*sequences, self.sequence(second, 7, key=30, forced=self.text(7))]


def run(batcher: Batcher, sequences: Sequences[Sequence], *, steps: int = 1000) -> None:
    waiting = deque(sequences)
    for _ in range(steps):
        for _ended in batcher.admit(waiting):
            pass
        batcher.step()
        if not (waiting or batcher.running):
            return


def alone(model: PreTrainedModel, sequence: Sequence) -> Float32Array:
    ids = torch.from_numpy(sequence.all_tokens().astype(np.int64))[None]
    logprobs = model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
    begin = len(sequence.prompt)
    return np.asarray(logprobs[begin - 1 : -1].gather(-1, ids[0, begin:, None])[:, 0].numpy())


@pytest.mark.parametrize("family", WAYS)
def test_logprobs_of_every_family_are_those_of_each_sequence_alone(
    family: str, loop: asyncio.AbstractEventLoop
) -> None:
    """Sequences join and leave in between, the weights change in the middle, and a next turn continues an answer."""
    model, requests = enlarged(family), Requests(loop)
    batcher = exact_batcher(model, LIMITS)
    sequences, late = requests.mixed(), requests.sequence(requests.text(14), 12, key=40)
    run(batcher, sequences, steps=3)
    (aborted,) = batcher.remove(lambda sequence: sequence is sequences[1])
    run(batcher, [late], steps=2)
    before = {id(sequence): len(sequence.tokens) for sequence in (*sequences, late)}
    first_logprobs = {id(sequence): alone(model, sequence) for sequence in (*sequences, late)}
    waiting = batcher.evict()
    for parameter in model.parameters():
        parameter.mul_(1.02)
    run(batcher, waiting)
    turn = requests.sequence(np.append(late.all_tokens(), requests.text(5)), 4, key=41)
    run(batcher, [turn, requests.sequence(turn.prompt, 4, key=42)])

    assert batcher.way == WAYS[family]
    assert len(aborted.tokens) == before[id(aborted)]
    for sequence in (*sequences, late, turn):
        expected = alone(model, sequence)
        count = before.get(id(sequence), 0)
        expected[:count] = first_logprobs.get(id(sequence), expected)[:count]
        np.testing.assert_allclose(sequence.logprobs, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", [SlotBatcher, LockstepBatcher, RecomputingBatcher])
def test_tokens_do_not_depend_on_the_neighbours(kind: type[Batcher], loop: asyncio.AbstractEventLoop) -> None:
    model = enlarged("qwen3_5_text")
    together, single = Requests(loop).mixed(), Requests(loop).mixed()
    run(kind(model, LIMITS), together)
    for sequence in single:
        run(kind(model, LIMITS), [sequence])

    assert [sequence.tokens for sequence in together] == [sequence.tokens for sequence in single]


@pytest.mark.parametrize("kind", [SlotBatcher, LockstepBatcher, RecomputingBatcher])
def test_the_limits_hold_for_every_batcher(kind: type[Batcher], loop: asyncio.AbstractEventLoop) -> None:
    requests = Requests(loop)
    limits = BatchLimits(sequences=3, cache_tokens=60, prefill_tokens=30, prefix_bytes=0)
    batcher = kind(enlarged("qwen3_5_text"), limits)
    waiting = deque(requests.sequence(requests.text(length), 4, key=length) for length in (9, 12, 12, 20, 25))
    running: list[list[int]] = []
    while waiting or batcher.running:
        for _ended in batcher.admit(waiting):
            pass
        running.append([len(sequence.prompt) for sequence in batcher.running])
        batcher.step()

    assert max(map(len, running)) == 3
    assert all(len(lengths) * (max(lengths, default=0) + 4) <= 60 for lengths in running)


def test_a_turn_of_a_hybrid_computes_its_new_tokens_only(loop: asyncio.AbstractEventLoop) -> None:
    requests, model = Requests(loop), enlarged("qwen3_5_text")
    batcher = SlotBatcher(model, LIMITS)
    first = requests.sequence(requests.text(20), 4, key=1)
    run(batcher, [first])
    computed: list[int] = []
    hook = model.model.embed_tokens.register_forward_hook(
        lambda _layer, inputs, _output: computed.append(inputs[0].numel())
    )
    turn = requests.sequence(np.append(first.all_tokens(), requests.text(6)), 1, key=2)
    run(batcher, [turn])
    hook.remove()

    assert computed == [7], "the last token of the answer and the new ones"
    np.testing.assert_allclose(turn.logprobs, alone(model, turn), rtol=0, atol=1e-5)


def test_prompts_of_different_lengths_are_computed_together_for_a_hybrid(loop: asyncio.AbstractEventLoop) -> None:
    requests, model = Requests(loop), enlarged("qwen3_5_text")
    widths: list[int] = []
    hook = model.model.embed_tokens.register_forward_hook(
        lambda _layer, inputs, _out: widths.append(inputs[0].shape[1])
    )
    sequences = [requests.sequence(requests.text(length), 1, key=length) for length in (1, 3, 9, 20)]
    run(SlotBatcher(model, LIMITS), sequences)
    hook.remove()

    assert widths == [20]
    for sequence in sequences:
        np.testing.assert_allclose(sequence.logprobs, alone(model, sequence), rtol=0, atol=1e-5)


def test_a_model_that_nothing_computes_exactly_is_refused() -> None:
    model = enlarged("qwen3")
    model.model.norm.weight.fill_(torch.nan)

    with raises_code(InvalidInput, "engine.inexact_model"):
        exact_batcher(model, LIMITS)
