"""Shape of a model's mixture of experts, from its configuration."""

from collections.abc import Mapping
from typing import Any

from astraflow.contract.rollouts.recording import Mixture

_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names that configurations of transformers have for the experts of a token and of a layer."""


def mixture_of(config: Mapping[str, Any]) -> Mixture | None:
    """Returns the shape of the mixture in the content of a `config.json`; None for a dense model, and for
    one whose configuration does not state it so.

    >>> mixture_of({"text_config": {"num_hidden_layers": 48, "num_experts_per_tok": 8, "num_experts": 128}})
    Mixture(layers=48, chosen=8, experts=128)
    """
    config = config.get("text_config") or config
    chosen, experts = ([config[name] for name in names if config.get(name)] for names in (_CHOSEN, _EXPERTS))
    layers = config.get("num_hidden_layers")  # a few hybrid models list their layers instead
    if not layers or not chosen or not experts or not isinstance(chosen[0], int):
        return None
    return Mixture(layers=int(layers), chosen=chosen[0], experts=int(experts[0]))
