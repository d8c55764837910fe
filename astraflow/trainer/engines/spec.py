"""Specification of a training engine: everything but the models and their division over ranks."""

from dataclasses import dataclass
from typing import Literal

import torch

from astraflow.contract.weights import Dtype
from astraflow.models.published import PublishedParts
from astraflow.trainer.engines.adapters import Adapters
from astraflow.trainer.engines.base import Batching
from astraflow.trainer.engines.optimizers import OptimizerOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """Specification that every engine is built from."""

    optimizer: OptimizerOptions
    """Options of the policy's optimizer."""
    device: torch.device
    """Device that computes."""
    published_dtype: Dtype
    """Element type that weights are rounded to and published in."""
    parts: PublishedParts | None = None
    """Published parts of the parameters, for an optimizer that works by matrices; None: each is one."""
    needs_reference: bool = False
    """True if the initial weights compute passes too."""
    critic: OptimizerOptions | None = None
    """Options of the critic's optimizer; None without a critic."""
    adapters: Adapters | None = None
    """Adapters of the model; they are then all that is trained, and the reference is the model without them."""
    batching: Batching | None = None
    """Batching of the policy; None: the fastest that is exact."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Activations that the backward pass computes again instead of keeping them."""
    balances_experts: bool = False
    """True if the training pass computes the loss for the balance of experts."""
    replays_experts: bool = False
    """True if the policy and its reference compute tokens with the experts that the engine chose."""
    compile_blocks: bool = False
    """Compiles the blocks of the models."""
    float8: bool = False
    """Computes the linear layers of all models but the critic in float8."""
