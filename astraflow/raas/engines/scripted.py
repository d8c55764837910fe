"""Simulated engine: replies to a cue in the prompt, with configured accuracy per version and configured speed."""

import asyncio
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from astraflow.contract.errors import AstraFlowError, InvalidInput, Unavailable
from astraflow.contract.ids import Version
from astraflow.contract.nodes import EvaluationMode
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling
from astraflow.contract.rollouts.token_columns import TOP_COLUMNS, TokenColumn, TokenColumns
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array
from astraflow.contract.values import Json
from astraflow.raas.engines import engines
from astraflow.raas.engines.base import UNLIMITED, EngineGauges, LoadTimings, LogprobTolerance, PauseMode
from astraflow.raas.engines.concurrent_requests import ConcurrentRequests
from astraflow.raas.engines.scripted_replies import TOKENIZER, replies_for, split_reply
from astraflow.raas.engines.timeline import Timeline, TokenSchedule
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.weights.tensors import VerifiedWeights

_MAX_LENGTH_DRAWS = 1000
"""Maximum draws of a length for a partial reply; if no length fits, the rest of the reply follows without padding."""


class ScriptedFailure(AstraFlowError):
    """Failure injected by the option `failure_rate`."""


class Distribution(Config):
    """Distribution of a non-negative amount: a duration or a length."""

    kind: Annotated[Literal["constant", "uniform", "exponential", "lognormal"], SettableBy.AGENT] = "lognormal"
    """Lognormal has a long tail, as the replies of language models do."""
    mean: float = Field(ge=0)
    spread: float = Field(default=0.5, ge=0)
    """Lognormal: standard deviation of the logarithm. Uniform: half the width as a share of the mean, at most 1."""

    def draw(self, source: random.Random) -> float:
        """Draws one amount."""
        if self.mean == 0:
            return 0.0
        match self.kind:
            case "constant":
                return self.mean
            case "uniform":
                half_width = self.mean * min(self.spread, 1.0)
                return source.uniform(self.mean - half_width, self.mean + half_width)
            case "exponential":
                return source.expovariate(1 / self.mean)
            case "lognormal":
                return source.lognormvariate(math.log(self.mean) - self.spread**2 / 2, self.spread)


class LengthChange(Config):
    """Change of the length of replies at a time of the run, which shows how a fleet follows its load."""

    after_s: float = Field(ge=0)
    """Time of the change after `script_began_at`. Seconds."""
    factor: float = Field(gt=0, le=100)
    """Factor on the lengths drawn from `tokens`, from then on."""


class ScriptedEngineOptions(Config):
    """Accuracy, speed and failure rate of the simulated engine."""

    accuracy_start: float = Field(default=0.2, ge=0, le=1)
    """Probability of a right reply with version 0 for a question of difficulty 0."""
    accuracy_gain: float = Field(default=0.02, ge=0, le=1)
    """Increase of the probability with each version."""
    accuracy_ceiling: float = Field(default=0.95, ge=0, le=1)
    """Maximum of the probability."""
    first_token_s: Distribution = Distribution(mean=0.05)
    """Seconds from the request to the first token."""
    tokens: Distribution = Distribution(mean=24.0)
    """Tokens of a reply; at least the length of its text, at most the limit of the request."""
    length_script: tuple[LengthChange, ...] = ()
    """Changes of the length of replies, in order of time. The report of a run tells when one takes effect."""
    script_began_at: float | None = None
    """Time from which `length_script` counts, Unix seconds; absent: no change takes effect."""
    tokens_per_s: float = Field(default=400.0, ge=0)
    """Tokens per second of a request that runs alone; 0 generates all tokens at once."""
    half_speed_requests: float | None = Field(default=None, gt=0)
    """Number of other requests that halves the speed of a request; twice as many reduce it to a third: a decode step
    has a fixed cost, reading the weights, and a cost for each request. None: no slowdown under load."""
    speed_factor_file: Annotated[str, SettableBy.RECIPE] = ""
    """File with a factor on all speeds, read at each reply; 1 while the file is absent. Simulates a throttled or
    overloaded machine."""
    failure_rate: float = Field(default=0.0, ge=0, le=1)
    """Share of requests that fail."""
    swap_s: float = Field(default=0.01, ge=0)
    """Seconds that a weight load pauses generation."""
    seed: int = 0
    """Random seed; the reply to a request and its speed depend only on the seed, the request id and the version."""


@engines.register("scripted", options=ScriptedEngineOptions)
class ScriptedEngine:
    """Simulated serving engine, for models of kind `scripted`.

    Replies begin with padding up to the drawn length: a token that decodes to no text. Length therefore costs time and
    bytes as with a real engine, and the text is only the reply. There is no timer per token: a generation waits until
    its end, and the tokens and versions at any time are computed. A prompt that ends with a partial reply is continued
    with the same words, to a length that is distributed as without the interruption.
    """

    def __init__(
        self, options: ScriptedEngineOptions, model: Mapping[str, Json], *, clock: Clock | None = None
    ) -> None:
        if model.get("kind") != "scripted":
            raise InvalidInput(
                f"cannot simulate a model of kind {model.get('kind')!r}: the scripted engine generates bytes; give the "
                "policy model = { kind = 'scripted' }, or choose another engine",
                code="engine.unsupported_model",
            )
        self._options = options
        self._clock = clock or SystemClock()
        self._timeline = Timeline(self._clock)
        self._requests = ConcurrentRequests(
            self._timeline, self._clock, half_speed_requests=options.half_speed_requests
        )

    @property
    def version(self) -> Version | None:
        """Version loaded last; None before the first load."""
        return self._timeline.version

    @property
    def is_simulated(self) -> bool:
        """Always True."""
        return True

    @property
    def evaluation_mode(self) -> EvaluationMode:
        """A second simulation."""
        return EvaluationMode.SECOND_ENGINE

    @property
    def records(self) -> frozenset[TokenColumn]:
        """The most likely tokens: the sampled one, as if it were the only one; and a kept set of two."""
        return TOP_COLUMNS | {TokenColumn.SUPPORT}

    @property
    def logprob_tolerance(self) -> LogprobTolerance:
        """Unlimited, because the logprobs do not come from a model."""
        return UNLIMITED

    async def start(self) -> None:
        """Returns at once."""

    async def wait_failed(self) -> str:
        """Waits without an end: a simulated engine does not fail."""
        await asyncio.Event().wait()
        raise AssertionError

    def gauges(self) -> EngineGauges:
        """Returns the number of running requests; none waits."""
        length = self._length_factor() if self._options.length_script else None
        return EngineGauges(running=len(self._requests), reply_length=length)

    async def generate(self, request_id: str, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Replies to the cue in the prompt. Raises: ScriptedFailure at `failure_rate`; InvalidInput without a cue."""
        reply = self._reply(request_id, prompt, sampling)
        ended_at = await self._requests.wait_until_done(request_id, reply.schedule)
        if reply.fails:
            raise ScriptedFailure(
                f"cannot generate: injected failure of {self._options.failure_rate:.1%} of the requests; set the "
                "option failure_rate to 0 to disable them",
                code="engine.injected_failure",
            )
        return self._generation_until(reply, ended_at)

    async def score(self, tokens: Int32Array, scored_from: int) -> Float32Array:
        """Returns a fixed logprob for each token."""
        return _logprobs(tokens[scored_from:])

    async def load(self, weights: VerifiedWeights) -> LoadTimings:
        """Pauses for `swap_s`, then continues with the new version."""
        was_running = self._timeline.is_running
        self._timeline.stop()
        began = self._clock.now()
        if self._options.swap_s:
            await self._clock.sleep(self._options.swap_s)
        self._timeline.load(weights.manifest.version)
        if was_running:
            await self.resume()
        return LoadTimings(apply_s=self._clock.now() - began)

    async def pause(self, mode: PauseMode) -> None:
        """Stops generation; requests in flight wait, or end with the tokens so far."""
        self._timeline.stop()
        if mode is PauseMode.ABORT:
            await self._requests.abort_all()

    async def resume(self) -> None:
        """Resumes generation."""
        self._timeline.start()
        self._requests.reschedule()

    async def abort(self, request_id: str) -> None:
        """Ends one request with the tokens so far."""
        await self._requests.abort(request_id)

    async def close(self) -> None:
        """Ends all requests with the tokens so far."""
        await self._requests.abort_all()

    def _reply(self, request_id: str, prompt: Int32Array, sampling: Sampling) -> "_Reply":
        if self.version is None:
            raise Unavailable(
                "cannot generate: the engine has no weights; load a version first", code="engine.no_weights"
            )
        options = self._options
        generator = random.Random(f"{options.seed}/{request_id}")
        question, partial_reply = split_reply(prompt)
        replies = replies_for(question.astype(np.int32, copy=False).tobytes())
        accuracy = min(options.accuracy_ceiling, options.accuracy_start + options.accuracy_gain * self.version)
        is_right = generator.random() < accuracy * (1 - replies.difficulty)
        reply = TOKENIZER.encode(replies.continuing(TOKENIZER.decode(partial_reply), is_right=is_right))
        whole = _padded(reply, self._reply_length(generator, reply, partial_reply), sampling)[len(partial_reply) :]
        tokens = whole[: sampling.max_new_tokens]
        speed_factor = _speed_factor(options.speed_factor_file)
        schedule = TokenSchedule(
            began_at=self._timeline.now(),
            first_token_s=options.first_token_s.draw(generator) / speed_factor,
            tokens=len(tokens),
            tokens_per_s=options.tokens_per_s * speed_factor,
        )
        finish = Finish.STOP if len(tokens) == len(whole) else Finish.LENGTH
        return _Reply(
            schedule=schedule,
            tokens=tokens,
            finish=finish,
            fails=generator.random() < options.failure_rate,
            sampling=sampling,
        )

    def _length_factor(self) -> float:
        """Returns the factor of the last change of the script that is due."""
        began_at, now = self._options.script_began_at, self._clock.wall()
        due = [
            change.factor
            for change in self._options.length_script
            if began_at is not None and began_at + change.after_s <= now
        ]
        return due[-1] if due else 1.0

    def _reply_length(self, generator: random.Random, reply: Int32Array, partial_reply: Int32Array) -> int:
        """Returns the length of a whole reply in tokens, drawn under the condition that it starts with
        `partial_reply`."""
        padding = int(np.count_nonzero(partial_reply == TOKENIZER.pad_token))
        min_length = padding + len(reply) + 1
        if padding < len(partial_reply):
            return min_length  # the partial reply has text, so no more padding follows
        factor = self._length_factor()
        lengths = (round(self._options.tokens.draw(generator) * factor) for _ in range(_MAX_LENGTH_DRAWS))
        return next((length for length in lengths if length >= min_length or not padding), min_length)

    def _generation_until(self, reply: "_Reply", until: float) -> Generation:
        tokens = reply.tokens[: reply.schedule.tokens_at(until)]
        return Generation(
            tokens=tokens,
            logprobs=_logprobs(tokens),
            spans=self._timeline.spans(reply.schedule, until=until),
            finish=reply.finish if len(tokens) == reply.schedule.tokens else Finish.ABORT,
            columns=_columns(tokens, reply.sampling),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reply:
    schedule: TokenSchedule
    tokens: Int32Array
    finish: Finish
    fails: bool
    sampling: Sampling


def _speed_factor(file: str) -> float:
    """Returns the factor in the file; 1 without a file. Raises: InvalidInput for other content."""
    try:
        content = Path(file).read_text() if file else ""
    except FileNotFoundError:
        return 1.0
    try:
        factor = float(content or 1.0)
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise InvalidInput(
            f"cannot use the speed factor {content[:40]!r} in {file!r}: it is not a number above 0; write a factor "
            "such as 0.2, or remove the file",
            code="engine.invalid_speed_factor",
        )
    return factor


def _padded(reply: Int32Array, length: int, sampling: Sampling) -> Int32Array:
    """Returns padding tokens up to the length, the reply and a stop token."""
    stop = sampling.stop_tokens[0] if sampling.stop_tokens else TOKENIZER.stop_tokens[0]
    padding = max(0, length - len(reply) - 1)
    whole = np.full(padding + len(reply) + 1, TOKENIZER.pad_token, dtype=np.int32)
    whole[padding:-1] = reply
    whole[-1] = stop
    return whole


def _columns(tokens: Int32Array, sampling: Sampling) -> TokenColumns:
    """Returns the sampled tokens as the most likely ones, with their logprobs, where the further ones are absent; and
    kept sets of the sampled token and its neighbour."""
    shape = (len(tokens), sampling.top_tokens)
    columns = {column: np.full(shape, column.absent, column.dtype) for column in TOP_COLUMNS if sampling.top_tokens}
    if columns:
        columns[TokenColumn.TOP_TOKENS][:, 0] = tokens
        columns[TokenColumn.TOP_LOGPROBS][:, 0] = _logprobs(tokens)
    if sampling.with_support:
        columns[TokenColumn.SUPPORT] = np.stack([tokens, tokens ^ 1], 1).astype("<i4")
    return columns


def _logprobs(tokens: Int32Array) -> Float32Array:
    """Returns numbers between -0.5 and 0 that depend only on the token."""
    return (-(tokens * 40_503 % 1024 + 1) / 2048).astype(np.float32)
