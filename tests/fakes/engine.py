"""An engine that a test controls and that records its calls."""

import asyncio
from collections.abc import Callable

import numpy as np

from astraflow.contract.ids import Version
from astraflow.contract.nodes import EvaluationMode
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling, VersionSpan
from astraflow.contract.rollouts.token_columns import TokenColumn
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array
from astraflow.models.byte_tokenizer import ByteTokenizer
from astraflow.raas.engines.base import EXACT, EngineGauges, LoadTimings, LogprobTolerance, PauseMode
from astraflow.weights.tensors import VerifiedWeights


class FakeEngine:
    """Answers `reply` as soon as `gate` is open; scores every token with -1 plus `score_error` of its version."""

    is_simulated = False
    evaluation_mode = EvaluationMode.SECOND_ENGINE
    records: frozenset[TokenColumn] = frozenset()
    logprob_tolerance: LogprobTolerance = EXACT

    def __init__(self, version: int | None = None) -> None:
        self.version: Version | None = None if version is None else Version(version)
        self.reply = "dcba"
        self.begun = ""
        """Part of the reply that a request has generated when it is cut short."""
        self.problem: Exception | None = None
        """Raised by `generate`."""
        self.logprob = -0.5
        self.gate = asyncio.Event()
        self.gate.set()
        self.prompts: list[Int32Array] = []
        self.requests: list[str] = []
        self.samplings: list[Sampling] = []
        self.answers_at_most: int | None = None
        """Requests beyond this number wait until they are cut short."""
        self.loads: list[VerifiedWeights] = []
        self.load_gate = asyncio.Event()
        """A load waits for it, and the engine has no version meanwhile."""
        self.load_gate.set()
        self.load_problem: Callable[[VerifiedWeights], Exception | None] = lambda weights: None
        self.score_error: Callable[[FakeEngine], float] = lambda engine: 0.0
        self.is_paused = False
        self.is_closed = False
        self.is_started = asyncio.Event()
        self.load_now = EngineGauges()
        """Returned by `gauges`."""
        self.failure: asyncio.Queue[str] = asyncio.Queue()
        """A reason that is put here ends `wait_failed`."""
        self._cuts: dict[str, asyncio.Event] = {}
        self._requested = asyncio.Condition()

    async def until_requested(self, count: int) -> None:
        """Waits until this many requests have come."""
        async with self._requested:
            await self._requested.wait_for(lambda: len(self.requests) >= count)

    async def start(self) -> None:
        """Records the call."""
        self.is_started.set()

    async def wait_failed(self) -> str:
        """Waits for a reason in `failure`."""
        return await self.failure.get()

    def gauges(self) -> EngineGauges:
        """Returns `load_now`."""
        return self.load_now

    async def generate(self, request_id: str, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Returns the reply and a stop token; an abort cuts the reply short."""
        self.requests.append(request_id)
        self.prompts.append(prompt)
        self.samplings.append(sampling)
        is_answered = self.answers_at_most is None or len(self.requests) <= self.answers_at_most
        async with self._requested:
            self._requested.notify_all()
        cut = self._cuts[request_id] = asyncio.Event()
        waiting = [asyncio.ensure_future(event.wait()) for event in ((self.gate, cut) if is_answered else (cut,))]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waited in waiting:
                waited.cancel()
            del self._cuts[request_id]
        if self.problem is not None:
            raise self.problem
        whole = np.append(ByteTokenizer().encode(self.reply), np.int32(sampling.stop_tokens[0])).astype(np.int32)
        tokens = ByteTokenizer().encode(self.begun) if cut.is_set() else whole
        return Generation(
            tokens=tokens,
            logprobs=np.full(len(tokens), self.logprob, dtype=np.float32),
            spans=(VersionSpan(version=self.version or Version(0), length=len(tokens)),) if len(tokens) else (),
            finish=Finish.ABORT if cut.is_set() else Finish.STOP,
            columns={TokenColumn.SUPPORT: tokens[:, None]} if sampling.with_support else {},
        )

    async def score(self, tokens: Int32Array, scored_from: int) -> Float32Array:
        """Returns -1 for each token, plus the score error."""
        return np.full(len(tokens) - scored_from, -1.0 + self.score_error(self), dtype=np.float32)

    async def load(self, weights: VerifiedWeights) -> LoadTimings:
        """Records the weights."""
        problem = self.load_problem(weights)
        if problem is not None:
            raise problem
        self.loads.append(weights)
        self.version = None
        await self.load_gate.wait()
        self.version = weights.manifest.version
        return LoadTimings(pause_s=0.0625, apply_s=0.125, resume_s=0.0625)

    async def pause(self, mode: PauseMode) -> None:
        """Cuts requests short if configured."""
        self.is_paused = True
        if mode is PauseMode.ABORT:
            for cut in self._cuts.values():
                cut.set()

    async def resume(self) -> None:
        """Resumes generation."""
        self.is_paused = False

    async def abort(self, request_id: str) -> None:
        """Cuts one request short."""
        if request_id in self._cuts:
            self._cuts[request_id].set()

    async def close(self) -> None:
        """Records the call."""
        self.is_closed = True
