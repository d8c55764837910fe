"""Interface of serving engines; one engine serves one policy.

An engine in this process (`local_torch`, `scripted`) and one behind HTTP (`sglang`, `vllm`, `openai_tokens`) have the
same interface: token ids in; token ids, logprobs and version spans out.
"""

from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Protocol

from astraflow.contract.ids import Version
from astraflow.contract.nodes import EvaluationMode
from astraflow.contract.rollouts.generation import Generation, Sampling
from astraflow.contract.rollouts.token_columns import TokenColumn
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array
from astraflow.weights.tensors import VerifiedWeights


class PauseMode(Enum):
    """Treatment of requests in flight during a pause."""

    KEEP = "keep"
    """Requests wait. When generation resumes, the engine computes the key-value cache of their prefix again with the
    weights in service, so that each token's logprob is that of one version over the whole prefix, as a trainer
    recomputes it; their spans show both versions. Continuing on the cache of the old weights changes logprobs by
    several nats. SGLang: `retract` and a cache flush, not `in_place`; vLLM: `keep` with `clear_cache`."""
    ABORT = "abort"
    """Requests end at once with the tokens generated so far and `Finish.ABORT`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineGauges:
    """Load of an engine, at most a second old."""

    running: int = 0
    """Requests that are generating. Count."""
    waiting: int = 0
    """Requests in the queue of the engine. Count."""
    cache_used: float = 0.0
    """Used share of the key-value cache, 0 to 1."""
    cache_tokens: int = 0
    """Tokens that the cache of a server holds. Count; 0 for engines that do not say."""
    restarts: int = 0
    """Restarts of the engine's servers so far. Count."""
    prompt_tokens: int = 0
    """Tokens of prompts so far. Count; 0 for engines that do not say."""
    cached_tokens: int = 0
    """Tokens of prompts that were in a cache, and were not computed again. Count."""
    prefix_moves: int = 0
    """Prompts that went to another server than the one which had computed most of them. Count."""
    lost_prefix_tokens: int = 0
    """Tokens of prompts that another server had in its cache, and the chosen one had not. Count."""
    drafts: int = 0
    """Drafts of speculation that were verified so far. Count."""
    drafted_tokens: int = 0
    """Tokens of these drafts. Count."""
    accepted_drafts: tuple[int, ...] = ()
    """Drafts whose first 1, 2, ... tokens were accepted; empty for engines that do not say. Count."""
    accepted_tokens: int = 0
    """Accepted tokens. Count."""
    speculation_gain: float | None = None
    """Tokens per second of recent steps against the same steps without drafts; 1 while drafting does not pay; None for
    engines that do not measure it."""
    reply_length: float | None = None
    """Factor on the length of replies of a simulated engine whose load follows a script; None for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobTolerance:
    """Largest accepted logprob differences to the trainer after a load, over the tokens of the probe, in nats."""

    max: float = inf
    mean: float = inf
    p99: float = inf
    """99th percentile; needs a probe of at least `MIN_P99_TOKENS` tokens, otherwise the maximum must not exceed twice
    this value."""
    precision: str = ""
    """Precision of an engine with this tolerance, as nodes report it; empty when unknown."""


MIN_P99_TOKENS = 256

EXACT = LogprobTolerance(max=1e-3, precision="float32")
"""Tolerance in float32."""
ROUNDED = LogprobTolerance(mean=0.02, p99=0.25, precision="16 bits")
"""Tolerance in bfloat16 and float16, where the largest of a few differences is 0.1 to 0.2 for noisy weights."""
COARSE = LogprobTolerance(mean=0.5, precision="weights of few bits")
"""Tolerance of weights that are rounded to few bits; those of another version differ by more."""
UNLIMITED = LogprobTolerance()
"""Tolerance of simulated engines, whose logprobs are not those of a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTimings:
    """Duration of the phases of a weight load, in seconds."""

    stage_s: float = 0.0
    """Preparation of the new weights while the old weights serve."""
    pause_s: float = 0.0
    """Time until no request was running: the step in flight ends first, and its tokens count."""
    apply_s: float
    """Duration of the swap."""
    resume_s: float = 0.0
    """Time until interrupted requests continued, or could."""
    rounded_away: float = 0.0
    """Share of the change by adapters that the engine lost by rounding their sum with the base; 0 where it serves them
    unmerged, or sums in float32."""

    @property
    def stopped_s(self) -> float:
        """Duration of the pause with all its phases, in seconds."""
        return self.pause_s + self.apply_s + self.resume_s


class Engine(Protocol):
    """Generates tokens for prompts with the weights loaded last.

    Built by `engines.build(spec, model)` with the policy's model spec. An engine may raise any exception; the caller
    turns it into a failed episode with the boundary `engine`.
    """

    @property
    def version(self) -> Version | None:
        """Version loaded last; None until the first load."""

    @property
    def is_simulated(self) -> bool:
        """True for simulated engines; every report shows it."""

    @property
    def records(self) -> frozenset[TokenColumn]:
        """Columns of tokens that the engine records when a request asks for them."""

    @property
    def evaluation_mode(self) -> EvaluationMode:
        """Way in which a node serves pinned versions with engines of this kind."""

    @property
    def logprob_tolerance(self) -> LogprobTolerance:
        """Largest accepted logprob differences to the trainer after a load."""

    async def start(self) -> None:
        """Prepares to load weights; returns when `load` can be called. Starts the server of an engine that has one.

        Raises: Unavailable when the server does not start.
        """

    async def wait_failed(self) -> str:
        """Waits until the engine cannot be kept running; returns the reason.

        Restarts of a server within its budget do not end the wait.
        """

    def gauges(self) -> EngineGauges:
        """Returns the load of the engine."""

    async def generate(self, request_id: str, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Continues `prompt` (int32 `[n]`, n ≥ 1). Calls may run concurrently; the engine batches them."""

    async def score(self, tokens: Int32Array, scored_from: int) -> Float32Array:
        """Returns logprobs at temperature 1 of `tokens[scored_from:]` given the prefix: float32 `[n - scored_from]`."""

    async def load(self, weights: VerifiedWeights) -> LoadTimings:
        """Swaps to these weights; preparation happens before generation stops.

        Returns when no token is generated on the cache of older weights. After an error the weights in service are
        unknown, unless the error is InvalidInput: `version` is then None until the next load.

        `weights.changes` lets an engine that already serves `weights.base` patch in place.
        """

    async def pause(self, mode: PauseMode) -> None:
        """Stops generation; returns when no request runs."""

    async def resume(self) -> None:
        """Resumes generation."""

    async def abort(self, request_id: str) -> None:
        """Ends one request at once; its `generate` returns with `Finish.ABORT`. Unknown ids are ignored."""

    async def close(self) -> None:
        """Aborts all requests and frees the resources."""
