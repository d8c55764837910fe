"""The mock engine: says what it is cued to, gets better with every version, and takes as long as it is told to."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic import Field

from astraflow.contract.errors import AstraFlowError, InvalidInput, Unavailable
from astraflow.contract.generation import Finish, Generation, Sampling
from astraflow.contract.ids import Version
from astraflow.contract.tasks import Json
from astraflow.contract.trajectories import Float32Array, Int32Array
from astraflow.raas.engines import engines
from astraflow.raas.engines.base import PauseMode
from astraflow.raas.engines.distributions import Distribution
from astraflow.raas.engines.script import TOKENIZER, line_for
from astraflow.raas.engines.timeline import Timeline, Writing
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.config import Config
from astraflow.weights.tensors import VerifiedWeights


class ScriptedFailure(AstraFlowError):
    """A failure that the options ask for."""


class ScriptedEngineOptions(Config):
    """How well, how fast and how reliably it answers."""

    accuracy_start: float = Field(default=0.2, ge=0, le=1)
    """Probability of a right reply with version 0 on a question without difficulty."""
    accuracy_gain: float = Field(default=0.02, ge=0, le=1)
    """Added with each version."""
    accuracy_ceiling: float = Field(default=0.95, ge=0, le=1)
    """It gets no better than this."""
    first_token_s: Distribution = Distribution(mean=0.05)
    """Seconds from the request to the first token."""
    tokens: Distribution = Distribution(mean=24.0)
    """Tokens of a reply; at least what the reply needs, at most what the request allows."""
    tokens_per_s: float = Field(default=400.0, ge=0)
    """Of one request, however many run; 0 writes all at once."""
    failure_rate: float = Field(default=0.0, ge=0, le=1)
    """Share of requests that end in an error."""
    swap_s: float = Field(default=0.01, ge=0)
    """Seconds that a load stops generation."""
    seed: int = 0
    """What a request is answered, and how fast, depends on the seed, its id and the version alone."""


@engines.register("scripted", options=ScriptedEngineOptions)
class ScriptedEngine:
    """A stand-in for a serving engine, for models of kind `scripted`.

    Replies are padded in front to the drawn length with a token that reads as nothing, so that length costs time and
    bytes as it does in earnest, and the text is still the bare reply. Nothing ticks: a generation sleeps until it ends,
    and what was written by when, and with which version, is computed.
    """

    def __init__(
        self, options: ScriptedEngineOptions, model: Mapping[str, Json], *, clock: Clock | None = None
    ) -> None:
        if model.get("kind") != "scripted":
            raise InvalidInput(
                f"the scripted engine speaks bytes and cannot stand in for a model of kind {model.get('kind')!r}: "
                "give the policy model = { kind = 'scripted' }, or choose another engine"
            )
        self._options = options
        self._clock = clock or SystemClock()
        self._timeline = Timeline(self._clock)
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._running: dict[str, _Request] = {}

    @property
    def version(self) -> Version | None:
        """The version loaded last."""
        return self._timeline.version

    @property
    def is_simulated(self) -> bool:
        """It is a stand-in."""
        return True

    @property
    def logprob_tolerance(self) -> float:
        """Its logprobs mean nothing."""
        return float("inf")

    async def generate(self, request_id: str, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Reply to the cue in the prompt. Raises: ScriptedFailure as often as asked for; InvalidInput without a cue."""
        request = self._begin(request_id, prompt, sampling)
        self._running[request_id] = request
        try:
            await self._until_written(request)
        finally:
            del self._running[request_id]
            request.ended.set()
        if request.fails:
            raise ScriptedFailure(
                f"the scripted engine fails {self._options.failure_rate:.0%} of its requests on purpose"
            )
        return self._result(request)

    async def score(self, tokens: Int32Array, scored_from: int) -> Float32Array:
        """The same number for the same token, always."""
        return _logprobs(tokens[scored_from:])

    async def load(self, weights: VerifiedWeights) -> float:
        """Stand still for `swap_s`, then go on with the new version."""
        was_running = self._timeline.is_running
        self._stop()
        began = self._clock.now()
        if self._options.swap_s:
            await self._clock.sleep(self._options.swap_s)
        self._timeline.load(weights.manifest.version)
        if was_running:
            self._start()
        return self._clock.now() - began

    async def pause(self, mode: PauseMode) -> None:
        """Stop; requests in flight wait, or end with what they have."""
        self._stop()
        if mode is PauseMode.ABORT:
            await self._abort(list(self._running.values()))

    async def resume(self) -> None:
        """Go on."""
        self._start()

    async def abort(self, request_id: str) -> None:
        """End one request with what it has."""
        if request_id in self._running:
            await self._abort([self._running[request_id]])

    async def close(self) -> None:
        """End all requests with what they have."""
        await self._abort(list(self._running.values()))

    def _begin(self, request_id: str, prompt: Int32Array, sampling: Sampling) -> "_Request":
        if self.version is None:
            raise Unavailable("the scripted engine has no version yet: load one first")
        options = self._options
        source = random.Random(f"{options.seed}/{request_id}")
        line = line_for(prompt.astype(np.int32, copy=False).tobytes())
        accuracy = min(options.accuracy_ceiling, options.accuracy_start + options.accuracy_gain * self.version)
        reply = line.right if source.random() < accuracy * (1 - line.difficulty) else line.wrong
        whole = _padded(TOKENIZER.encode(reply), round(options.tokens.draw(source)), sampling)
        tokens = whole[: sampling.max_new_tokens]
        writing = Writing(
            began_at=self._timeline.now(),
            first_token_s=options.first_token_s.draw(source),
            tokens=len(tokens),
            tokens_per_s=options.tokens_per_s,
        )
        finish = Finish.STOP if len(tokens) == len(whole) else Finish.LENGTH
        return _Request(writing=writing, tokens=tokens, finish=finish, fails=source.random() < options.failure_rate)

    async def _until_written(self, request: "_Request") -> None:
        while request.aborted_at is None and (left_s := request.writing.ends_at - self._timeline.now()) > 0:
            waited = self._clock.sleep(left_s) if self._timeline.is_running else self._resumed.wait()
            waiting = request.waiting = asyncio.ensure_future(waited)
            try:
                await asyncio.wait({waiting})
            finally:
                waiting.cancel()

    def _result(self, request: "_Request") -> Generation:
        writing = request.writing
        until = writing.ends_at if request.aborted_at is None else request.aborted_at
        tokens = request.tokens[: writing.written_at(until)]
        return Generation(
            tokens=tokens,
            logprobs=_logprobs(tokens),
            spans=self._timeline.spans(writing, until=until),
            finish=request.finish if len(tokens) == writing.tokens else Finish.ABORT,
        )

    async def _abort(self, requests: list["_Request"]) -> None:
        for request in requests:
            request.aborted_at = self._timeline.now()
            if request.waiting is not None:
                request.waiting.cancel()
        for request in requests:
            await request.ended.wait()

    def _stop(self) -> None:
        self._timeline.stop()
        self._resumed.clear()

    def _start(self) -> None:
        self._timeline.start()
        self._resumed.set()


@dataclass(slots=True, kw_only=True)
class _Request:
    writing: Writing
    tokens: Int32Array
    finish: Finish
    fails: bool
    waiting: asyncio.Future[Any] | None = None
    aborted_at: float | None = None
    """In running time."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)


def _padded(reply: Int32Array, length: int, sampling: Sampling) -> Int32Array:
    """The reply and a stop token, behind as many silent tokens as make up the length."""
    stop = sampling.stop_tokens[0] if sampling.stop_tokens else TOKENIZER.stop_tokens[0]
    padding = max(0, length - len(reply) - 1)
    whole = np.full(padding + len(reply) + 1, TOKENIZER.pad_token, dtype=np.int32)
    whole[padding:-1] = reply
    whole[-1] = stop
    return whole


def _logprobs(tokens: Int32Array) -> Float32Array:
    """Something between -0.5 and 0 that depends on the token alone."""
    return (-(tokens * 40_503 % 1024 + 1) / 2048).astype(np.float32)
