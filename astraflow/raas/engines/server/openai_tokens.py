"""Engine behind a server that another team runs and refreshes: `/v1/completions` with token ids.

vLLM speaks it, and every endpoint that accepts a prompt of token ids and returns `token_ids` (`return_token_ids`) and
`logprobs` (0). The engine has no way to load weights. It trusts the probe of a version instead: a version is in service
once the server's logprobs agree with those of the trainer.
"""

import asyncio
import time
from collections.abc import Awaitable, Mapping
from itertools import count
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import Field

from astraflow.client.model_server import ServerRefused, ServerUnreachable
from astraflow.client.openai_server import COMPLETIONS, OpenAIClient, read_key
from astraflow.contract.errors import Conflict, InvalidInput, Unavailable
from astraflow.contract.ids import Version
from astraflow.contract.nodes import EvaluationMode
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling
from astraflow.contract.rollouts.token_columns import TokenColumn
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array
from astraflow.raas.engines import engines
from astraflow.raas.engines.base import EXACT, ROUNDED, EngineGauges, LoadTimings, LogprobTolerance, PauseMode
from astraflow.raas.engines.logprob_mismatch import logprob_mismatch
from astraflow.raas.engines.server.formats import parse_metrics
from astraflow.raas.engines.server.openai_formats import completion_request, parse_completion
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.logs import get_logger
from astraflow.weights.tensors import VerifiedWeights

log = get_logger()

_T = TypeVar("_T")

CONTROL_S = 30.0
"""Time limit of a score or a control request. Seconds."""
GAUGES_EVERY_S = 1.0
_ABORTED = Generation(tokens=np.empty(0, np.int32), logprobs=np.empty(0, np.float32), spans=(), finish=Finish.ABORT)


class OpenAITokensOptions(Config):
    """Address of the server, and what is known about it."""

    base_url: Annotated[str, SettableBy.RECIPE] = Field(pattern=r"^https?://[^\s?#]+$")
    """Address, such as `http://inference.internal:8000`, with or without a final `/v1`."""
    model: Annotated[str, SettableBy.RECIPE] = Field(min_length=1)
    """Name of the model on the server."""
    key_variable: Annotated[str, SettableBy.RECIPE] = Field(default="", pattern=r"^(ASTRAFLOW_ENGINE_KEY[A-Z0-9_]*)?$")
    """Name of the environment variable of the node with the server's key, `ASTRAFLOW_ENGINE_KEY` or a name that begins
    so: a run chooses the name and the address, and must not read other secrets of a node. Empty: no key."""
    dtype: Annotated[Literal["bfloat16", "float16", "float32"], SettableBy.AGENT] = "bfloat16"
    """Type of the served weights: the probe is exact in float32, and allows for rounding otherwise."""
    processed_logprobs: Annotated[bool, SettableBy.AGENT] = False
    """The server returns logprobs after temperature, top-p and the like (vLLM: `--logprobs-mode processed_logprobs`).
    Without it, requests with a temperature other than 1 or a truncated distribution are refused."""
    refresh_timeout_s: float = Field(default=120.0, ge=0)
    """Seconds that a load waits until the server serves the version; requests wait meanwhile."""
    refresh_poll_s: float = Field(default=1.0, gt=0)
    """Interval of the probe during that wait. Seconds."""
    request_timeout_s: float = Field(default=600.0, gt=0)
    """Time limit of a generation. Seconds."""
    attempts: int = Field(default=5, ge=1, le=20)
    """Attempts of a request that the server refused for its load (429, 503) or whose connection failed."""
    max_backoff_s: float = Field(default=30.0, gt=0)
    """Longest wait before the next attempt; a longer `Retry-After` of the server is cut to it. Seconds."""


@engines.register("openai_tokens", options=OpenAITokensOptions)
class OpenAITokensEngine:
    """Client of a server with `/v1/completions` and token ids, whose weights another party refreshes.

    `load` transfers nothing. It holds requests back, and waits until the server scores the probe of the version like
    the trainer; a version without a probe is refused. Refresh the server after a version is published: a generation
    that ran while the version in service changed is of unknown weights and fails, so `PauseMode.KEEP` waits for
    requests in flight instead of interrupting them, and spans hold the version at the start of the request. The
    protocol shows no versions, so a server that is refreshed before the version is published returns tokens under the
    previous version until then.

    An abort closes the connection, on which the server ends the request; its tokens are lost.
    """

    is_simulated = False
    records: frozenset[TokenColumn] = frozenset()
    evaluation_mode = EvaluationMode.SERVED_VERSION

    def __init__(self, options: OpenAITokensOptions, model: Mapping[str, Any], *, clock: Clock | None = None) -> None:
        """model: spec of the policy; not used, since the server has its model."""
        self._options = options
        self._clock = clock or SystemClock()
        self._key = read_key(options.key_variable)
        self._client: OpenAIClient | None = None
        self._observer: asyncio.Task[None] | None = None
        self._version: Version | None = None
        self._changes = 0
        """Begins and ends of loads: a generation that saw two values is of unknown weights."""
        self._open = asyncio.Event()
        """Set while requests are sent: the engine is neither paused nor loading."""
        self._open.set()
        self._is_paused = False
        self._is_loading = False
        self._is_closed = False
        self._requests: dict[str, asyncio.Future[None]] = {}
        """Completed to abort the request, by the caller's id."""
        self._sent = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._numbers = count()
        self._start_lock = asyncio.Lock()
        self._load_lock = asyncio.Lock()
        self._server_gauges: EngineGauges | None = None

    @property
    def version(self) -> Version | None:
        """Version that the server proved to serve; None before the first load and after a failed one."""
        return self._version

    @property
    def logprob_tolerance(self) -> LogprobTolerance:
        """`EXACT` in float32, `ROUNDED` otherwise."""
        return EXACT if self._options.dtype == "float32" else ROUNDED

    async def start(self) -> None:
        """Checks address and key. Raises: Unavailable, NotAuthenticated, InvalidInput for an unknown model."""
        async with self._start_lock:
            if self._observer is not None:
                return
            self._client = OpenAIClient(
                self._options.base_url,
                key=self._key,
                key_variable=self._options.key_variable,
                attempts=self._options.attempts,
                max_backoff_s=self._options.max_backoff_s,
                clock=self._clock,
            )
            try:
                await self._client.check_model(self._options.model, limit_s=CONTROL_S)
            except BaseException:
                await self._client.close()
                raise
            self._observer = asyncio.create_task(self._observe())

    async def wait_failed(self) -> str:
        """Waits without an end: requests fail while the server is away, and succeed when it is back."""
        await asyncio.Event().wait()
        raise AssertionError

    def gauges(self) -> EngineGauges:
        """Returns the load of the server from its `/metrics`; without them, the requests of this engine."""
        if self._server_gauges is not None:
            return self._server_gauges
        return EngineGauges(running=self._sent, waiting=len(self._requests) - self._sent)

    async def generate(self, request_id: str, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Continues `prompt`; waits while paused or loading.

        Raises: InvalidInput when the server refuses the request or its logprobs would be those of another distribution;
        Conflict for an id in flight; Unavailable before the first load, when the version changed meanwhile, and when
        the server cannot be reached; NotAuthenticated; RateLimited; CorruptData for an answer without token ids or
        logprobs.
        """
        if request_id in self._requests:
            raise Conflict(
                f"cannot generate: request {request_id!r} is in flight already; give every request its own id",
                code="engine.duplicate_request",
            )
        if self._version is None and not self._is_loading:
            raise Unavailable(
                "cannot generate: the engine has no weights; load a version first", code="engine.no_weights"
            )
        body = completion_request(
            self._options.model, prompt, sampling, has_processed_logprobs=self._options.processed_logprobs
        )
        aborted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests[request_id] = aborted
        try:
            return await self._until_aborted(self._complete(body), aborted)
        finally:
            del self._requests[request_id]

    async def score(self, tokens: Int32Array, scored_from: int) -> Float32Array:
        """Returns the logprobs of `tokens[scored_from:]`, also while paused. The server generates one token more.

        Raises: InvalidInput, Unavailable, NotAuthenticated, RateLimited, CorruptData.
        """
        if not 1 <= scored_from < len(tokens):
            raise InvalidInput(
                f"cannot score {len(tokens)} tokens from {scored_from}: a scored token needs a prefix; give at least "
                "one token before and one after the start",
                code="engine.invalid_score_range",
            )
        await self.start()
        assert self._client is not None  # noqa: S101 (set by start)
        return await self._client.token_logprobs(self._options.model, tokens, scored_from, limit_s=CONTROL_S)

    async def load(self, weights: VerifiedWeights) -> LoadTimings:
        """Waits until the server serves this version, by its probe; at most `refresh_timeout_s`.

        Returns also when the server still disagrees: the caller measures the mismatch and decides.
        Raises: InvalidInput for a version without a probe; the errors of `score`.
        """
        manifest = weights.manifest
        if manifest.probe is None:
            raise InvalidInput(
                f"cannot load version {manifest.version} of {manifest.policy!r}: it has no probe, which alone shows "
                "what a server of another party serves; set trainer.probe_every = 1",
                code="engine.probe_required",
            )
        await self.start()
        async with self._load_lock:
            began_at = time.perf_counter()
            self._set_loading(True)
            self._version = None
            try:
                deadline = self._clock.now() + self._options.refresh_timeout_s
                while True:
                    mismatch = await logprob_mismatch(self, manifest.probe)
                    if not mismatch.excess(self.logprob_tolerance) or self._clock.now() >= deadline:
                        break
                    await self._clock.sleep(self._options.refresh_poll_s)
                self._version = manifest.version
            finally:
                self._set_loading(False)
            return LoadTimings(apply_s=time.perf_counter() - began_at)

    async def pause(self, mode: PauseMode) -> None:
        """Holds further requests back. KEEP waits until those in flight are complete, ABORT ends them."""
        self._is_paused = True
        self._open.clear()
        if mode is PauseMode.ABORT:
            for request_id in list(self._requests):
                await self.abort(request_id)
        await self._is_idle.wait()

    async def resume(self) -> None:
        """Sends requests again."""
        self._is_paused = False
        self._update_open()

    async def abort(self, request_id: str) -> None:
        """Closes the connection of one request."""
        aborted = self._requests.get(request_id)
        if aborted is not None and not aborted.done():
            aborted.set_result(None)

    async def close(self) -> None:
        """Aborts all requests and closes the connections."""
        self._is_closed = True
        await self.pause(PauseMode.ABORT)
        if self._observer is not None:
            self._observer.cancel()
            await asyncio.wait({self._observer})
        if self._client is not None:
            await self._client.close()

    async def _until_aborted(self, work: Awaitable[Generation], aborted: asyncio.Future[None]) -> Generation:
        task = asyncio.ensure_future(work)
        waits: set[asyncio.Future[Any]] = {task, aborted}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else _ABORTED
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    async def _complete(self, body: Mapping[str, Any]) -> Generation:
        """Sends one request when the engine is open. Raises: Unavailable when the version changed meanwhile."""
        await self._open.wait()
        if self._version is None:
            raise Unavailable(
                "cannot generate: the server does not serve the version that was loaded last; refresh it",
                code="engine.no_weights",
            )
        version, changes = self._version, self._changes
        self._count_sent(1)
        try:
            answer = await self._post(
                {**body, "request_id": f"astraflow-{next(self._numbers)}"}, limit_s=self._options.request_timeout_s
            )
        finally:
            self._count_sent(-1)
        if changes != self._changes:
            raise Unavailable(
                f"cannot use the generation: the server was refreshed while it ran, after version {version}, and its "
                "protocol shows no versions; the episode is repeated",
                code="engine.version_changed",
            )
        return parse_completion(answer, version)

    async def _post(self, body: Mapping[str, Any], *, limit_s: float) -> Any:
        assert self._client is not None  # noqa: S101 (set by start)
        return await self._client.post(COMPLETIONS, body, limit_s=limit_s)

    def _set_loading(self, is_loading: bool) -> None:
        self._changes += 1
        self._is_loading = is_loading
        self._update_open()

    def _update_open(self) -> None:
        if self._is_paused or self._is_loading or self._is_closed:
            self._open.clear()
        else:
            self._open.set()

    def _count_sent(self, change: int) -> None:
        self._sent += change
        if self._sent:
            self._is_idle.clear()
        else:
            self._is_idle.set()

    async def _observe(self) -> None:
        """Updates the gauges once a second; ends when the server has no metrics."""
        assert self._client is not None  # noqa: S101 (set by start)
        while True:
            try:
                self._server_gauges = await _gauges(self._client)
            except ServerRefused as problem:
                log.info("engine_without_metrics", server=self._options.base_url, status=problem.status)
                self._server_gauges = None
                return
            await self._clock.sleep(GAUGES_EVERY_S)


async def _gauges(client: OpenAIClient) -> EngineGauges | None:
    """Returns the load by `/metrics`; None while it is unknown. Raises: ServerRefused for a server without them."""
    try:
        text = await client.get_once("/metrics", limit_s=5.0)
        prefix = next((prefix for prefix in ("vllm:", "sglang:") if prefix in text), None)
        return parse_metrics(text, prefix=prefix).gauges if prefix else None
    except (ServerUnreachable, TimeoutError, ValueError):  # ValueError: a line in another format
        return None
