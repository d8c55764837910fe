"""Experts that computed tokens, recorded from the routers of a mixture."""

from functools import cached_property

import torch
from torch import Tensor
from transformers import PreTrainedModel

from astraflow.contract.rollouts.recording import Mixture
from astraflow.models.mixtures import mixture_of
from astraflow.models.routers import WatchedRouter, watched_routers


class ExpertRecorder:
    """Choices of all routers of a model in its last forward pass."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Makes the routers of the model record what they choose."""
        self._model = model
        self._routers: list[WatchedRouter] = watched_routers(model, is_recorded=True)

    @cached_property
    def mixture(self) -> Mixture | None:
        """Shape of the mixture; None for a dense model, and for one whose routers do not choose by `topk`, which the
        first use shows by a forward pass of one token."""
        if not self._routers:
            return None
        with torch.inference_mode():
            self._model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=self._model.device), use_cache=False)
        is_recorded = all(router.choice is not None for router in self._routers)
        return mixture_of(self._model.config.get_text_config().to_dict()) if is_recorded else None

    def at(self, positions: Tensor) -> Tensor:
        """Returns the experts of the last forward pass at positions of the flattened ids, 0 in layers without experts:
        int64 `[positions, layers, chosen]`."""
        first = self._routers[0]
        chosen = torch.zeros(
            len(positions), first.mixture.layers, first.mixture.chosen, dtype=torch.int64, device=positions.device
        )
        for router in self._routers:
            assert router.choice is not None  # noqa: S101 (`mixture` has checked it)
            chosen[:, router.layer] = router.choice.index_select(0, positions)
        return chosen
