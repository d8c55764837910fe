"""Replay of experts, and the check at the start that a model computes with given experts as if it had chosen them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.expert_columns import encoded_experts
from astraflow.contract.rollouts.recording import Mixture
from astraflow.models.check_conditions import check_conditions
from astraflow.models.mixtures import mixture_of
from astraflow.models.routers import CHOICES, WatchedRouter
from astraflow.trainer.engines.base import Batching
from astraflow.trainer.engines.scoring.check import CHECKED_TOKENS, difference, gap, logprobs_alone, tolerance
from astraflow.trainer.engines.scoring.scorer import Scorer


@torch.no_grad()
def replay_experts(scorer: Scorer) -> None:
    """Makes a scorer compute tokens with the experts of their packs. Collective where the weights are sharded.

    Raises: InvalidInput for a dense model, and for one whose routers cannot be given experts.
    """
    kind = type(scorer.model).__name__
    mixture = mixture_of(scorer.model.config.get_text_config().to_dict())
    if mixture is None:
        raise InvalidInput(
            f"cannot replay the experts of a {kind}: it has none; set algorithm.router_replay = false",
            code="trainer.no_experts",
        )
    batching, routers = scorer.batching, scorer.replay(mixture)
    scorer.use(None)
    with check_conditions(scorer.model, scorer.device):
        reason = _reason_against(scorer, routers, mixture, batching)
    if reason is not None:
        raise InvalidInput(
            f"cannot replay the experts of a {kind}: {reason}; set algorithm.router_replay = false, or report the "
            "model with its config.json",
            code="trainer.experts_not_replayed",
        )


def _reason_against(
    scorer: Scorer, routers: Sequence[WatchedRouter], mixture: Mixture, batching: Batching
) -> str | None:
    """Returns why the model is not computed with given experts; None if it is."""
    plain, own = _recorded(scorer, routers, mixture)
    if own is None:
        return "its routers do not choose experts by torch.topk"
    others = [_others(mixture, len(tokens)) for tokens in CHECKED_TOKENS]
    replayed, changed = (
        logprobs_alone(scorer, arguments=[_argument(scorer, part) for part in parts]) for parts in (own, others)
    )
    scorer.use(batching)
    distance = gap(scorer.model, torch.cat(replayed), torch.cat(plain))
    if not distance <= tolerance(scorer.model):
        return f"its logprobs differ by {distance:.3g} nats when its own choice is replayed"
    if mixture.chosen < mixture.experts and torch.equal(torch.cat(changed), torch.cat(plain)):
        return "its logprobs do not depend on replayed experts"
    experts = encoded_experts(_others(mixture, max(map(len, CHECKED_TOKENS))), mixture)
    distance = difference(scorer, changed, is_training=False, experts=experts)
    if not distance <= tolerance(scorer.model):
        return f"with replayed experts its logprobs in a pack differ by {distance:.3g} nats from those of the sequences"
    return None


def _recorded(
    scorer: Scorer, routers: Sequence[WatchedRouter], mixture: Mixture
) -> tuple[list[Tensor], list[Any] | None]:
    """Returns the logprobs of the checked sequences, and the experts that the model chooses, `[tokens, layers, chosen]`
    of each; None if they cannot be recorded."""
    logprobs: list[Tensor] = []
    chosen: list[Any] = []
    for router in routers:
        router.is_recorded = True
    for tokens in CHECKED_TOKENS:
        logprobs += logprobs_alone(scorer, [tokens])
        choices = np.zeros((len(tokens), mixture.layers, mixture.chosen), np.int64)
        for router in routers:
            if router.choice is None:
                return logprobs, None
            choices[:, router.layer] = router.choice.cpu().numpy()
        chosen.append(choices)
    for router in routers:
        router.is_recorded, router.choice = False, None
    return logprobs, chosen if routers else None


def _others(mixture: Mixture, tokens: int) -> Any:
    """Returns experts that no router chooses by itself at all positions, `[tokens, layers, chosen]`."""
    token, layer, number = np.ogrid[:tokens, : mixture.layers, : mixture.chosen]
    return (token + 3 * layer + number) % mixture.experts


def _argument(scorer: Scorer, choices: Any) -> Mapping[str, Tensor]:
    """Returns the argument that replays the experts of a sequence; its last token predicts none."""
    values = torch.from_numpy(choices.astype(np.int16))
    values[-1] = -1
    return {CHOICES: values.to(scorer.device)}
