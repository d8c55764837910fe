"""Training on one device: a CPU or one GPU."""

import time
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from transformers import PreTrainedModel

from astraflow.algorithms.base import advantages
from astraflow.algorithms.config import AlgorithmConfig
from astraflow.algorithms.losses import losses
from astraflow.algorithms.losses.base import BatchFacts, LossTokens
from astraflow.contract.batches import Batch
from astraflow.contract.errors import CorruptData
from astraflow.contract.weights import Probe
from astraflow.models import models
from astraflow.models.causal import cast, check_supported, hidden_states, logits_at, named_weights
from astraflow.models.precision import (
    WeightsDtype,
    compute_dtype_of,
    device_of,
    torch_dtype_of,
    weights_dtype_of,
)
from astraflow.runtime.config import Config
from astraflow.runtime.logs import get_logger
from astraflow.runtime.overrides import SetBy
from astraflow.trainer.backends import backends, state_files
from astraflow.trainer.backends.host_copy import HostCopy
from astraflow.trainer.backends.masters import AdamWSettings, Masters
from astraflow.trainer.backends.metrics import StepMetrics
from astraflow.trainer.backends.probe import ProbeText, made_up_text, scored, text_from
from astraflow.trainer.collate import Collated, MicroBatch, PackingLimits, collate
from astraflow.trainer.preparation import prepare_model
from astraflow.weights.drafts import Draft
from astraflow.weights.tensors import TensorShapes

log = get_logger()

_FORMAT = 1
_MASTERS, _RANDOM, _NUMBERS = "masters.safetensors", "random.safetensors", "state.json"


class SingleOptions(Config):
    """Optimizer, precision, and how much goes through the model at once."""

    learning_rate: float = Field(default=1e-6, gt=0)
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    """Not applied to norms and biases."""
    warmup_steps: int = Field(default=0, ge=0)
    """The learning rate grows to its value over that many steps."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient."""
    weights_dtype: WeightsDtype = "bfloat16"
    """What weights are rounded to and published in, while the optimizer keeps them in float32."""
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto`: float32 on a CPU, bfloat16 on a GPU."""
    device: Annotated[str, SetBy.AGENT] = "auto"
    """`auto` (the first GPU, else the CPU), `cpu`, `cuda`, `cuda:1`."""
    threads: int = Field(default=1, ge=1)
    """Of torch, in this whole process."""
    micro_batch_tokens: int = Field(default=16_384, ge=1)
    """Of one forward and backward, padding included: bounds memory, changes no result."""
    pack_tokens: int = Field(default=1024, ge=1)
    """Members of a group share one computation of their prompt if that and their answers are no longer than this."""
    probe_sequences: int = Field(default=8, ge=1)
    probe_tokens: int = Field(default=256, ge=2)
    """Length that sequences of the probe are cut to."""


@backends.register("single", options=SingleOptions)
class SingleBackend:
    """A model, float32 masters behind its rounded weights, and one AdamW step a batch.

    The model is prepared (downloaded weights found, warm start run) when the backend is built.
    """

    is_simulated = False

    def __init__(
        self, options: SingleOptions, model: Mapping[str, Any], algorithm: Mapping[str, Any], *, seed: int
    ) -> None:
        self._options = options
        self._algorithm = AlgorithmConfig.parse(algorithm, where="algorithm")
        self._advantages = [advantages.build(spec) for spec in self._algorithm.advantages]
        self._loss = losses.build(self._algorithm.loss)
        self._device = device_of(options.device)
        self._dtype = weights_dtype_of(options.weights_dtype)
        torch.set_num_threads(options.threads)
        torch.manual_seed(seed)
        self._model = self._first_model(model)
        self._masters = Masters(
            named_weights(self._model),
            _settings(options),
            rounded_to=torch_dtype_of(self._dtype),
        )
        self._host_copy = HostCopy(self._device)
        check_supported(self._model)
        self._reference = deepcopy(self._model).requires_grad_(False) if self._loss.needs_reference else None
        self._probe_text = made_up_text(
            self._model.config.get_text_config().vocab_size,
            sequences=options.probe_sequences,
            tokens=min(16, options.probe_tokens),
            seed=seed,
        )

    def step(self, batch: Batch) -> Mapping[str, float]:
        """One optimizer step over the whole batch."""
        began = time.perf_counter()
        collated, is_counted = self._collated(batch)
        gains = self._gains(collated, is_counted)
        facts = BatchFacts(
            tokens=int(collated.lengths[is_counted].sum()),
            trajectories=int(is_counted.sum()),
            lengths=collated.lengths.to(self._device),
        )
        metrics = StepMetrics(batch, facts, device=self._device)
        self._model.train()
        for micro_batch in collated.micro_batches:
            self._learn(micro_batch.to(self._device), gains.to(self._device), facts, metrics)
        learning_rate = self._masters.learning_rate
        grad_norm = self._masters.step(is_sound=metrics.is_sound)
        if grad_norm is None:
            log.error("step_skipped", batch=batch.id, why="loss or gradient is not a finite number")
        limits = {"sequences": self._options.probe_sequences, "tokens": self._options.probe_tokens}
        self._probe_text = text_from(batch, **limits) or self._probe_text
        return {
            **metrics.result(advantages=gains, duration_s=time.perf_counter() - began),
            "grad_norm": grad_norm or 0.0,
            "learning_rate": learning_rate,
            "skipped": float(grad_norm is None),
        }

    @property
    def published(self) -> TensorShapes:
        """The model's weights in the type they are rounded to."""
        return {name: (self._dtype, tuple(weight.shape)) for name, weight in self._masters.weights().items()}

    def snapshot(self, draft: Draft) -> None:
        """The rounded weights now."""
        with draft.writing() as places:
            self._host_copy.write(self._masters.weights(), places, torch_dtype_of(self._dtype))

    def probe(self) -> Probe:
        """Texts of the last batch, scored."""
        self._model.eval()
        return scored(self._model, self._probe_text)

    def save(self, folder: Path) -> None:
        """Masters and optimizer, random state, and what the probe is made of."""
        state_files.write_tensors(folder / _MASTERS, self._masters.tensors())
        state_files.write_tensors(folder / _RANDOM, state_files.random_state(self._device))
        text = self._probe_text
        numbers = {
            "format": _FORMAT,
            "steps": self._masters.steps,
            "probe": [sequence.tolist() for sequence in text.sequences],
            "scored_from": text.scored_from,
        }
        state_files.write_numbers(folder / _NUMBERS, numbers)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote; all files are read before anything is changed."""
        saved = state_files.read_tensors(folder / _MASTERS, self._masters.tensors())
        random = state_files.read_tensors(folder / _RANDOM, state_files.random_state(self._device))
        numbers = state_files.read_numbers(folder / _NUMBERS)
        try:
            steps, text = int(numbers["steps"]), ProbeText.of(numbers["probe"], numbers["scored_from"])
            if numbers["format"] != _FORMAT:
                raise ValueError(f"format {numbers['format']!r}, this release reads {_FORMAT}")
        except (KeyError, TypeError, ValueError) as problem:
            raise CorruptData(f"{folder / _NUMBERS} is not a state of this backend: {problem!r}") from problem
        self._masters.restore(saved, steps=steps)
        state_files.restore_random_state(random, self._device)
        self._probe_text = text

    def _first_model(self, model: Mapping[str, Any]) -> PreTrainedModel:
        folder = prepare_model(model)
        dtype = compute_dtype_of(self._options.compute_dtype, self._device)
        return cast(models.build(model).load(folder), device=self._device, dtype=dtype)

    def _collated(self, batch: Batch) -> tuple[Collated, Tensor]:
        """The batch as tensors, and which rows count."""
        truncated = [self._algorithm.mask_truncated and row.trajectory.is_truncated for row in batch.rows]
        limits = PackingLimits(
            pack_tokens=self._options.pack_tokens, micro_batch_tokens=self._options.micro_batch_tokens
        )
        collated = collate(batch, limits, is_left_out=truncated)
        return collated, (collated.lengths > 0) & ~torch.tensor(truncated)

    def _gains(self, collated: Collated, is_counted: Tensor) -> Tensor:
        """Advantages `[rows]`."""
        values = collated.rewards
        for advantage in self._advantages:
            values = advantage(values, collated.groups, is_counted)
        return values

    def _learn(self, micro_batch: MicroBatch, gains: Tensor, facts: BatchFacts, metrics: StepMetrics) -> None:
        """Forward and backward of one micro-batch; its gradient is added to that of the others."""
        logprobs, entropy = self._logprobs(self._model, micro_batch)
        reference = None
        if self._reference is not None:
            with torch.no_grad():
                reference, _ = self._logprobs(self._reference, micro_batch)
        tokens = LossTokens(
            logprobs=logprobs,
            behaviour=micro_batch.behaviour,
            advantages=gains[micro_batch.owners],
            owners=micro_batch.owners,
            reference=reference,
        )
        part = self._loss(tokens, facts)
        part.loss.backward()
        self._masters.collect()
        metrics.add(micro_batch, part, logprobs=logprobs, entropy=entropy)

    def _logprobs(self, model: PreTrainedModel, micro_batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Logprob of each trained token `[tokens]`, tempered as it was sampled, and the sum of their entropies."""
        hidden = hidden_states(
            model,
            micro_batch.input_ids,
            position_ids=None if micro_batch.pieces is None else micro_batch.position_ids,
            attention_mask=micro_batch.attention_mask(),
        )
        logits = logits_at(model, hidden, micro_batch.sources) / self._algorithm.temperature
        distribution = logits.log_softmax(-1)
        with torch.no_grad():
            entropy = -(distribution.exp() * distribution).sum()
        return distribution.gather(-1, micro_batch.targets[:, None])[:, 0], entropy


def _settings(options: SingleOptions) -> AdamWSettings:
    return AdamWSettings(
        learning_rate=options.learning_rate,
        betas=options.betas,
        epsilon=options.epsilon,
        weight_decay=options.weight_decay,
        warmup_steps=options.warmup_steps,
        max_grad_norm=options.grad_clip,
    )
