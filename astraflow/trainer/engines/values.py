"""Critic of an engine: the policy's decoder with a linear head of one output, in float32, and an optimizer of its own.

It starts from the policy's initial weights and is computed in the policy's packs, so that shared prompts, micro-batches
and the division over ranks are the same. It is never published.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from astraflow.algorithms.config import CriticConfig
from astraflow.algorithms.tokens import TokenScores
from astraflow.models.causal import embedding_names, freeze_unused, named_weights
from astraflow.models.precision import torch_dtype_of
from astraflow.models.published import matrix_shapes
from astraflow.trainer.engines.base import ModelRole
from astraflow.trainer.engines.optimizers import WEIGHT_PREFIX, MasterOptimizer, OptimizerOptions
from astraflow.trainer.engines.scoring.base import PackInputs
from astraflow.trainer.engines.scoring.scorer import Scorer
from astraflow.trainer.engines.spec import EngineSpec

_PREFIX = "critic/"
"""Prefix of the critic's tensors in a checkpoint."""


def critic_options(policy: OptimizerOptions, critic: CriticConfig | None) -> OptimizerOptions | None:
    """Returns the optimizer options of the critic, if any: the policy's, with learning rate and clip of its own."""
    if critic is None:
        return None
    shared = policy.model_dump(include=set(OptimizerOptions.model_fields))
    own = {"learning_rate": critic.learning_rate, "grad_clip": critic.grad_clip}
    return OptimizerOptions.model_validate({**shared, **own})


def value_scorer(policy: Scorer, device: torch.device) -> Scorer:
    """Returns a copy of the policy's scorer that computes values instead of logprobs, with its head on a device.

    The weights of the head are random and small, so that values begin near 0 and the first gradient reaches the
    decoder. (OpenRLHF)
    """
    scorer = deepcopy(policy)
    scorer.model.requires_grad_(True)
    freeze_unused(scorer.model)
    size = scorer.model.config.get_text_config().hidden_size
    head = nn.Linear(size, 1, bias=False, dtype=torch.float32, device=device)
    with torch.no_grad():  # drawn on the host, by a generator of its own: equal on every device, rank and engine
        head.weight.copy_(torch.randn(1, size, generator=torch.Generator().manual_seed(0)) / (size + 1))
    scorer.model.set_output_embeddings(head)
    scorer.head = ValueHead()
    return scorer


@dataclass(frozen=True, slots=True)
class ValueHead:
    """Values of the states before the trained tokens."""

    reads_logits: bool = False

    def __call__(self, layer: Any, states: Tensor, _inputs: PackInputs, _temperature: float) -> TokenScores:
        return TokenScores.of_values(layer(states.float())[:, 0])

    def compiled(self) -> "ValueHead":
        """Returns the head as it is: one small product."""
        return self


def build_optimizers(
    spec: EngineSpec,
    model: PreTrainedModel,
    weights: Mapping[str, nn.Parameter],
    *,
    critic: Scorer | None,
    shares_parameters: bool = False,
) -> dict[ModelRole, MasterOptimizer]:
    """Returns the optimizers of an engine: of the policy, and of the critic if there is one.

    weights: trained ones of the policy. A critic's are rounded only to the element type they compute in.
    shares_parameters: as for `MasterOptimizer`, of the policy.
    """
    shared: dict[str, Any] = {"matrix_shapes": matrix_shapes(spec.parts or {}), "is_compiled": spec.compile_blocks}
    optimizers = {
        ModelRole.POLICY: MasterOptimizer(
            weights,
            spec.optimizer,
            rounded_to=torch_dtype_of(spec.published_dtype),
            not_matrices=embedding_names(model),
            shares_parameters=shares_parameters,
            **shared,
        )
    }
    if critic is not None and spec.critic is not None:
        own = named_weights(critic.model)
        optimizers[ModelRole.CRITIC] = MasterOptimizer(
            own,
            spec.critic,
            rounded_to=torch.float32,
            not_matrices=embedding_names(critic.model),
            shares_parameters=all(weight.dtype == torch.float32 for weight in own.values()),
            **shared,
        )
    return optimizers


def joined_states(
    optimizers: Mapping[ModelRole, MasterOptimizer], constants: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Returns the state tensors of all models; the names of the policy's do not depend on whether there is a critic.

    constants: weights of the policy that are published, but not trained.
    """
    tensors = optimizers[ModelRole.POLICY].state_tensors()
    tensors |= {f"{WEIGHT_PREFIX}{name}": weight for name, weight in constants.items()}
    if ModelRole.CRITIC in optimizers:
        critic = optimizers[ModelRole.CRITIC].state_tensors()
        tensors |= {f"{_PREFIX}{name}": value for name, value in critic.items()}
    return tensors


def is_weight(name: str) -> bool:
    """Returns whether a tensor of `joined_states` is a weight, of the policy or of the critic."""
    return name.removeprefix(_PREFIX).startswith(WEIGHT_PREFIX)


def restore_optimizers(optimizers: Mapping[ModelRole, MasterOptimizer], *, updates: int, critic_updates: int) -> None:
    """Continues from tensors that were copied into `joined_states`."""
    for role, optimizer in optimizers.items():
        optimizer.restored(updates=critic_updates if role is ModelRole.CRITIC else updates)
