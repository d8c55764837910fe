"""Auxiliary loss for the balance of experts."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from astraflow.contract.errors import InvalidInput
from astraflow.models.output_head import decoder_of

_LOGITS = "router_logits"
"""Name of the scores of experts among the outputs of a decoder."""


def check_routers(model: PreTrainedModel) -> None:
    """Checks that the decoder returns the scores of its experts. Raises: InvalidInput."""
    recorded = getattr(decoder_of(model), "_can_record_outputs", None) or {}
    if _LOGITS not in recorded or not getattr(model.config.get_text_config(), "num_experts_per_tok", None):
        raise InvalidInput(
            f"cannot balance the experts of a {type(model).__name__}: it has none, or transformers does not return "
            "their scores; set algorithm.balance_coefficient = 0",
            code="trainer.no_router_scores",
        )


def balance_loss(passes: Sequence[Sequence[Tensor]], is_token: Tensor | None, *, chosen: int) -> Tensor:
    """Returns the loss over the tokens of a pack, which is `chosen` when the experts of all layers share them evenly.

    passes: scores `[tokens, experts]` of each layer, by forward pass. is_token: bool `[tokens of all passes]`, False
    for padding; None: no token is. chosen: experts that compute a token.
    Source: Fedus et al., "Switch Transformers", arXiv:2101.03961, equations 4 to 6; over all layers together, as
    transformers computes it.
    """
    layers = (torch.cat(layer) for layer in zip(*passes, strict=True))
    kept = [layer if is_token is None else layer[: len(is_token)][is_token] for layer in layers]
    shares = torch.cat(kept).float().softmax(-1)
    experts = shares.shape[-1]
    counts = torch.zeros(experts, device=shares.device).index_add(
        0, (places := shares.detach().topk(chosen, -1).indices.flatten()), torch.ones_like(places, dtype=torch.float32)
    )
    return experts * (counts / len(shares) * shares.mean(0)).sum()
