"""Tokens per second of `local_torch` with drafts and without, on the answers of a recorded run.

    astraflow run RECIPE --headless --steps 12 --set nodes.text_share=1 --run-dir RUN
    OMP_NUM_THREADS=1 python -m benchmarks.speculation RUN [--at-once 4 16 64] [--seconds 20]

The model of the run, with random weights, computes the recorded requests again; what it draws is replaced by what was
recorded, so both ways write the same tokens. They take turns every few steps in one process, each timed by the
processor time of its thread, so that load by others falls on both.

Two bounds follow, in which verification costs nothing, prefills remain, and each request knows all earlier ones: the
drafts of the index, always at full length, and an oracle that chooses the right one of all continuations that its last
two tokens have had.
"""

import argparse
import asyncio
import itertools
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from astraflow.archive.connection import ARCHIVE_PATH, open_recorded
from astraflow.archive.samples import find_trajectories
from astraflow.contract.reports.queries import TrajectoryQuery
from astraflow.contract.reports.report import SampledTrajectory
from astraflow.contract.rollouts.generation import Sampling
from astraflow.contract.rollouts.spans import Author
from astraflow.contract.rollouts.token_columns import TokenColumns
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models import models
from astraflow.raas.engines.local.batcher import BatchLimits
from astraflow.raas.engines.local.drafts import DraftIndex
from astraflow.raas.engines.local.sequences import Sequence
from astraflow.raas.engines.local.slots import SlotBatcher
from astraflow.raas.engines.local.speculation import MAX_DRAFT, Speculation
from astraflow.recipe.loading import Check, load_recipe

LIMITS = BatchLimits(sequences=256, cache_tokens=2**18, prefill_tokens=2**14, prefix_bytes=2**30)
TURN_STEPS = 8
"""Steps after which the other way continues."""


@dataclass(frozen=True, slots=True)
class Request:
    """Prompt and recorded answer, tokens of both."""

    prompt: Int32Array
    answer: list[int]


def main() -> None:
    """Prints a row for each number of requests at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run that has ended")
    parser.add_argument("--at-once", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--seconds", type=float, default=20.0, help="processor time of each way")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    requests = recorded_requests(arguments.run)
    recipe = load_recipe(str(arguments.run / "recipe.json"), check=Check.NONE)
    model = models.build(next(iter(recipe.policies.values())).model).architecture().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # a fetched model has none before its weights are loaded
            parameter.normal_(std=0.02)
    needed = Needed.of(requests)
    sys.stdout.write(f"of {needed.tokens:,} tokens behind the first of an answer, {needed.known:.0%} are known\n")
    for at_once in arguments.at_once:
        _write_row(arguments.run.name, at_once, compare(model, requests, at_once, arguments.seconds), needed)


def recorded_requests(run: Path) -> list[Request]:
    """Returns the requests of the recorded trajectories of a run, in their order."""
    database = open_recorded(run / ARCHIVE_PATH)
    page = find_trajectories(database, TrajectoryQuery(after=0, limit=10_000, with_tokens=True))
    return [request for sample in page.trajectories[::-1] for request in _requests(sample)]


def _requests(sample: SampledTrajectory) -> Iterator[Request]:
    tokens, begin = np.array(sample.token_ids, dtype=np.int32), 0
    for span in sample.spans:
        end = begin + span.length
        if span.author is Author.MODEL and begin:
            yield Request(tokens[:begin], tokens[begin:end].tolist())
        begin = end


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """Steps that write the answers behind their first tokens, which come from prefills."""

    tokens: int
    """Steps without drafts, one for each token. Count."""
    known: float
    """Share of the tokens that followed the two tokens before them anywhere in earlier texts."""
    by_index: int
    """Steps with the drafts of the engine's index. Count."""
    by_oracle: int
    """Steps with the right one of all known continuations. Count."""

    @classmethod
    def of(cls, requests: list[Request]) -> "Needed":
        """Counts the steps of all requests, each after all earlier ones."""
        index, earlier = DraftIndex(10**9), set[tuple[int, ...]]()
        tokens = known = by_index = by_oracle = 0
        for request in requests:
            begin = len(request.prompt) + 1
            text = [*request.prompt.tolist(), *request.answer]
            triples = list(zip(text, text[1:], text[2:], strict=False))
            index.add(text[: begin - 1], 0)
            earlier.update(triples[: begin - 3])
            follows = []
            for triple in triples[begin - 2 :]:
                follows.append(triple in earlier)
                earlier.add(triple)
            tokens += len(follows)
            known += sum(follows)
            by_index += _steps([_accepted(index, text, at) for at in range(begin, len(text))])
            by_oracle += _steps([_leading(follows[at:]) for at in range(len(follows))])
            earlier.update(triples)  # with that of the first token of the answer
            index.add(text, begin - 1)
        return cls(tokens=tokens, known=known / max(1, tokens), by_index=by_index, by_oracle=by_oracle)


def _steps(accepted: list[int]) -> int:
    """Returns the steps that write an answer. accepted: drafted tokens that a step at each of its tokens accepts."""
    at = steps = 0
    while at < len(accepted):
        at += 1 + min(accepted[at], MAX_DRAFT)
        steps += 1
    return steps


def _accepted(index: DraftIndex, text: list[int], at: int) -> int:
    """Returns how many tokens of the index's draft follow `text[:at]`."""
    _, draft = index.draft(text[:at], MAX_DRAFT)
    return _leading([drafted == token for drafted, token in zip(draft, text[at:], strict=False)])


def _leading(flags: list[bool]) -> int:
    return next((position for position, flag in enumerate(flags) if not flag), len(flags))


class Replay(SlotBatcher):
    """Batcher that writes recorded answers, however it computes them."""

    def __init__(self, model: PreTrainedModel, requests: Iterator[Request], speculation: Speculation | None) -> None:
        super().__init__(model, LIMITS, speculation)
        self._requests = requests
        self._answers: dict[int, list[int]] = {}
        self._waiting: deque[Sequence] = deque()
        self._loop = asyncio.new_event_loop()
        self.prefill_s = 0.0

    def run_step(self, at_once: int) -> int:
        """Admits requests up to `at_once` and runs a step; returns the number of tokens that it wrote."""
        arriving = at_once - len(self.running)
        self._waiting.extend(self._sequence(next(self._requests)) for _ in range(arriving))
        running = [*self.running, *self._waiting]
        before = sum(len(sequence.tokens) for sequence in running)
        began_s = time.thread_time()
        for _ in self.admit(self._waiting):
            pass
        self.prefill_s += time.thread_time() - began_s
        self.step()
        return sum(len(sequence.tokens) for sequence in running) - before

    def _sequence(self, request: Request) -> Sequence:
        number = len(self._answers)
        self._answers[number] = request.answer
        return Sequence(
            request_id="",
            prompt=request.prompt,
            sampling=Sampling(max_new_tokens=len(request.answer)),
            random_key=number,
            reply=self._loop.create_future(),
        )

    def _next_tokens(
        self, rows: list[tuple[Sequence, int]], logits: Tensor
    ) -> tuple[list[int], list[float], TokenColumns]:
        _, logprobs, columns = super()._next_tokens(rows, logits)
        return [self._recorded(sequence, offset) for sequence, offset in rows], logprobs, columns

    def _recorded(self, sequence: Sequence, offset: int) -> int:
        answer, at = self._answers[sequence.random_key], len(sequence.tokens) + offset
        return answer[at] if at < len(answer) else 0


@dataclass(slots=True)
class Way:
    """Decoding with drafts or without, with its time and tokens so far."""

    replay: Replay
    seconds: float = 0.0
    tokens: int = 0

    @property
    def prefill_share(self) -> float:
        """Share of the time in prefills."""
        return self.replay.prefill_s / self.seconds

    def run(self, at_once: int, steps: int) -> None:
        """Runs steps."""
        began_s = time.thread_time()
        self.tokens += sum(self.replay.run_step(at_once) for _ in range(steps))
        self.seconds += time.thread_time() - began_s

    @property
    def rate(self) -> float:
        """Tokens per second of processor time, prefills included."""
        return self.tokens / self.seconds


@torch.inference_mode()
def compare(model: PreTrainedModel, requests: list[Request], at_once: int, seconds: float) -> tuple[Way, Way]:
    """Runs both ways in turn, until each has used `seconds`; returns the one without drafts and the one with."""
    drafts = Speculation(MAX_DRAFT, clock=time.thread_time)
    plain, drafted = (Way(Replay(model, itertools.cycle(requests), way)) for way in (None, drafts))
    Way(Replay(model, itertools.cycle(requests), None)).run(at_once, TURN_STEPS)  # compiles and allocates
    while min(plain.seconds, drafted.seconds) < seconds:
        for way in sorted((plain, drafted), key=lambda way: way.seconds):
            way.run(at_once, TURN_STEPS)
    return plain, drafted


def _write_row(name: str, at_once: int, ways: tuple[Way, Way], needed: Needed) -> None:
    plain, drafted = ways
    share = plain.prefill_share
    bounds = [1 / (share + (1 - share) * steps / needed.tokens) for steps in (needed.by_index, needed.by_oracle)]
    speculation = drafted.replay.speculation
    assert speculation is not None
    counts = speculation.counts
    sys.stdout.write(
        f"| {name} | {at_once} | {plain.rate:,.0f} | {drafted.rate:,.0f} | {drafted.rate / plain.rate:.2f} | "
        f"{counts.drafted:,} | {counts.accepted / max(1, counts.drafted):.0%} | "
        f"{share:.0%} | {bounds[0]:.2f} | {bounds[1]:.2f} |\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
