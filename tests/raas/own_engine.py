"""The engine of docs/how-to/own-engine.md: a model in this process, without a batch or a cache. Slow and simple."""

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.ids import Version
from astraflow.contract.nodes import EvaluationMode
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling, VersionSpan, joined
from astraflow.contract.rollouts.token_columns import TokenColumn
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array
from astraflow.models import models
from astraflow.models.causal import named_weights
from astraflow.models.precision import bits_at, values_of
from astraflow.raas.engines import engines
from astraflow.raas.engines.base import EXACT, EngineGauges, LoadTimings, PauseMode
from astraflow.runtime.config.base import Config
from astraflow.weights.tensors import VerifiedWeights


class OwnOptions(Config):
    """Options of the engine: it has none."""


@engines.register("own", options=OwnOptions)
class OwnEngine:
    """Computes each token with a forward pass over the whole prefix, so that no cache can be stale."""

    is_simulated = False
    evaluation_mode = EvaluationMode.SECOND_ENGINE
    records: frozenset[TokenColumn] = frozenset()
    logprob_tolerance = EXACT

    def __init__(self, options: OwnOptions, model: Mapping[str, Any]) -> None:
        self._model = models.build(model).architecture().eval().requires_grad_(False)
        self.version: Version | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._is_closed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._running: set[str] = set()
        self._aborted: set[str] = set()

    async def start(self) -> None:
        """Nothing to start."""

    async def wait_failed(self) -> str:
        """Never fails as a whole."""
        await asyncio.Event().wait()
        raise AssertionError

    def gauges(self) -> EngineGauges:
        return EngineGauges(running=len(self._running))

    async def generate(self, request_id: str, prompt: Int32Array, sampling: Sampling) -> Generation:
        if self.version is None:
            raise Unavailable("cannot generate: load a version first", code="engine.no_weights")
        if not sampling.is_full_distribution or sampling.stop_strings or sampling.seed is not None:
            raise InvalidInput("cannot sample: only temperature is supported", code="engine.unsupported_sampling")
        self._running.add(request_id)
        self._idle.clear()
        written = Generation(
            tokens=np.empty(0, np.int32), logprobs=np.empty(0, np.float32), spans=(), finish=Finish.LENGTH
        )
        try:
            while len(written.tokens) < sampling.max_new_tokens:
                await asyncio.sleep(0)  # other requests, and the calls below, take their turn
                if request_id in self._aborted or self._is_closed:
                    return joined(written, _nothing(Finish.ABORT))
                if not self._open.is_set():
                    await self._open.wait()
                    continue
                token, logprob = self._next(np.concatenate([prompt, written.tokens]), sampling)
                finish = Finish.STOP if token in sampling.stop_tokens else Finish.LENGTH
                written = joined(
                    written,
                    Generation(
                        tokens=np.array([token], dtype=np.int32),
                        logprobs=np.array([logprob], dtype=np.float32),
                        spans=(VersionSpan(version=self.version, length=1),),
                        finish=finish,
                    ),
                )
                if finish is Finish.STOP:
                    break
            return written
        finally:
            self._running.discard(request_id)
            self._aborted.discard(request_id)
            if not self._running:
                self._idle.set()

    async def score(self, tokens: Int32Array, scored_from: int) -> Float32Array:
        scores = self._distributions(tokens)[:-1].gather(1, torch.from_numpy(tokens.astype(np.int64))[1:, None])
        return np.asarray(scores[scored_from - 1 :, 0].numpy(), dtype=np.float32)

    async def load(self, weights: VerifiedWeights) -> LoadTimings:
        parameters = named_weights(self._model)
        for spec in weights.manifest.tensors:
            values = values_of(bits_at(weights.buffer, spec), spec.dtype, into=torch.float32)
            parameters[spec.name].copy_(values.view(spec.shape))
        self.version = weights.manifest.version
        return LoadTimings(apply_s=0.0)

    async def pause(self, mode: PauseMode) -> None:
        self._open.clear()
        if mode is PauseMode.ABORT:
            self._aborted.update(self._running)
            self._open.set()  # lets held requests see it
            await self._idle.wait()
            self._open.clear()

    async def resume(self) -> None:
        self._open.set()

    async def abort(self, request_id: str) -> None:
        if request_id in self._running:
            self._aborted.add(request_id)

    async def close(self) -> None:
        self._is_closed = True
        self._open.set()

    def _next(self, tokens: Int32Array, sampling: Sampling) -> tuple[int, float]:
        logprobs = self._distributions(tokens, sampling.temperature)[-1]
        token = int(torch.multinomial(logprobs.exp(), 1))
        return token, min(0.0, float(logprobs[token]))

    def _distributions(self, tokens: Int32Array, temperature: float = 1.0) -> torch.Tensor:
        logits = self._model(input_ids=torch.from_numpy(tokens.astype(np.int64))[None], use_cache=False).logits[0]
        distributions: torch.Tensor = (logits.float() / temperature).log_softmax(-1)
        return distributions


def _nothing(finish: Finish) -> Generation:
    return Generation(tokens=np.empty(0, np.int32), logprobs=np.empty(0, np.float32), spans=(), finish=finish)
