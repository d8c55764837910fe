"""The mock engine: says what it is cued to, gets better with every version, and takes as long as it is told to."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from astraflow.contract.errors import AstraFlowError, InvalidInput, Unavailable
from astraflow.contract.generation import Finish, Generation, Sampling
from astraflow.contract.ids import Version
from astraflow.contract.trajectories import Float32Array, Int32Array
from astraflow.contract.values import Json
from astraflow.raas.engines import engines
from astraflow.raas.engines.base import EngineLoad, PauseMode
from astraflow.raas.engines.distributions import Distribution
from astraflow.raas.engines.requests import Requests
from astraflow.raas.engines.script import TOKENIZER, line_for, split_reply
from astraflow.raas.engines.timeline import Timeline, Writing
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.config import Config
from astraflow.runtime.overrides import SetBy
from astraflow.weights.tensors import VerifiedWeights

_DRAWS = 1000
"""Lengths that are drawn for a reply that was begun; when none fits to its beginning, the words come at once."""


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
    """Of a request that runs alone; 0 writes all at once."""
    half_speed_at: float | None = Field(default=None, gt=0)
    """With that many requests beside it, a request takes twice as long, with twice as many three times: a step of a
    decoding batch has a fixed part, reading the weights, and a part for each request. None: load slows nothing down."""
    pace_file: Annotated[str, SetBy.RECIPE] = ""
    """File with a factor on all speeds, read at each reply; 1 while there is none. With it a machine gets slow, as a
    throttled or crowded one does, when somebody says so."""
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
    bytes as it does in earnest, and the text is still the bare reply. Nothing ticks: a generation waits until it ends,
    and what was written by when, and with which version, is computed. A prompt that ends in the beginning of a reply is
    continued: with the same words, and to a length that is distributed as if it had never been interrupted.
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
        self._requests = Requests(self._timeline, self._clock, half_speed_at=options.half_speed_at)

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
        reply = self._reply(request_id, prompt, sampling)
        until = await self._requests.write(request_id, reply.writing)
        if reply.fails:
            raise ScriptedFailure(
                f"the scripted engine fails {self._options.failure_rate:.0%} of its requests on purpose"
            )
        return self._written(reply, until)

    async def score(self, tokens: Int32Array, scored_from: int) -> Float32Array:
        """The same number for the same token, always."""
        return _logprobs(tokens[scored_from:])

    async def load(self, weights: VerifiedWeights) -> EngineLoad:
        """Stand still for `swap_s`, then go on with the new version."""
        was_running = self._timeline.is_running
        self._timeline.stop()
        began = self._clock.now()
        if self._options.swap_s:
            await self._clock.sleep(self._options.swap_s)
        self._timeline.load(weights.manifest.version)
        if was_running:
            await self.resume()
        return EngineLoad(apply_s=self._clock.now() - began)

    async def pause(self, mode: PauseMode) -> None:
        """Stop; requests in flight wait, or end with what they have."""
        self._timeline.stop()
        if mode is PauseMode.ABORT:
            await self._requests.abort_all()

    async def resume(self) -> None:
        """Go on."""
        self._timeline.start()
        self._requests.look_again()

    async def abort(self, request_id: str) -> None:
        """End one request with what it has."""
        await self._requests.abort(request_id)

    async def close(self) -> None:
        """End all requests with what they have."""
        await self._requests.abort_all()

    def _reply(self, request_id: str, prompt: Int32Array, sampling: Sampling) -> "_Reply":
        if self.version is None:
            raise Unavailable("the scripted engine has no version yet: load one first")
        options = self._options
        source = random.Random(f"{options.seed}/{request_id}")
        asked, begun = split_reply(prompt)
        line = line_for(asked.astype(np.int32, copy=False).tobytes())
        accuracy = min(options.accuracy_ceiling, options.accuracy_start + options.accuracy_gain * self.version)
        is_right = source.random() < accuracy * (1 - line.difficulty)
        reply = TOKENIZER.encode(line.going_on(TOKENIZER.decode(begun), is_right=is_right))
        whole = _padded(reply, self._length(source, reply, begun), sampling)[len(begun) :]
        tokens = whole[: sampling.max_new_tokens]
        pace = _pace(options.pace_file)
        writing = Writing(
            began_at=self._timeline.now(),
            first_token_s=options.first_token_s.draw(source) / pace,
            tokens=len(tokens),
            tokens_per_s=options.tokens_per_s * pace,
        )
        finish = Finish.STOP if len(tokens) == len(whole) else Finish.LENGTH
        return _Reply(writing=writing, tokens=tokens, finish=finish, fails=source.random() < options.failure_rate)

    def _length(self, source: random.Random, reply: Int32Array, begun: Int32Array) -> int:
        """Tokens of a whole reply: what is drawn, given that it has this beginning."""
        silent = int(np.count_nonzero(begun == TOKENIZER.pad_token))
        least = silent + len(reply) + 1
        if silent < len(begun):
            return least  # its words have begun, so there is no more silence to come
        lengths = (round(self._options.tokens.draw(source)) for _ in range(_DRAWS))
        return next((length for length in lengths if length >= least or not silent), least)

    def _written(self, reply: "_Reply", until: float) -> Generation:
        tokens = reply.tokens[: reply.writing.written_at(until)]
        return Generation(
            tokens=tokens,
            logprobs=_logprobs(tokens),
            spans=self._timeline.spans(reply.writing, until=until),
            finish=reply.finish if len(tokens) == reply.writing.tokens else Finish.ABORT,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reply:
    writing: Writing
    tokens: Int32Array
    finish: Finish
    fails: bool


def _pace(file: str) -> float:
    """What the file says now. Raises: InvalidInput for what is no pace."""
    try:
        said = Path(file).read_text() if file else ""
    except FileNotFoundError:
        return 1.0
    try:
        pace = float(said or 1.0)
    except ValueError:
        pace = 0.0
    if not 0 < pace < float("inf"):
        raise InvalidInput(f"{file} says {said[:40]!r}: write a factor above 0, such as 0.2, or remove the file")
    return pace


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
