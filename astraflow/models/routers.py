"""Routers of mixture-of-experts models, which compute in float32 whatever the rest of the model computes in.

The choice of experts is discrete: in bfloat16, rounded scores make two computations of one token disagree about its
experts, and trainer and engine then disagree about its logprob. The weights stay those that are published.
Source: Fedus et al., "Switch Transformers", arXiv:2101.03961, section 2.4.
"""

from functools import cache
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

_SUFFIX = "TopKRouter"
"""End of the names of transformers' classes that score experts and choose the best."""


class Float32Router(nn.Module):
    """Mixin: computes a router with its weights and its input upcast to float32."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns float32 scores."""
        weights = dict(self.named_parameters())
        if all(weight.dtype == torch.float32 for weight in weights.values()):
            return super().forward(*(arg.float() if torch.is_floating_point(arg) else arg for arg in args), **kwargs)
        return functional_call(self, {name: weight.float() for name, weight in weights.items()}, args, kwargs)


def compute_routers_in_float32(model: nn.Module) -> None:
    """Makes the routers of a model compute in float32; a model without experts stays as it is."""
    for module in model.modules():
        kind: Any = type(module)
        if kind.__name__.endswith(_SUFFIX) and not isinstance(module, Float32Router):
            module.__class__ = _float32_class(kind)  # keeps names, weights, hooks, and works after a deepcopy


@cache
def _float32_class(kind: Any) -> Any:
    return type(kind.__name__, (Float32Router, kind), {})
