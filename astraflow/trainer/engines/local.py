"""Training engine for one process on one device: a CPU or one GPU."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from astraflow.algorithms.tokens import Ranks, SingleRank, TokenScores
from astraflow.contract.errors import InvalidInput
from astraflow.contract.weights import Dtype
from astraflow.models.causal import embedding_names
from astraflow.models.precision import torch_dtype_of
from astraflow.models.published import PublishedParts, matrix_shapes
from astraflow.trainer.engines.adapters import Adapters, computing_as, trained_weights
from astraflow.trainer.engines.base import Layout, ModelRole, Pack, UpdateResult
from astraflow.trainer.engines.optimizers import MasterOptimizer, OptimizerOptions
from astraflow.trainer.engines.scoring import PackScorer, apply_options
from astraflow.trainer.engines.values import joined_states, restore_optimizers, value_optimizer, value_scorer


class LocalEngine:
    """Model with rounded weights and float32 master weights."""

    def __init__(
        self,
        model: PreTrainedModel,
        options: OptimizerOptions,
        *,
        device: torch.device,
        published_dtype: Dtype,
        parts: PublishedParts | None = None,
        needs_reference: bool,
        teacher: PreTrainedModel | None = None,
        critic: OptimizerOptions | None = None,
        adapters: Adapters | None = None,
        recompute: Literal["none", "selective", "full"] = "none",
        compile_blocks: bool = False,
        float8: bool = False,
    ) -> None:
        """model: on `device`, in the element type to compute in, as is the teacher. float8: the linear layers of all
        models but the critic compute in float8. critic: options of its optimizer;
        None: no critic. parts: published parts of the parameters, for an optimizer that works by matrices; None: each
        is one. adapters: of the model; they are then all that is trained, and the reference is the model
        without them.

        Raises: InvalidInput when the model cannot be computed in packs.
        """
        self._device = device
        self._published_dtype = published_dtype
        policy = PackScorer(model, device)
        policy.check()
        self._scorers = {ModelRole.POLICY: policy}
        if critic is not None:  # copied before the weights are rounded for publishing
            self._scorers[ModelRole.CRITIC] = value_scorer(policy, device)
        self._adapters = adapters
        self._optimizer = MasterOptimizer(
            trained_weights(model, adapters),
            options,
            rounded_to=torch_dtype_of(published_dtype),
            not_matrices=embedding_names(model),
            matrix_shapes=matrix_shapes(parts or {}),
            is_compiled=compile_blocks,
        )
        self._optimizers = {ModelRole.POLICY: self._optimizer}
        if critic is not None:
            self._optimizers[ModelRole.CRITIC] = value_optimizer(
                self._scorers[ModelRole.CRITIC], critic, parts, is_compiled=compile_blocks
            )
        if needs_reference:
            self._scorers[ModelRole.REFERENCE] = deepcopy(policy).requires_grad_(False) if adapters is None else policy
        if teacher is not None:
            self._scorers[ModelRole.TEACHER] = PackScorer(teacher, device).requires_grad_(False)
            self._scorers[ModelRole.TEACHER].check()
        apply_options(
            self._scorers, self._optimizers, recompute=recompute, compile_blocks=compile_blocks, float8=float8
        )

    @property
    def layout(self) -> Layout:
        """The only rank."""
        return Layout()

    @property
    def ranks(self) -> Ranks:
        """The only rank."""
        return SingleRank()

    @property
    def device(self) -> torch.device:
        """Device on which scores are."""
        return self._device

    @torch.no_grad()
    def score(self, pack: Pack, *, role: ModelRole = ModelRole.POLICY, temperature: float = 1.0) -> TokenScores:
        """Computes scores without gradient. Raises: InvalidInput for a role whose model the engine does not have."""
        if role not in self._scorers:
            raise InvalidInput(
                f"cannot compute a pass of the {role.value}: the engine has no such model; give the algorithm a "
                f"{role.value}, or use an algorithm without it",
                code="trainer.no_such_role",
            )
        scorer = self._scorers[role]
        with computing_as(role, self._adapters):
            scores: TokenScores = scorer.eval()(scorer.inputs(pack), temperature)
        return scores

    def learn(
        self,
        pack: Pack,
        loss: Callable[[TokenScores], Tensor],
        *,
        role: ModelRole = ModelRole.POLICY,
        temperature: float = 1.0,
        is_last: bool,
    ) -> None:
        """Adds the pack's gradient."""
        scorer = self._scorers[role]
        loss(scorer.train()(scorer.inputs(pack), temperature)).backward()
        self._optimizers[role].accumulate()

    def update(self, *, role: ModelRole = ModelRole.POLICY, is_loss_finite: bool) -> UpdateResult:
        """Runs one optimizer step."""
        return self._optimizers[role].update(is_loss_finite=is_loss_finite)

    @property
    def published_dtype(self) -> Dtype:
        """Element type of published weights."""
        return self._published_dtype

    def weights(self) -> Mapping[str, Tensor]:
        """Returns the policy's master weights."""
        return self._optimizer.weights()

    def state_tensors(self) -> Mapping[str, Tensor]:
        """Returns master weights and moments."""
        return joined_states(self._optimizers)

    def restored(self, *, updates: int, critic_updates: int) -> None:
        """Rounds the restored master weights into the models."""
        restore_optimizers(self._optimizers, updates=updates, critic_updates=critic_updates)
