"""An engine in this process: a Hugging Face model in torch, batched continuously, on a CPU or one GPU."""

import asyncio
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import torch
from pydantic import Field

from astraflow.contract.errors import Conflict, InvalidInput, Unavailable
from astraflow.contract.generation import Generation, Sampling
from astraflow.contract.ids import Version
from astraflow.contract.trajectories import Float32Array, Int32Array
from astraflow.models import models
from astraflow.models.causal import cast, check_supported, named_weights
from astraflow.models.precision import ComputeDtype, compute_dtype_of, device_of
from astraflow.raas.engines import engines
from astraflow.raas.engines.base import EngineLoad, PauseMode
from astraflow.raas.engines.local.batcher import Batcher, BatchLimits
from astraflow.raas.engines.local.parameters import StagedTensor, stage, stage_adapted, swap
from astraflow.raas.engines.local.sequences import Sequence, stream_key
from astraflow.raas.engines.local.worker import Worker
from astraflow.runtime.config import Config
from astraflow.runtime.overrides import SetBy
from astraflow.weights.tensors import VerifiedWeights

_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}
"""Logprob gaps to the trainer that different orders of summation explain, by compute type; float32 is held to what the
run promises."""


class LocalTorchOptions(Config):
    """Where and how much at once."""

    device: Annotated[str, SetBy.AGENT] = "auto"
    """`auto` (the first GPU, else the CPU), `cpu`, `cuda`, `cuda:1`."""
    compute_dtype: ComputeDtype = "auto"
    """`auto`: float32 on a CPU, bfloat16 on a GPU. Weights are upcast from the published bits exactly."""
    threads: int = Field(default=1, ge=1)
    """Of torch, in this whole process. More than one only helps when cores are idle."""
    max_sequences: int = Field(default=256, ge=1)
    """Sequences decoded at once; more wait in line."""
    cache_tokens: int = Field(default=65_536, ge=64)
    """Size of the key-value cache: running sequences times the length of the longest, about."""
    prefill_tokens: int = Field(default=16_384, ge=1)
    """Of one prefill: bounds the pause it makes in the decoding of others."""
    patience_steps: int = Field(default=4, ge=0)
    """Decode steps that newcomers wait for company when they are less than a quarter of what runs."""
    seed: int | None = None
    """Of all randomness; what a request writes then depends on its id, prompt and weights alone. None: drawn anew."""


@engines.register("local_torch", options=LocalTorchOptions)
class LocalTorchEngine:
    """Continuous batching over transformers' model with a cache of slots.

    A thread decodes all running sequences together, one token each a step; between steps, finished ones leave at once
    and queued ones join in order of arrival. Prompts that join together and are equal, as the members of a group are,
    are prefilled once: with groups of 8 short answers that is most of the work. A prefill costs everybody a step, so a
    few newcomers wait for company, at most `patience_steps`. The first in line is never overtaken: when its length does
    not fit into the cache yet, those behind it wait as well, so long requests are not starved by short ones.

    Weights are patched in place between two steps. No cached key or value survives a swap: what runs is prefilled again
    with the new weights, so every token's logprob is that of one version over its whole prefix, which is what the
    trainer recomputes. `score` takes the same path, one forced token a step, so that it checks what generates.
    """

    is_simulated = False

    def __init__(self, options: LocalTorchOptions, model: Mapping[str, Any]) -> None:
        device = device_of(options.device)
        dtype = compute_dtype_of(options.compute_dtype, device)
        torch.set_num_threads(options.threads)
        self._model = cast(models.build(model).architecture(), device=device, dtype=dtype).eval().requires_grad_(False)
        self._options = options
        self._seed = secrets.randbits(62) if options.seed is None else options.seed
        self._tolerance = _TOLERANCE[dtype]
        self._limits = BatchLimits(
            sequences=options.max_sequences, cache_tokens=options.cache_tokens, prefill_tokens=options.prefill_tokens
        )
        config = self._model.config.get_text_config()
        self._context = min(getattr(config, "max_position_embeddings", options.cache_tokens), options.cache_tokens)
        self._vocab_size = int(config.vocab_size)
        self._worker: Worker | None = None
        self._is_closed = False
        self._base_root: bytes | None = None
        """Of what the adapters that are served were added to."""
        self._swapping = asyncio.Lock()
        self._in_flight: set[str] = set()
        self._unsent: list[Sequence] = []
        self._scores = 0

    @property
    def version(self) -> Version | None:
        """The version it serves."""
        return self._worker.version if self._worker else None

    @property
    def logprob_tolerance(self) -> float:
        """1e-3 nats in float32; more where arithmetic is coarser."""
        return self._tolerance

    async def generate(self, request_id: str, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Continue `prompt`, until a stop token, `max_new_tokens` or the end of the model's context.

        Raises: InvalidInput for a prompt that cannot be continued; Conflict for an id that is in flight; Unavailable
        before the first load and after `close`.
        """
        sampling = self._fitted(prompt, sampling)
        if request_id in self._in_flight:
            raise Conflict(f"request {request_id!r} is in flight already: every request needs an id of its own")
        self._in_flight.add(request_id)
        try:
            return await self._complete(request_id, prompt, sampling)
        finally:
            self._in_flight.discard(request_id)

    async def score(self, tokens: Int32Array, scored_from: int) -> Float32Array:
        """Logprobs of `tokens[scored_from:]`, also while paused. Raises: InvalidInput, Unavailable."""
        if not 1 <= scored_from < len(tokens):
            raise InvalidInput(
                f"scoring {len(tokens)} tokens from {scored_from}: at least one must stand before, one after"
            )
        forced = tokens[scored_from:]
        sampling = self._fitted(tokens[:scored_from], Sampling(max_new_tokens=len(forced)))
        if sampling.max_new_tokens < len(forced):
            raise InvalidInput(f"scoring {len(tokens)} tokens: the engine's context holds only {self._context}")
        self._check_ids(forced)
        self._scores += 1
        generation = await self._complete(f"\0score {self._scores}", tokens[:scored_from], sampling, forced=forced)
        if len(generation.logprobs) < len(forced):
            raise Unavailable("the engine was closed while it scored")
        return generation.logprobs

    async def load(self, weights: VerifiedWeights) -> EngineLoad:
        """Swap to these weights between two steps; what runs goes on with them.

        Raises: InvalidInput when they are of another model; then the old ones go on serving.
        """
        async with self._swapping:
            worker = self._started()
            began = time.perf_counter()
            staged = await asyncio.to_thread(self._staged, weights, worker.version)
            stage_s = time.perf_counter() - began
            is_first = worker.version is None

            def exchange() -> list[torch.Tensor]:
                replaced = swap(staged, threads=self._options.threads)
                if is_first:
                    check_supported(self._model)
                return replaced

            served = await asyncio.wrap_future(worker.call(lambda: worker.serve(weights.manifest.version, exchange)))
            resumed_at = await asyncio.wrap_future(served.resumed_at)
            self._base_root = weights.adapts.manifest.root_hash if weights.adapts else None
            await asyncio.to_thread(served.swapped.clear)
            return EngineLoad(
                stage_s=stage_s,
                pause_s=served.pause_s,
                apply_s=served.apply_s,
                resume_s=resumed_at - served.ended_at,
            )

    async def pause(self, mode: PauseMode) -> None:
        """Stop generating; scoring goes on."""
        worker = self._started()
        self._send(worker)
        await asyncio.wrap_future(worker.call(partial(worker.pause, is_abort=mode is PauseMode.ABORT)))

    async def resume(self) -> None:
        """Go on."""
        worker = self._started()
        await asyncio.wrap_future(worker.call(worker.resume))

    async def abort(self, request_id: str) -> None:
        """End one request now."""
        worker = self._started()
        self._send(worker)
        work = partial(worker.abort, lambda sequence: sequence.request_id == request_id)
        await asyncio.wrap_future(worker.call(work))

    async def close(self) -> None:
        """Abort everything, end the thread, free the model."""
        self._is_closed = True
        if self._worker is not None:
            self._send(self._worker)
            await asyncio.to_thread(self._worker.close)

    def _staged(self, weights: VerifiedWeights, serving: Version | None) -> list[StagedTensor]:
        parameters = named_weights(self._model)
        if weights.adapts is None:
            return stage(weights, parameters, serving=serving)
        is_base_served = self._base_root == weights.adapts.manifest.root_hash
        return stage_adapted(weights, weights.adapts, parameters, is_base_served=is_base_served)

    async def _complete(
        self, request_id: str, prompt: Int32Array, sampling: Sampling, *, forced: Int32Array | None = None
    ) -> Generation:
        worker = self._started()
        if worker.version is None:
            raise Unavailable("the engine has no weights yet: it generates after its first load")
        loop = asyncio.get_running_loop()
        sequence = Sequence(
            request_id=request_id,
            prompt=prompt,
            sampling=sampling,
            key=stream_key(self._seed, request_id),
            reply=loop.create_future(),
            forced=forced,
        )
        if not self._unsent:  # what is asked for in one turn of the loop is sent, batched and prefilled together
            loop.call_soon(self._send, worker)
        self._unsent.append(sequence)
        try:
            return await sequence.reply
        except asyncio.CancelledError:
            self._send(worker)
            with suppress(Unavailable):  # closing aborts it as well
                worker.call(partial(worker.abort, lambda other: other is sequence))
            raise

    def _send(self, worker: Worker) -> None:
        unsent, self._unsent = self._unsent, []
        if unsent:
            worker.submit(unsent)

    def _started(self) -> Worker:
        """The worker, started when it is first needed. Raises: Unavailable after `close`."""
        if self._is_closed:
            raise Unavailable("the engine is closed")
        if self._worker is None:
            options = self._options
            batcher = Batcher(self._model, self._limits)
            self._worker = Worker(batcher, threads=options.threads, patience_steps=options.patience_steps)
            self._worker.start()
        return self._worker

    def _fitted(self, prompt: Int32Array, sampling: Sampling) -> Sampling:
        """`sampling` cut to the context. Raises: InvalidInput."""
        room = self._context - len(prompt)
        if not 1 <= len(prompt) < self._context:
            raise InvalidInput(
                f"a prompt of {len(prompt)} tokens cannot be continued: the engine takes 1 to {self._context - 1}, the "
                "smaller of the model's context and the option cache_tokens, less one"
            )
        if sampling.max_new_tokens < 1 or sampling.temperature < 0 or not 0 < sampling.top_p <= 1:
            raise InvalidInput(f"{sampling}: needs max_new_tokens >= 1, temperature >= 0 and 0 < top_p <= 1")
        self._check_ids(prompt)
        return replace(sampling, max_new_tokens=min(sampling.max_new_tokens, room))

    def _check_ids(self, tokens: Int32Array) -> None:
        """One id outside the vocabulary would break the step of everybody in the batch. Raises: InvalidInput."""
        if tokens.min() < 0 or tokens.max() >= self._vocab_size:
            raise InvalidInput(
                f"token ids from {tokens.min()} to {tokens.max()}: the model has 0 to {self._vocab_size - 1}"
            )
