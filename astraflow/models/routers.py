"""Routers of mixtures of experts: what they choose, and experts that are replayed in place of their choice.

A router chooses by `torch.topk` over the scores of a layer's experts. In its forward pass that call is intercepted: its
result is recorded, or has given experts with the router's own scores of them. All that follows, such as a softmax over
the chosen ones, is the model's own code, with gradients. So one mechanism serves all families.
Source: R3, arXiv:2510.11370.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from astraflow.contract.rollouts.recording import Mixture
from astraflow.models.causal import blocks_of
from astraflow.models.mixtures import mixture_of
from astraflow.models.output_head import decoder_of

CHOICES: Final = "expert_choices"
"""Name of the argument of a decoder with the experts to replay: int16 `[tokens, layers, chosen]`, -1 for a token that
the routers choose the experts of. Tokens are those of the flattened ids. The decoder passes it to its blocks."""


class WatchedRouter(nn.Module):
    """Mixin: a router whose choice can be recorded and replaced."""

    mixture: Mixture
    layer: int
    is_recorded: bool
    choice: Tensor | None
    """int64 `[tokens, chosen]`: experts of the last forward pass, if they are recorded."""
    replayed: Tensor | None
    """int16 `[tokens, chosen]`: experts of the next forward pass, -1 for the router's own; None: its own for all."""
    counts: Tensor | None
    """int64 `[2]`: replayed experts that the router would not have chosen, and all replayed ones; None for none."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the router returns."""
        with _Interception(self):
            return super().forward(*args, **kwargs)

    def chosen(self, best: Any, scores: Tensor) -> Any:
        """Returns the result of `topk` with the experts to use. best: its own result."""
        if self.replayed is not None:
            recorded = self.replayed.view(best.indices.shape).long()
            is_recorded = recorded >= 0
            indices = torch.where(is_recorded, recorded, best.indices)
            is_changed = is_recorded & (recorded[..., :, None] != best.indices[..., None, :]).all(-1)
            counts = torch.stack([is_changed.sum(), is_recorded.sum()])
            self.counts = counts if self.counts is None else self.counts + counts
            best = torch.return_types.topk((scores.gather(-1, indices), indices))
        if self.is_recorded:
            self.choice = best.indices.flatten(0, -2)
        return best


class _Interception(TorchFunctionMode):
    """Intercepts the choice of experts in a router's forward pass."""

    def __init__(self, router: WatchedRouter) -> None:
        super().__init__()
        self._router = router

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Returns the result of the function."""
        options = dict(kwargs or {})
        if function not in (torch.topk, Tensor.topk):
            return function(*args, **options)
        with torch._C.DisableTorchFunction():  # a router that calls itself in another element type is intercepted once
            best = function(*args, **options)
            mixture, scores = self._router.mixture, args[0] if args else options["input"]
            if best.indices.shape[-1] != mixture.chosen or scores.shape[-1] != mixture.experts:
                return best
            return self._router.chosen(best, scores)


def watched_routers(model: PreTrainedModel, *, is_recorded: bool) -> list[WatchedRouter]:
    """Makes the routers of a model's decoder watched ones, in the order of the layers; none in a dense model.

    is_recorded: records choices. The routers stay as they are otherwise, with their names, weights and hooks.
    """
    mixture = mixture_of(model.config.get_text_config().to_dict())
    kinds = _router_kinds(model)
    routers: list[WatchedRouter] = []
    for layer, block in enumerate(blocks_of(model) if mixture and kinds else ()):
        for module in block.modules():
            if not isinstance(module, kinds):
                continue
            router: Any = module
            router.__class__ = _class_with(WatchedRouter, router.__class__)
            router.mixture, router.layer, router.is_recorded = mixture, layer, is_recorded
            router.choice = router.replayed = router.counts = None
            routers.append(router)
    return routers


class ReplayingBlock(nn.Module):
    """Mixin: a block that gives its watched routers the experts to replay.

    A block that computes its activations again in the backward pass does so in `forward`, with the same arguments.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the block returns."""
        choices = kwargs.pop(CHOICES, None)
        for router in self.modules():
            if isinstance(router, WatchedRouter):
                router.replayed = None if choices is None else choices[:, router.layer]
        return super().forward(*args, **kwargs)


def deliver_choices(model: PreTrainedModel) -> None:
    """Makes the blocks of a model's decoder give their watched routers what `CHOICES` has for them."""
    for block in blocks_of(model):
        part: Any = block
        part.__class__ = _class_with(ReplayingBlock, part.__class__)


def _router_kinds(model: PreTrainedModel) -> tuple[type, ...]:
    """Returns the classes of the modules whose scores of experts transformers can record."""
    recorded = (getattr(decoder_of(model), "_can_record_outputs", None) or {}).get("router_logits")
    parts = recorded if isinstance(recorded, list) else [recorded]
    return tuple(kind for part in parts if (kind := getattr(part, "target_class", part)) is not None)


@cache
def _class_with(mixin: Any, kind: Any) -> Any:
    return kind if issubclass(kind, mixin) else type(kind.__name__, (mixin, kind), {})
