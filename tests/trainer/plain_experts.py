"""Replayed experts in the plainest way, of models of Qwen3-MoE: columns of trajectories, and routers that obey them."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from astraflow.contract.rollouts.expert_columns import decoded_experts, encoded_experts
from astraflow.contract.rollouts.recording import Mixture
from astraflow.contract.rollouts.token_columns import TokenColumn, TokenColumns
from astraflow.contract.rollouts.trajectories import Trajectory


def expert_column(trajectory: Trajectory, mixture: Mixture) -> TokenColumns:
    """Returns a column of experts that depend on the positions only, as shared prompts need; some tokens have none."""
    positions = np.flatnonzero(trajectory.loss_mask()) - 1
    layer, number = np.ogrid[: mixture.layers, : mixture.chosen]
    chosen = (positions[:, None, None] // 2 + 2 * layer + number) % mixture.experts
    column = encoded_experts(chosen, mixture)
    column[positions % 7 == 3] = 255
    return {**trajectory.token_columns, TokenColumn.EXPERTS: column}


def force_experts(model: Any, rows: Sequence[Trajectory], width: int, mixture: Mixture) -> None:
    """Makes the routers of a model choose the recorded experts in rows that are padded to a width."""
    forced = torch.full((len(rows), width, mixture.layers, mixture.chosen), -1)
    for number, row in enumerate(rows):
        recorded = decoded_experts(row.token_columns[TokenColumn.EXPERTS], mixture)
        forced[number, np.flatnonzero(row.loss_mask()) - 1] = torch.from_numpy(recorded.astype(np.int64))
    gates = [module for name, module in model.named_modules() if name.endswith("mlp.gate")]
    for layer, gate in enumerate(gates):
        gate.forward = partial(_routed, gate, forced[:, :, layer].flatten(0, 1))


def _routed(gate: Any, forced: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logits = linear(hidden.flatten(0, -2), gate.weight)
    shares = logits.softmax(-1)
    chosen = torch.where(forced[:, :1] < 0, shares.topk(forced.shape[1]).indices, forced)
    weights = torch.stack([share[own] for share, own in zip(shares, chosen, strict=True)])
    return logits, weights / weights.sum(-1, keepdim=True) if gate.norm_topk_prob else weights, chosen
