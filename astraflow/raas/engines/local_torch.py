"""Engine in this process: a Hugging Face model in torch with continuous batching, on a CPU or one GPU."""

import asyncio
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import nn

from astraflow.contract.errors import Conflict, InvalidInput, Unavailable
from astraflow.contract.ids import Version
from astraflow.contract.nodes import EvaluationMode
from astraflow.contract.rollouts.generation import Generation, Sampling
from astraflow.contract.rollouts.token_columns import TOP_COLUMNS, TokenColumn
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array
from astraflow.models import models
from astraflow.models.causal import cast
from astraflow.models.precision import ComputeDtype, compute_dtype_of, device_of, dtype_of, use_fast_float32_products
from astraflow.models.published import published_parameters
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.raas.engines import engines
from astraflow.raas.engines.base import COARSE, EXACT, ROUNDED, EngineGauges, LoadTimings, LogprobTolerance, PauseMode
from astraflow.raas.engines.local.batcher import BatchLimits
from astraflow.raas.engines.local.choice import exact_batcher
from astraflow.raas.engines.local.coarse import Coarsening, WeightForm
from astraflow.raas.engines.local.experts import ExpertRecorder
from astraflow.raas.engines.local.grammars import Grammars
from astraflow.raas.engines.local.parameters import (
    LayerAdapter,
    StagedTensor,
    UnmergedAdapters,
    stage,
    stage_adapted,
    swap,
)
from astraflow.raas.engines.local.sequences import Sequence, random_stream_key
from astraflow.raas.engines.local.slots import SlotBatcher
from astraflow.raas.engines.local.speculation import MAX_DRAFT, Speculation
from astraflow.raas.engines.local.worker import Worker
from astraflow.raas.engines.merged_adapters import RoundingWatch
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.weights.tensors import VerifiedWeights


class LocalTorchOptions(Config):
    """Device, precision and limits of the engine."""

    device: Annotated[str, SettableBy.AGENT] = "auto"
    """`auto` (the first GPU, else the CPU), `cpu`, `cuda`, `cuda:1`."""
    compute_dtype: Annotated[ComputeDtype, SettableBy.AGENT] = "auto"
    """`auto`: float32 on a CPU, bfloat16 on a GPU. Weights are upcast from the published bits exactly."""
    weights: Annotated[WeightForm, SettableBy.AGENT] = "exact"
    """Weights of linear layers as they are published, or rounded after their verification to integers of 8 or 4 bits
    with a scale for each 32 inputs. Nothing becomes faster: it shows how an algorithm bears a quantized server."""
    threads: int = Field(default=1, ge=1)
    """Threads of torch in the whole process. More than one helps only when cores are idle."""
    max_sequences: int = Field(default=256, ge=1)
    """Maximum sequences decoded at once; further sequences are queued."""
    cache_tokens: int = Field(default=65_536, ge=64)
    """Approximate size of the key-value cache: running sequences times the length of the longest."""
    prefill_tokens: int = Field(default=16_384, ge=1)
    """Maximum tokens of one prefill; bounds the pause in the decoding of other sequences."""
    prefix_bytes: int = Field(default=2**30, ge=0)
    """Memory for keys and values of ended requests, so that the next turn of a conversation computes only its new
    tokens; 0 keeps none."""
    speculation: Annotated[Literal["auto", "off"], SettableBy.AGENT] = "off"
    """`auto`: verifies tokens drafted from prompts, siblings and earlier answers where measured to be faster. It
    changes no distribution. Models with recurrent states cannot take tokens back and have none."""
    draft_tokens: int = Field(default=MAX_DRAFT, ge=1, le=MAX_DRAFT)
    """Maximum tokens drafted for a sequence in one step."""
    max_admission_wait_steps: int = Field(default=4, ge=0)
    """Maximum decode steps that queued sequences wait while they are fewer than a quarter of the running ones."""
    seed: int | None = None
    """Random seed; the result of a request then depends only on its id, prompt and weights. None: a random seed. A
    request with a seed of its own does not use it."""

    @property
    def limits(self) -> BatchLimits:
        """Limits of a batch."""
        return BatchLimits(
            sequences=self.max_sequences,
            cache_tokens=self.cache_tokens,
            prefill_tokens=self.prefill_tokens,
            prefix_bytes=self.prefix_bytes,
        )


@engines.register("local_torch", options=LocalTorchOptions)
class LocalTorchEngine:
    """Continuous batching over a transformers model with a slot cache.

    A thread decodes all running sequences together, one token each per step; between steps, finished sequences leave
    and queued sequences join in order of arrival. Equal prompts that join together, such as the members of a group, are
    prefilled once: with groups of 8 short answers that is most of the work. Keys and values of ended requests stay
    until the next swap, or until others need their memory, and a prompt that begins as one of them continues there. A
    prefill delays all running sequences by a step, so a few queued sequences wait for more, at most
    `max_admission_wait_steps`. The first queued sequence is never overtaken: while it does not fit into the cache,
    later sequences wait as well, so long requests do not starve.

    Weights are patched in place between two steps. A swap discards the cache and running sequences are prefilled again
    with the new weights, so every token's logprob comes from one version over its whole prefix, as the trainer
    recomputes it. `score` uses the same path, one forced token per step, so that it tests the generation path.
    """

    is_simulated = False
    evaluation_mode = EvaluationMode.SECOND_ENGINE

    def __init__(self, options: LocalTorchOptions, model: Mapping[str, Any]) -> None:
        device = device_of(options.device)
        dtype = compute_dtype_of(options.compute_dtype, device)
        torch.set_num_threads(options.threads)
        use_fast_float32_products(device)
        self._source = models.build(model)
        self._model = cast(self._source.architecture(), device=device, dtype=dtype).eval().requires_grad_(False)
        self._parameters = published_parameters(self._model)
        self._options = options
        self._seed = secrets.randbits(62) if options.seed is None else options.seed
        self._rounding = RoundingWatch(dtype_of(dtype))
        self._adapters = UnmergedAdapters(self._model)
        self.records = TOP_COLUMNS | {TokenColumn.SUPPORT}
        if ExpertRecorder(self._model).mixture is not None:
            self.records |= {TokenColumn.EXPERTS}
        self._coarsening = Coarsening(self._model, options.weights)
        self._tolerance = EXACT if dtype == torch.float32 else ROUNDED
        self._limits = options.limits
        config = self._model.config.get_text_config()
        self._context = min(getattr(config, "max_position_embeddings", options.cache_tokens), options.cache_tokens)
        self._vocab_size = int(config.vocab_size)
        self._worker: Worker | None = None
        self._is_closed = False
        self._served_base: tuple[bytes, frozenset[str]] | None = None
        """Root hash of the base of the served adapters, and what was added to it; None without adapters."""
        self._swap_lock = asyncio.Lock()
        self._in_flight: set[str] = set()
        self._unsent: list[Sequence] = []
        self._scores = 0

    @cached_property
    def _tokenizer(self) -> ChatTokenizer:
        return self._source.tokenizer()

    @cached_property
    def _grammars(self) -> Grammars:
        return Grammars(self._tokenizer, vocabulary=self._vocab_size)

    @property
    def version(self) -> Version | None:
        """Version loaded last; None until the first load and after a failed one."""
        return self._worker.version if self._worker else None

    @property
    def logprob_tolerance(self) -> LogprobTolerance:
        """`EXACT` in float32, `ROUNDED` in other types, `COARSE` with rounded weights."""
        return self._tolerance if self._coarsening.is_exact else COARSE

    async def start(self) -> None:
        """Returns at once; the thread starts with the first use."""

    async def wait_failed(self) -> str:
        """Waits without an end: a failed step fails its requests, and the engine continues."""
        await asyncio.Event().wait()
        raise AssertionError

    def gauges(self) -> EngineGauges:
        """Returns the running and the queued sequences, and the used share of the cache."""
        return self._worker.gauges() if self._worker is not None else EngineGauges()

    async def generate(self, request_id: str, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Continues `prompt` until a stop token or string, `max_new_tokens` or the end of the model's context.

        Raises: InvalidInput for an invalid prompt or sampling; Conflict for an id that is in flight; Unavailable
        before the first load and after `close`.
        """
        sampling = self._cut_to_context(prompt, sampling)
        if request_id in self._in_flight:
            raise Conflict(
                f"cannot generate: request {request_id!r} is in flight already; give every request its own id",
                code="engine.duplicate_request",
            )
        self._in_flight.add(request_id)
        try:
            return await self._complete(request_id, prompt, sampling)
        finally:
            self._in_flight.discard(request_id)

    async def score(self, tokens: Int32Array, scored_from: int) -> Float32Array:
        """Returns the logprobs of `tokens[scored_from:]`, also while paused. Raises: InvalidInput, Unavailable."""
        if not 1 <= scored_from < len(tokens):
            raise InvalidInput(
                f"cannot score {len(tokens)} tokens from {scored_from}: a scored token needs a prefix; give at least "
                "one token before and one after the start",
                code="engine.invalid_score_range",
            )
        forced = tokens[scored_from:]
        sampling = self._cut_to_context(tokens[:scored_from], Sampling(max_new_tokens=len(forced)))
        if sampling.max_new_tokens < len(forced):
            raise InvalidInput(
                f"cannot score {len(tokens)} tokens: the context of the engine has {self._context}; score fewer tokens",
                code="engine.context_exceeded",
            )
        self._check_ids(forced)
        self._scores += 1
        generation = await self._complete(f"\0score {self._scores}", tokens[:scored_from], sampling, forced=forced)
        if len(generation.logprobs) < len(forced):
            raise Unavailable(
                "cannot score: the engine was closed meanwhile; score with another engine", code="engine.closed"
            )
        return generation.logprobs

    async def load(self, weights: VerifiedWeights) -> LoadTimings:
        """Swaps to these weights between two steps; running requests continue with them.

        Raises: InvalidInput when they belong to another model; the previous weights then stay in service.
        """
        async with self._swap_lock:
            worker = self._started_worker()
            began_at = time.perf_counter()
            staged, adapters = await asyncio.to_thread(self._stage, weights, worker.version)
            stage_s = time.perf_counter() - began_at
            is_first = worker.version is None
            self._served_base = None  # unknown when the swap fails

            def exchange() -> list[torch.Tensor]:
                replaced = swap(staged, threads=self._options.threads)
                self._adapters.swap(adapters)
                if is_first:
                    worker.use(exact_batcher(self._model, self._limits, self._speculation()))
                return replaced

            swapped = await asyncio.wrap_future(
                worker.call(lambda: worker.swap_weights(weights.manifest.version, exchange))
            )
            resumed_at = await asyncio.wrap_future(swapped.resumed_at)
            self._served_base = _base_of(weights, is_merged=not adapters)
            await asyncio.to_thread(swapped.result.clear)
            rounded_away = 0.0 if adapters else await asyncio.to_thread(self._rounding.lost_share, weights)
            return LoadTimings(
                rounded_away=rounded_away,
                stage_s=stage_s,
                pause_s=swapped.pause_s,
                apply_s=swapped.apply_s,
                resume_s=resumed_at - swapped.ended_at,
            )

    async def pause(self, mode: PauseMode) -> None:
        """Stops generation; scoring continues."""
        worker = self._started_worker()
        self._send(worker)
        await asyncio.wrap_future(worker.call(partial(worker.pause, is_abort=mode is PauseMode.ABORT)))

    async def resume(self) -> None:
        """Resumes generation."""
        worker = self._started_worker()
        await asyncio.wrap_future(worker.call(worker.resume))

    async def abort(self, request_id: str) -> None:
        """Ends one request at once."""
        worker = self._started_worker()
        self._send(worker)
        work = partial(worker.abort, lambda sequence: sequence.request_id == request_id)
        await asyncio.wrap_future(worker.call(work))

    async def close(self) -> None:
        """Aborts all requests and ends the thread."""
        self._is_closed = True
        if self._worker is not None:
            self._send(self._worker)
            await asyncio.to_thread(self._worker.close)

    def _stage(
        self, weights: VerifiedWeights, serving: Version | None
    ) -> tuple[list[StagedTensor], Mapping[nn.Linear, LayerAdapter]]:
        """Returns the new values of parameters, and the adapters to compute beside them.

        In float32 adapters are added to the weights, which loses nothing and costs nothing in a step.
        """
        parameters, base = self._parameters, weights.adapter_base
        if not self._coarsening.is_exact:  # a changed element may change the scale of those around it
            if base is None:
                return self._coarsening.of(stage(weights, parameters, serving=None)), {}
            return self._coarsening.of(stage_adapted(weights, base, parameters, is_base_served=False)), {}
        if base is None:
            return stage(weights, parameters, serving=serving), {}
        if self._tolerance is not EXACT and (adapters := self._adapters.stage(weights, base, parameters)):
            is_base_served = self._served_base == _base_of(weights, is_merged=False)
            return [] if is_base_served else stage(base, parameters, serving=None), adapters
        is_base_served = self._served_base == _base_of(weights, is_merged=True)
        return stage_adapted(weights, base, parameters, is_base_served=is_base_served), {}

    async def _complete(
        self, request_id: str, prompt: Int32Array, sampling: Sampling, *, forced: Int32Array | None = None
    ) -> Generation:
        worker = self._started_worker()
        if worker.version is None:
            await self._wait_swapped(worker)
        has_grammar = bool(sampling.json_schema or sampling.regex)
        grammar = await asyncio.to_thread(self._grammars.of, sampling) if has_grammar else None
        loop = asyncio.get_running_loop()
        sequence = Sequence(
            request_id=request_id,
            prompt=prompt,
            sampling=sampling,
            random_key=random_stream_key(self._seed, request_id)
            if sampling.seed is None
            else random_stream_key(sampling.seed, "seed of a request"),
            reply=loop.create_future(),
            forced=forced,
            decode=partial(self._tokenizer.decode, keep_special_tokens=True) if sampling.stop_strings else None,
            grammar=grammar,
        )
        if not self._unsent:  # requests of one event loop iteration are sent, batched and prefilled together
            loop.call_soon(self._send, worker)
        self._unsent.append(sequence)
        try:
            return await sequence.reply
        except asyncio.CancelledError:
            self._send(worker)
            with suppress(Unavailable):  # closing aborts it as well
                worker.call(partial(worker.abort, lambda other: other is sequence))
            raise

    async def _wait_swapped(self, worker: Worker) -> None:
        """Waits for the swap in progress. Raises: Unavailable without one, and after one that failed."""
        if self._swap_lock.locked():
            async with self._swap_lock:
                pass
        if worker.version is None:
            raise Unavailable(
                "cannot generate: the engine has no weights; load a version first", code="engine.no_weights"
            )

    def _send(self, worker: Worker) -> None:
        unsent, self._unsent = self._unsent, []
        if unsent:
            worker.submit(unsent)

    def _started_worker(self) -> Worker:
        """Returns the worker; starts it on first use. Raises: Unavailable after `close`."""
        if self._is_closed:
            raise Unavailable(
                "cannot run the request: the engine is closed; send it to another engine", code="engine.closed"
            )
        if self._worker is None:
            options = self._options
            batcher = SlotBatcher(self._model, self._limits)
            self._worker = Worker(
                batcher, threads=options.threads, max_admission_wait_steps=options.max_admission_wait_steps
            )
            self._worker.start()
        return self._worker

    def _speculation(self) -> Speculation | None:
        """Returns new drafts. One thread on a CPU is measured by its own time, so that other load does not count."""
        options = self._options
        if options.speculation == "off":
            return None
        is_alone = self._model.device.type == "cpu" and options.threads == 1
        return Speculation(options.draft_tokens, clock=time.thread_time if is_alone else time.perf_counter)

    def _cut_to_context(self, prompt: Int32Array, sampling: Sampling) -> Sampling:
        """Returns `sampling` with `max_new_tokens` cut to the context. Raises: InvalidInput."""
        remaining_tokens = self._context - len(prompt)
        if not 1 <= len(prompt) < self._context:
            raise InvalidInput(
                f"cannot continue a prompt of {len(prompt)} tokens: the engine accepts 1 to {self._context - 1}; "
                "shorten it, or use a model with a longer context and a larger option cache_tokens",
                code="engine.context_exceeded",
            )
        is_in_range = sampling.max_new_tokens >= 1 and sampling.temperature >= 0 and 0 < sampling.top_p <= 1
        if not is_in_range or sampling.top_k < 0 or not 0 <= sampling.min_p <= 1:
            raise InvalidInput(
                f"cannot sample with {sampling}: a value is out of range; use max_new_tokens >= 1, temperature >= 0, "
                "0 < top_p <= 1, top_k >= 0 and 0 <= min_p <= 1",
                code="engine.invalid_sampling",
            )
        if sampling.experts and TokenColumn.EXPERTS not in self.records:
            raise InvalidInput(
                "cannot sample with experts: the model is no mixture; use a mixture of experts, or a loss without them",
                code="engine.unsupported_sampling",
            )
        self._check_ids(prompt)
        return replace(sampling, max_new_tokens=min(sampling.max_new_tokens, remaining_tokens))

    def _check_ids(self, tokens: Int32Array) -> None:
        """Checks that all ids are in the vocabulary; another id would fail the whole batch. Raises: InvalidInput."""
        if tokens.min() < 0 or tokens.max() >= self._vocab_size:
            raise InvalidInput(
                f"cannot use token ids from {tokens.min()} to {tokens.max()}: the model has 0 to "
                f"{self._vocab_size - 1}; use the tokenizer of the model",
                code="engine.unknown_token",
            )


def _base_of(weights: VerifiedWeights, *, is_merged: bool) -> tuple[bytes, frozenset[str]] | None:
    """Returns the root hash of the base of adapters, and the names of the tensors that are merged into it."""
    if weights.adapter_base is None:
        return None
    merged = frozenset(spec.name for spec in weights.manifest.tensors) if is_merged else frozenset()
    return weights.adapter_base.manifest.root_hash, merged
