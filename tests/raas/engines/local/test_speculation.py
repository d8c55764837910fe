"""Drafted tokens change how fast answers are written, and nothing else."""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch

from astraflow.contract.rollouts.generation import Finish, Sampling
from astraflow.raas.engines.local.batcher import Batcher, BatchLimits, Joining, Predictions
from astraflow.raas.engines.local.drafts import DraftIndex
from astraflow.raas.engines.local.lockstep import RecomputingBatcher
from astraflow.raas.engines.local.sequences import Sequence
from astraflow.raas.engines.local.slots import SlotBatcher
from astraflow.raas.engines.local.speculation import MAX_DRAFT, Speculation
from benchmarks.model_families.configurations import VOCABULARY, tiny_model

LIMITS = BatchLimits(sequences=4096, cache_tokens=2**22, prefill_tokens=2**20, prefix_bytes=2**24)
FULL = Sampling(max_new_tokens=17)
FILTERED = Sampling(max_new_tokens=17, temperature=0.8, top_p=0.9, top_k=7, min_p=0.02, top_tokens=3, with_support=True)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """Runs a test as the engine's thread runs."""
    with torch.inference_mode():
        yield


class Oracle(Speculation):
    """Drafts the known answers, with wrong tokens in between, in drafts of many lengths."""

    def __init__(self, answers: dict[str, list[int]]) -> None:
        super().__init__(MAX_DRAFT)
        self._answers = answers
        self._draws = np.random.default_rng(1)

    def drafts(self, running: list[Sequence]) -> list[list[int]]:
        self.is_drafting = True
        super().drafts(running)
        self._orders = [8] * len(running)
        return [self._draft(sequence) for sequence in running]

    def _draft(self, sequence: Sequence) -> list[int]:
        written = len(sequence.tokens)
        room = max(0, sequence.sampling.max_new_tokens - written - 1)
        answer = self._answers[sequence.request_id][written:][: min(room, int(self._draws.integers(0, 6)))]
        return [token if self._draws.random() < 0.8 else (token + 1) % VOCABULARY for token in answer]


def sequences(sampling: Sampling, count: int = 9) -> list[Sequence]:
    draws = np.random.default_rng(5)
    loop = asyncio.new_event_loop()
    texts = [draws.integers(4, VOCABULARY, size=length).astype(np.int32) for length in (5, 11, 20)]
    requests = [
        Sequence(
            request_id=f"{number}",
            prompt=texts[number % 3],
            sampling=replace(sampling, max_new_tokens=sampling.max_new_tokens + number % 3),
            random_key=number,
            reply=loop.create_future(),
        )
        for number in range(count)
    ]
    loop.close()
    return requests


def run(batcher: Batcher, requests: list[Sequence], *, evicted_at: Iterable[int] = ()) -> dict[str, Finish]:
    """Generates all requests; the steps `evicted_at` return the running ones to the queue, as a weight swap does."""
    waiting, finishes, step = deque(requests), dict[str, Finish](), 0
    while waiting or batcher.running:
        ended = [end for ends in batcher.admit(waiting) for end in ends]
        ended += batcher.step()
        finishes |= {end.sequence.request_id: end.finish for end in ended}
        step += 1
        if step in evicted_at:
            waiting.extendleft(reversed(batcher.evict()))
    return finishes


@pytest.mark.parametrize(
    ("family", "sampling"),
    [
        ("qwen3", FULL),
        ("qwen3", replace(FULL, temperature=0.0)),
        ("gemma2", FILTERED),
        ("gpt_oss", FULL),
        ("deepseek_v3", FULL),
    ],
)
def test_drafts_change_neither_tokens_nor_logprobs_nor_columns(family: str, sampling: Sampling) -> None:
    model = tiny_model(family)
    plain, drafted = sequences(sampling), sequences(sampling)
    run(SlotBatcher(model, LIMITS), plain)
    answers = {sequence.request_id: sequence.tokens.copy() for sequence in plain}
    stops = tuple({tokens[9] for tokens in answers.values()})[:2]
    for sequence in (*plain, *drafted):
        sequence.sampling = replace(sequence.sampling, stop_tokens=stops)
    again = [replace(s, tokens=[], logprobs=[], columns={}) for s in plain]
    finishes = run(SlotBatcher(model, LIMITS), again, evicted_at=[4])
    oracle = Oracle(answers)

    assert run(SlotBatcher(model, LIMITS, oracle), drafted, evicted_at=[2]) == finishes

    assert oracle.counts.accepted > 25
    for expected, sequence in zip(again, drafted, strict=True):
        assert sequence.tokens == expected.tokens
        np.testing.assert_allclose(sequence.logprobs, expected.logprobs, atol=2e-5)
        assert sequence.columns.keys() == expected.columns.keys()
        for column, entries in expected.columns.items():
            np.testing.assert_allclose(np.array(sequence.columns[column]), np.array(entries), atol=2e-3)


def test_models_with_recurrent_states_draft_nothing() -> None:
    assert SlotBatcher(tiny_model("falcon_h1"), LIMITS, Speculation(4)).speculation is None
    assert RecomputingBatcher(tiny_model("qwen3"), LIMITS, Speculation(4)).speculation is None


class Chain(SlotBatcher):
    """Predicts the next token from a table of the last one, without a model."""

    table: torch.Tensor

    def _prefill(self, first: int, joining: list[Joining]) -> Predictions:
        return Predictions(self.table[torch.tensor([int(row.text[-1]) for row in joining])])

    def _decode(self, drafts: list[list[int]]) -> Predictions:
        tokens = [
            token
            for sequence, draft in zip(self.running, drafts, strict=True)
            for token in [sequence.tokens[-1], *draft]
        ]
        return Predictions(self.table[torch.tensor(tokens)])

    def _retain(self, at: int) -> None:
        pass

    def _free(self, freed: Iterable[int]) -> None:
        self.running = [sequence for at, sequence in enumerate(self.running) if at not in set(freed)]


@pytest.mark.parametrize("samples", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("sampling", [FULL, FILTERED], ids=["full", "cut"])
def test_tokens_have_the_distribution_of_the_sampler(sampling: Sampling, samples: int) -> None:
    """Compares the transitions of a Markov chain that is drafted from earlier answers; 12 tokens, so 12 tests of
    chi-square with at most 11 degrees of freedom, of which 40 is exceeded with a probability of 4e-5."""
    states, length = 12, 50
    table = torch.from_numpy(np.random.default_rng(2).normal(size=(states, states)).astype(np.float32))
    request = replace(sampling, max_new_tokens=length, with_support=False, top_tokens=0)
    loop = asyncio.new_event_loop()
    prompt = np.zeros(3, dtype=np.int32)
    requests = [
        Sequence(
            request_id=f"{n}", prompt=prompt, sampling=request, random_key=n * 7919 + 1, reply=loop.create_future()
        )
        for n in range(samples // length)
    ]
    loop.close()
    drafts = [requests[n - 1] if n else requests[0] for n in range(len(requests))]
    batcher = Chain(tiny_model("qwen3"), LIMITS, Sibling(dict(zip(map(id, requests), drafts, strict=True))))
    batcher.table = table

    run(batcher, requests)

    assert batcher.speculation is not None
    assert batcher.speculation.counts.accepted > samples / 40
    written = np.array([sequence.tokens for sequence in requests])
    counts = np.zeros((states, states))
    np.add.at(counts, (written[:, :-1].ravel(), written[:, 1:].ravel()), 1)
    expected = reference(table.double().numpy(), request) * counts.sum(1, keepdims=True)
    assert not counts[expected == 0].any()
    chi_square = np.where(expected > 0, (counts - expected) ** 2 / np.maximum(expected, 1e-9), 0).sum(1)
    assert chi_square.max() < 40


class Sibling(Speculation):
    """Drafts three tokens of another answer, behind its latest token that is the last one here."""

    def __init__(self, siblings: dict[int, Sequence]) -> None:
        super().__init__(MAX_DRAFT)
        self._siblings = siblings

    def drafts(self, running: list[Sequence]) -> list[list[int]]:
        self.is_drafting = True
        super().drafts(running)
        self._orders = [2] * len(running)
        return [self._draft(sequence) for sequence in running]

    def _draft(self, sequence: Sequence) -> list[int]:
        other, last = self._siblings[id(sequence)].tokens, sequence.tokens[-1]
        begin = next((at + 1 for at, token in enumerate(other) if token == last), len(other))
        return other[begin : begin + min(3, sequence.sampling.max_new_tokens - len(sequence.tokens) - 1)]


def reference(logits: npt.NDArray[np.float64], sampling: Sampling) -> npt.NDArray[np.float64]:
    """Returns the probabilities of the sampler for each row of logits, computed token by token."""
    rows = []
    for row in logits / sampling.temperature:
        p = np.exp(row - row.max())
        p /= p.sum()
        p[p < sampling.min_p * p.max()] = 0
        p /= p.sum()
        if sampling.top_k:
            p[np.argsort(-p)[sampling.top_k :]] = 0
            p /= p.sum()
        order = np.argsort(-p)
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= sampling.top_p]] = 0
        rows.append(p / p.sum())
    return np.array(rows)


def test_a_draft_follows_the_longest_context_that_has_occurred() -> None:
    index = DraftIndex(1000)
    index.add([1, 2, 3, 4, 5, 6], 0)
    index.add([9, 9, 3, 4, 7, 8], 0)

    assert index.draft([1, 2, 3, 4], 2) == (4, [5, 6])  # the later text has only two of them
    assert index.draft([0, 0, 3, 4], 5) == (2, [7, 8])
    assert index.draft([0, 0, 4, 3], 5) == (0, [])
    assert index.draft([4], 5) == (0, [])


def test_contexts_that_do_not_occur_again_are_forgotten() -> None:
    index = DraftIndex(40)
    index.add([1, 2, 3, 4, 5], 0)
    for begin in range(100, 500, 10):
        index.add([*range(begin, begin + 10)], 0)

    assert index.draft([1, 2], 3) == (0, [])
    assert index.draft([491, 492], 3) == (2, [493, 494, 495])


class Machine:
    """Clock, and steps of a batch of four requests that write one text; a drafted column costs `column_s`."""

    def __init__(self, column_s: float) -> None:
        self.now = 0.0
        self.speculation = Speculation(MAX_DRAFT, clock=lambda: self.now)
        self._column_s = column_s
        loop = asyncio.new_event_loop()
        self._running = [
            Sequence(
                request_id="",
                prompt=np.arange(8, dtype=np.int32),
                sampling=Sampling(max_new_tokens=100_000),
                random_key=number,
                reply=loop.create_future(),
            )
            for number in range(4)
        ]
        loop.close()

    @property
    def steps_without(self) -> float:
        """Steps in which the same tokens are written without drafts."""
        return sum(len(sequence.tokens) for sequence in self._running) / len(self._running)

    def run(self, steps: int) -> list[int]:
        """Returns the width of each step; the first request is always a text that repeats after 20 tokens."""
        widths = []
        for _ in range(steps):
            drafts = self.speculation.drafts(self._running)
            width = max(map(len, drafts))
            self.now += 1e-3 + width * self._column_s
            widths.append(width)
            accepted = [self._append(sequence, draft) for sequence, draft in zip(self._running, drafts, strict=True)]
            self.speculation.note(self._running, drafts, accepted)
        return widths

    def _append(self, sequence: Sequence, draft: list[int]) -> int:
        before = len(sequence.tokens)
        for token in [*draft, -1]:
            sequence.tokens.append(len(sequence.tokens) % 20 + 100)
            if token != sequence.tokens[-1]:
                break
        return len(sequence.tokens) - before - 1


def test_drafts_grow_where_verification_is_cheap() -> None:
    machine = Machine(column_s=1e-5)

    widths = machine.run(4000)

    assert np.median(widths[-100:]) == MAX_DRAFT
    assert machine.speculation.gain > 4
    assert machine.speculation.counts.accepted > 0.9 * machine.speculation.counts.drafted


def test_drafting_rests_where_verification_costs_as_much_as_a_step() -> None:
    machine = Machine(column_s=1.5e-3)

    widths = machine.run(12_000)

    assert np.count_nonzero(widths[:4000]) > 0
    assert np.count_nonzero(widths[4000:]) <= 2 * np.count_nonzero(widths[:4000])
    assert machine.speculation.gain < 1.01
    assert machine.now < machine.steps_without * 1e-3 * 1.008


@pytest.mark.parametrize("bound", [{"forced": np.arange(9)}, {"grammar": object()}], ids=["scored", "grammar"])
def test_sequences_whose_tokens_are_not_only_the_samplers_are_not_drafted(bound: dict[str, object]) -> None:
    speculation = Speculation(MAX_DRAFT)
    speculation.is_drafting = True
    loop = asyncio.new_event_loop()
    free = Sequence(
        request_id="",
        prompt=np.array([1, 2, 3, 1, 2], dtype=np.int32),
        sampling=FULL,
        random_key=0,
        reply=loop.create_future(),
    )
    loop.close()

    assert speculation.drafts([free, replace(free, text=[], **bound)]) == [[3], []]  # type: ignore[arg-type] # by name
