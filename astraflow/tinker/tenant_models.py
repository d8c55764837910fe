"""A tenant's model: adapters and optimizer on a shared base. Its work is divided into passes, between which other
tenants compute."""

import json
import shutil
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from astraflow.algorithms.tokens import TokenScores
from astraflow.contract.errors import InvalidInput
from astraflow.contract.weights import Dtype
from astraflow.raas.engines.local.parameters import LayerAdapter
from astraflow.tinker.base_models import BATCHING, SharedBase, TenantAdapters
from astraflow.tinker.requests import AdamParams
from astraflow.tinker.training_data import Datum, Float32Array, TrainingData, encode_output, passes
from astraflow.trainer.backends.probe import ProbeText
from astraflow.trainer.backends.shards import local_shards
from astraflow.trainer.backends.state.adapters import AdapterRecord, adapter_files, check_adapters
from astraflow.trainer.backends.state.files import STATE, CapturedFiles, StepState
from astraflow.trainer.backends.state.sharded import INDEX, joined_index, read_shards, shard_file, shard_index
from astraflow.trainer.engines.base import Pack
from astraflow.trainer.engines.local import LocalEngine
from astraflow.trainer.engines.optimizers import WEIGHT_PREFIX, OptimizerOptions
from astraflow.trainer.engines.spec import EngineSpec
from astraflow.trainer.export import write_peft_folder
from astraflow.trainer.step.packing import pack_sequences
from astraflow.weights.adapters import DOWN_SUFFIX, PEFT_PREFIX, PEFT_WEIGHTS, UP_SUFFIX

_OPTIONS = OptimizerOptions(dithered_start=False)
BACKWARD_FACTOR = 3
"""Cost of a forward and backward pass, in forward passes."""


class TenantModel:
    """Adapters in training. Implements the work of `forward_backward`, `optim_step`, saving and loading."""

    def __init__(self, base: SharedBase, adapters: TenantAdapters, *, pass_tokens: int) -> None:
        self.base = base
        self.adapters = adapters
        self._pass_tokens = pass_tokens
        spec = EngineSpec(
            optimizer=_OPTIONS,
            device=base.device,
            published_dtype=Dtype.FLOAT32,
            adapters=adapters,
            batching=BATCHING,
        )
        self._engine = LocalEngine(base.model, spec)
        self._updates = 0

    def train(self, data: TrainingData) -> Generator[int, None, bytes]:
        """Adds the gradient of the data, unless only its forward pass is wanted; yields the cost of each pass in
        tokens, returns a ForwardBackwardOutput.

        Raises: InvalidInput when the loss is not finite; the gradient since the last optimizer step is then discarded.
        """
        logprobs: list[Float32Array] = []
        total = 0.0
        try:
            for batch in passes(data.data, tokens=self._pass_tokens):
                with self.base.computing_with(self.adapters.layers):
                    scores, loss = self._pass(batch, data)
                total += loss
                logprobs += _split(scores, batch)
                tokens = sum(len(datum.tokens) for datum in batch)
                yield tokens if data.is_forward_only else BACKWARD_FACTOR * tokens
        except Exception:
            self._discard_gradient()
            raise
        return encode_output(logprobs, {"loss:sum": total})

    def step(self, params: AdamParams) -> Mapping[str, float]:
        """Runs an optimizer step. Raises: InvalidInput when the gradient is not finite, so that no weight changed."""
        clip = params.grad_clip_norm if params.grad_clip_norm > 0 else float("inf")
        rates = {
            "learning_rate": params.learning_rate,
            "betas": (params.beta1, params.beta2),
            "epsilon": params.eps,
            "weight_decay": params.weight_decay,
            "grad_clip": clip,
        }
        self._engine.use(_OPTIONS.model_copy(update=rates))
        self._updates += 1
        result = self._engine.update(is_loss_finite=True)
        if result.is_skipped:
            raise InvalidInput(
                "cannot run the optimizer step: the gradient is not finite, and was discarded; lower the learning rate "
                "or correct the data",
                code="tinker.non_finite_gradient",
            )
        return {"grad_norm:mean": result.grad_norm}

    def save(self, folder: Path) -> None:
        """Writes weights and optimizer, replacing the folder, in the format of a trainer's state. Raises: OSError."""
        state = self._engine.state_tensors()
        files = CapturedFiles(
            tensors={shard_file(0): {name: value.detach().cpu() for name, value in state.items()}},
            numbers={
                INDEX: joined_index([shard_index(state, local_shards(state, is_first=True), rank=0)]),
                STATE: StepState(
                    updates=self._updates, critic_updates=0, probe_text=ProbeText(sequences=(), scored_from=())
                ).numbers(),
                **adapter_files(self.adapters),
            },
        )
        replace_folder(folder, files.write)

    def save_for_sampling(self, folder: Path) -> None:
        """Writes the adapters in the format of peft, replacing the folder. Raises: OSError."""
        weights = {name: value.detach().float().cpu() for name, value in self._engine.weights().items()}
        record = AdapterRecord.of(self.adapters)
        replace_folder(folder, lambda target: write_peft_folder(target, self.base.spec, record, weights))

    def load(self, folder: Path, *, with_optimizer: bool) -> None:
        """Restores what `save` wrote; without the optimizer, that begins anew. Raises: InvalidInput; CorruptData."""
        check_adapters(folder, self.adapters)
        state = self._engine.state_tensors()
        numbers = StepState.read(folder)
        for name, value in read_shards(folder, state).items():
            if with_optimizer or name.startswith(WEIGHT_PREFIX):
                state[name].copy_(value)
            else:
                state[name].zero_()
        self._updates = numbers.updates if with_optimizer else 0
        self._discard_gradient()

    def _discard_gradient(self) -> None:
        self._engine.restored(updates=self._updates, critic_updates=0)

    def _pass(self, batch: list[Datum], data: TrainingData) -> tuple[Tensor, float]:
        """Returns the logprobs of all targets, `[tokens, k]`, and the loss."""
        width = max(datum.targets.shape[1] for datum in batch)
        pack = _pack(batch, width)
        inputs = {
            name: _joined((datum.inputs[name] for datum in batch), width).to(self.base.device)
            for name in data.loss.inputs
        }
        results: list[Tensor] = []

        def loss(scores: TokenScores) -> Tensor:
            logprobs = _target_logprobs(scores)
            value = data.loss.value(logprobs, inputs, data.settings).sum()
            results.extend((logprobs.detach(), value.detach()))
            if not torch.isfinite(value):
                raise InvalidInput(
                    "cannot train on the data: the loss is not finite, and the gradient since the last optim_step was "
                    "discarded; correct logprobs and advantages, or lower the learning rate",
                    code="tinker.non_finite_loss",
                )
            return value

        if data.is_forward_only:
            loss(self._engine.score(pack))
        else:
            self._engine.learn(pack, loss, is_last=True)
        return results[0], float(results[1])


def sampling_adapters(base: SharedBase, folder: Path) -> Mapping[str, LayerAdapter]:
    """Returns the adapters that `save_for_sampling` wrote, by layer. Raises: CorruptData; OSError."""
    from safetensors.torch import load_file

    weights = {name.removeprefix(PEFT_PREFIX): value for name, value in load_file(folder / PEFT_WEIGHTS).items()}
    config = json.loads((folder / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / config["r"]
    factors = {name: value.to(base.device, base.model.dtype) for name, value in weights.items()}
    return {
        name: LayerAdapter(down=factors[f"{name}{DOWN_SUFFIX}"], up=factors[f"{name}{UP_SUFFIX}"], scale=scale)
        for name in base.layers
        if f"{name}{DOWN_SUFFIX}" in factors
    }


def replace_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Writes a folder under another name and renames it, so that a killed process leaves the old one or the new."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{uuid4().hex}.part")
    partial.mkdir()
    try:
        write(partial)
        if folder.exists():
            folder.rename(folder.with_name(f".{uuid4().hex}.old"))
        partial.rename(folder)
    finally:
        for rest in (*folder.parent.glob(".*.old"), partial):
            shutil.rmtree(rest, ignore_errors=True)


def _pack(batch: list[Datum], width: int) -> Pack:
    """Returns the sequences as one pack: every token predicts its targets, at most `width`."""
    pack = pack_sequences([datum.tokens for datum in batch], [1] * len(batch))
    targets = _joined((datum.targets for datum in batch), width)
    return replace(
        pack,
        predictors=torch.arange(len(pack.input_ids)),
        targets=targets[:, 0].contiguous(),
        candidates=None if width == 1 else targets[:, 1:].contiguous(),
    )


def _joined(parts: Iterable[npt.NDArray[Any]], width: int) -> Tensor:
    """Returns values `[n, k]` of sequences as `[tokens, width]`, with 0 where there is none."""
    widened = [np.pad(values, ((0, 0), (0, width - values.shape[1]))) for values in parts]
    return torch.from_numpy(np.concatenate(widened))


def _target_logprobs(scores: TokenScores) -> Tensor:
    first = scores.logprobs[:, None]
    return first if scores.top_logprobs is None else torch.cat([first, scores.top_logprobs], dim=1)


def _split(logprobs: Tensor, batch: list[Datum]) -> list[Float32Array]:
    """Returns the logprobs of each sequence in the shape of its targets."""
    rows = np.split(logprobs.float().cpu().numpy(), np.cumsum([len(datum.tokens) for datum in batch])[:-1])
    return [
        part[:, 0] if datum.is_flat else part[:, : datum.targets.shape[1]]
        for part, datum in zip(rows, batch, strict=True)
    ]
