"""Scores of a pack's trained tokens by a transformers model: one forward pass of the decoder, then the chunked head."""

import os
import shutil
import sysconfig
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import create_selective_checkpoint_contexts
from transformers import PreTrainedModel

from astraflow.algorithms.tokens import TokenScores
from astraflow.contract.errors import InvalidInput
from astraflow.models.causal import attention_window, check_supported
from astraflow.trainer.engines.attention.attention import PackAttention
from astraflow.trainer.engines.base import ModelRole, Pack, Segment
from astraflow.trainer.engines.float8 import compute_in_float8
from astraflow.trainer.engines.heads import target_scores
from astraflow.trainer.engines.spec import EngineSpec

_TOLERANCE = 1e-3
"""Largest accepted difference of a logprob in float32, in nats."""
_ROUNDED_TOLERANCE = 0.1
"""Largest accepted mean of the differences with element types of fewer bits, in nats. A single logprob may differ by
more: logits between 16 and 32 are 0.125 apart in bfloat16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackInputs:
    """A pack on the device, and the attention over it."""

    input_ids: Tensor
    positions: Tensor
    predictors: Tensor
    targets: Tensor
    attention: dict[str, Any]
    """Keyword arguments of the decoder."""


HeadScores: TypeAlias = Callable[[Any, Tensor, PackInputs, float], TokenScores]
"""Scores of trained tokens from the output head, hidden states `[tokens, hidden size]`, the pack, and temperature."""


class PackScorer(nn.Module):
    """Computes scores of packs. A module, so that an engine can shard it as one root: its forward uses all weights."""

    def __init__(self, model: PreTrainedModel, device: torch.device) -> None:
        """Makes the model attend by packs. Its weights may be on the meta device."""
        super().__init__()
        self.model = model
        self.head_scores: HeadScores = _target_scores
        self._device = device
        self._own_attention = model.config._attn_implementation
        self._attention = PackAttention(model, device)

    @torch.no_grad()
    def check(self) -> None:
        """Checks that the model computes the same values in a pack as alone. Raises: InvalidInput."""
        self.eval()
        with _attention(self.model, self._own_attention):
            check_supported(self.model)
            with _short_window(self.model):
                alone = _logprobs_alone(self.model, self._device)
        with _attention(self.model, self._attention.name), _short_window(self.model):
            self._check_packed(alone)

    def compile_blocks(self) -> None:
        """Compiles each block of the model in place, for packs of any width, and what the output head does to logits.
        Attention itself is not compiled."""
        for block in self.model.get_decoder().layers:
            block.compile(dynamic=True)
        if self.head_scores is _target_scores:
            self.head_scores = partial(_target_scores, is_compiled=True)

    def use_float8(self) -> None:
        """Makes the linear layers of the blocks compute in float8."""
        compute_in_float8(self.model.get_decoder().layers)

    def recompute_activations(self, mode: Literal["selective", "full"]) -> None:
        """Makes the backward pass compute the activations of each block again instead of keeping them.

        `selective`: keeps the results of matrix products and attention, which cost most of the time, and computes
        norms, activation functions and rotary embeddings again. `full`: keeps only the input of each block.
        """
        options: dict[str, Any] = {"use_reentrant": False}
        if mode == "selective":
            options["context_fn"] = partial(create_selective_checkpoint_contexts, _KEPT_OPERATIONS)
        self.model.activation_checkpointing_enable(activation_checkpointing_kwargs=options)

    def inputs(self, pack: Pack) -> PackInputs:
        """Returns the pack on the device; copied to a GPU without waiting for it."""
        return PackInputs(
            input_ids=self._on_device(pack.input_ids),
            positions=self._on_device(pack.positions),
            predictors=self._on_device(pack.predictors),
            targets=self._on_device(pack.targets),
            attention=self._attention.arguments(pack.segments),
        )

    def forward(self, inputs: PackInputs, temperature: float = 1.0) -> TokenScores:
        """Returns the scores of the pack's targets."""
        outputs = self.model.get_decoder()(
            input_ids=inputs.input_ids[None],
            position_ids=inputs.positions[None],
            use_cache=False,
            **inputs.attention,
        )
        hidden = outputs.last_hidden_state[0].index_select(0, inputs.predictors)
        return self.head_scores(self.model.get_output_embeddings(), hidden, inputs, temperature)

    def _on_device(self, values: Tensor) -> Tensor:
        if self._device.type != "cuda":
            return values.to(self._device)
        return values.pin_memory().to(self._device, non_blocking=True)

    def _check_packed(self, alone: Sequence[Tensor]) -> None:
        first, second = _CHECKED
        tokens = np.concatenate([first, second[_CHECKED_PREFIX:]])
        prefix, middle, end = _CHECKED_PREFIX, len(first), len(tokens)
        pack = Pack(
            input_ids=torch.from_numpy(tokens),
            positions=torch.tensor([*range(middle), *range(prefix, len(second))]),
            segments=(
                Segment(begin=0, end=prefix),
                Segment(begin=prefix, end=middle, prefix_begin=0, prefix_end=prefix),
                Segment(begin=middle, end=end, prefix_begin=0, prefix_end=prefix),
            ),
            predictors=torch.tensor([*range(middle - 1), prefix - 1, *range(middle, end - 1)]),
            targets=torch.from_numpy(np.concatenate([first[1:], second[prefix:]])),
        )
        packed = self(self.inputs(pack)).logprobs
        gaps = (packed - torch.cat([alone[0], alone[1][prefix - 1 :]])).abs()
        is_exact = next(self.model.parameters()).dtype == torch.float32
        gap = float(gaps.max() if is_exact else gaps.mean())
        if not gap <= (_TOLERANCE if is_exact else _ROUNDED_TOLERANCE):
            raise InvalidInput(
                f"cannot train a {type(self.model).__name__}: its logprobs in a pack differ by {gap:.3g} nats from "
                "those of the same sequence alone; use a model with plain causal attention",
                code="model.unsupported_attention",
            )


def apply_options(scorers: Mapping[ModelRole, PackScorer], trained: Collection[ModelRole], spec: EngineSpec) -> None:
    """Applies options of speed and memory to the models of an engine. A critic computes in float32, not in float8.

    trained: roles whose models have a backward pass. Raises: InvalidInput when blocks cannot be compiled on this host.
    """
    if spec.compile_blocks:
        _check_compiler()
    if spec.float8:
        for scorer in {scorer for role, scorer in scorers.items() if role is not ModelRole.CRITIC}:
            scorer.use_float8()
    # Compiled blocks already compute again what is cheap; under selective checkpoints they would not be compiled.
    if spec.recompute == "full" or (spec.recompute == "selective" and not spec.compile_blocks):
        for role in trained:
            scorers[role].recompute_activations(spec.recompute)
    if spec.compile_blocks:
        for scorer in set(scorers.values()):
            scorer.compile_blocks()


def _check_compiler() -> None:
    """Checks for the C compiler that torch.compile calls, and for the headers of Python. Raises: InvalidInput."""
    if "CC" not in os.environ and not any(map(shutil.which, _COMPILERS)):
        raise InvalidInput(
            "cannot compile the blocks of the model: this host has no C compiler; install one (Debian: g++), or set "
            "compile_blocks = false",
            code="trainer.no_compiler",
        )
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        raise InvalidInput(
            f"cannot compile the blocks of the model: this host has no {str(header)!r}; install the headers of Python "
            "(Debian: python3-dev), or set compile_blocks = false",
            code="trainer.no_headers",
        )


def _target_scores(
    head: Any, hidden: Tensor, inputs: PackInputs, temperature: float, *, is_compiled: bool = False
) -> TokenScores:
    logprobs, entropy = target_scores(
        hidden, head.weight, inputs.targets, bias=head.bias, temperature=temperature, is_compiled=is_compiled
    )
    return TokenScores(logprobs=logprobs, entropy=entropy)


_COMPILERS = ("cc", "gcc", "clang")
_KEPT_OPERATIONS = [
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten._scaled_mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._flash_attention_forward.default,
    torch.ops.aten._cudnn_attention_forward.default,
]
"""Operations whose results selective recomputation keeps."""

_CHECKED = (np.array([0, 1, 2, 3, 4]), np.array([0, 1, 2, 5, 3, 1]))
_CHECKED_PREFIX = 3
"""Tokens that the checked sequences have in common."""


_CHECKED_WINDOW = 3
"""Window with which a model with windows is checked: its own would see the whole of the checked sequences."""


@contextmanager
def _short_window(model: PreTrainedModel) -> Iterator[None]:
    """Gives the layers with a window, if any, a short one."""
    window = attention_window(model)
    holders: list[Any] = [model.config.get_text_config(), *model.modules()] if window is not None else []
    holders = [holder for holder in holders if getattr(holder, "sliding_window", None) == window]
    for holder in holders:
        holder.sliding_window = _CHECKED_WINDOW
    try:
        yield
    finally:
        for holder in holders:
            holder.sliding_window = window


@contextmanager
def _attention(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Makes the model compute attention by this implementation."""
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _logprobs_alone(model: PreTrainedModel, device: torch.device) -> list[Tensor]:
    """Returns the logprobs of all tokens but the first of the checked sequences, by the model's own forward pass."""
    logprobs = []
    for tokens in _CHECKED:
        ids = torch.from_numpy(tokens).to(device)
        logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
        logprobs.append(logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0])
    return logprobs
