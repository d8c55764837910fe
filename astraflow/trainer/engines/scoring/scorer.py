"""Scores of a pack's trained tokens: one forward pass of the model in the chosen batching, then the head."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import create_selective_checkpoint_contexts
from transformers import PreTrainedModel

from astraflow.algorithms.tokens import TokenScores
from astraflow.contract.rollouts.recording import Mixture
from astraflow.models.causal import blocks_of
from astraflow.models.output_head import HeadForm, decoder_of
from astraflow.models.routers import WatchedRouter, deliver_choices, watched_routers
from astraflow.models.state_cache import recompute_with_states
from astraflow.trainer.engines.base import Batching, Pack
from astraflow.trainer.engines.float8 import compute_in_float8
from astraflow.trainer.engines.scoring.balance import balance_loss
from astraflow.trainer.engines.scoring.base import BatchedForward, PackInputs, RowsForward, pack_choices
from astraflow.trainer.engines.scoring.head import Head, TargetHead
from astraflow.trainer.engines.scoring.packed import PackedForward
from astraflow.trainer.engines.scoring.tree import TreeForward

FORWARDS: dict[Batching, type[BatchedForward]] = {
    forward.batching: forward for forward in (PackedForward, TreeForward, RowsForward)
}
"""Batchings that are tried in this order, the fastest first."""


class Scorer(nn.Module):
    """Computes scores of packs. A module, so that an engine can shard it as one root: its forward uses all weights."""

    def __init__(self, model: PreTrainedModel, device: torch.device, batching: Batching = Batching.PACKED) -> None:
        """Turns the model's dropout off. Its weights may be on the meta device."""
        super().__init__()
        disable_dropout(model)
        self.model = model
        self._noisy = [module for module in model.modules() if any("jitter" in name for name in vars(module))]
        self.head: Head = TargetHead(HeadForm.of(model.config))
        self.balances_experts = False
        """Whether the training pass computes the loss for the balance of experts."""
        self._router_logits: list[Sequence[Tensor]] = []
        self._mixture: Mixture | None = None
        self._routers: list[WatchedRouter] = []
        self.device = device
        self._own_attention: str = model.config._attn_implementation
        self.use(batching)

    @property
    def batching(self) -> Batching:
        """Batching of the forward pass."""
        return self._forward.batching

    def use(self, batching: Batching | None) -> None:
        """Makes the model compute in a batching. None: each sequence alone, as transformers computes it."""
        if batching is not None:
            self._forward = FORWARDS[batching](self.model, self.device)
        attention = None if batching is None else self._forward.attention
        self.model.set_attn_implementation(attention or self._own_attention)

    def follow(self, other: "Scorer") -> None:
        """Makes the model compute as that of another scorer, of the same architecture."""
        self.use(other.batching)
        if isinstance(self.head, TargetHead):
            self.head = other.head
            if other._mixture is not None:
                self.replay(other._mixture)

    def train(self, mode: bool = True) -> Self:
        """Switches between the training pass and scoring. Routers with noise always score: the rate is part of what
        those of PhiMoE compute without noise, too."""
        super().train(mode)
        for module in self._noisy:
            module.training = False
        return self

    def obstacle(self) -> str | None:
        """Returns why the model cannot be computed in this batching, by its configuration; None: nothing known."""
        return self._forward.obstacle()

    def compile_blocks(self) -> None:
        """Compiles each block of the model in place, for packs of any width, and what the output head does to logits.
        Attention over packs itself is not compiled."""
        for block in blocks_of(self.model):
            block.compile(dynamic=True)
        self.head = self.head.compiled()

    def use_float8(self) -> None:
        """Makes the linear layers of the blocks compute in float8."""
        compute_in_float8(blocks_of(self.model))

    def recompute_activations(self, mode: Literal["selective", "full"]) -> None:
        """Makes the backward pass compute the activations of each block again instead of keeping them.

        `selective`: keeps the results of matrix products and attention, which cost most of the time, and computes
        norms, activation functions and rotary embeddings again. `full`: keeps only the input of each block.
        """
        options: dict[str, Any] = {"use_reentrant": False}
        if mode == "selective":
            options["context_fn"] = partial(create_selective_checkpoint_contexts, _KEPT_OPERATIONS)
        self.model.activation_checkpointing_enable(activation_checkpointing_kwargs=options)
        recompute_with_states(self.model)

    def replay(self, mixture: Mixture) -> list[WatchedRouter]:
        """Makes the model compute tokens with the experts of their packs. Returns its routers."""
        self._mixture = mixture
        self._routers = watched_routers(self.model, is_recorded=False)
        deliver_choices(self.model)
        return self._routers

    def choices(self, pack: Pack) -> Tensor | None:
        """Returns the experts to replay in a pack, `pack_choices`; None for none."""
        return None if self._mixture is None else pack_choices(pack, self._mixture)

    def inputs(self, pack: Pack) -> PackInputs:
        """Returns the pack on the device; copied to a GPU without waiting for it."""
        return replace(self._forward.inputs(pack, self.choices(pack)), top=pack.top)

    def aligned(self, inputs: PackInputs, largest: Callable[[int], int]) -> PackInputs:
        """Returns inputs with as many forward passes as the other ranks have for theirs. largest: over all ranks."""
        if self.batching is not Batching.TREE:
            return inputs
        return self._forward.with_passes(inputs, largest(self._forward.passes(inputs)))

    def forward(self, inputs: PackInputs, temperature: float = 1.0) -> TokenScores:
        """Returns the scores of the pack's targets."""
        for router in self._routers:
            router.counts = None
        states = self._forward.states(self._run, inputs)
        scores = self.head(self.model.get_output_embeddings(), states, inputs, temperature)
        if inputs.copies is not None:
            scores = scores.select(inputs.copies)
        if counts := [router.counts for router in self._routers if router.counts is not None]:
            scores = replace(scores, replayed_choices=torch.stack(counts).sum(0))
        if not self._is_balancing:
            return scores
        passes, self._router_logits = self._router_logits, []
        chosen = self.model.config.get_text_config().num_experts_per_tok
        return replace(scores, balance=balance_loss(passes, inputs.is_token, chosen=chosen))

    @property
    def _is_balancing(self) -> bool:
        return self.balances_experts and self.training

    def _run(self, **arguments: Any) -> Tensor:
        arguments = {"use_cache": False, **arguments}
        if self._is_balancing:
            arguments["output_router_logits"] = True
        outputs: Any = (self.model if self.head.reads_logits else decoder_of(self.model))(**arguments)
        if self._is_balancing:
            self._router_logits.append(outputs.router_logits)
        states: Tensor = outputs.logits if self.head.reads_logits else outputs.last_hidden_state
        return states


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

_RATES = ("dropout", "pdrop", "layerdrop", "drop_prob")
"""Parts of the names of attributes with a rate of dropped activations, layers or attention."""
_CHOSEN = "lora_dropout"
"""Name of the dropout that a recipe sets."""


def disable_dropout(model: nn.Module) -> None:
    """Sets the rates of dropout of a model's modules to 0, except that of adapters; those of their configurations, too,
    which some modules read in each pass."""
    for name, module in model.named_modules():
        if _CHOSEN in name:
            continue
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for holder in (module, getattr(module, "config", module)):
            for attribute, value in list(vars(holder).items()):
                if isinstance(value, float) and any(part in attribute for part in _RATES):
                    setattr(holder, attribute, 0.0)
