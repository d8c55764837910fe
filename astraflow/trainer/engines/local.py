"""Training engine for one process on one device: a CPU or one GPU."""

from collections.abc import Callable, Mapping
from copy import deepcopy

import torch
from torch import Tensor
from transformers import PreTrainedModel

from astraflow.algorithms.tokens import Ranks, SingleRank, TokenScores
from astraflow.contract.weights import Dtype
from astraflow.trainer.engines.adapters import computing_as, constant_weights, trained_weights
from astraflow.trainer.engines.base import Batching, Layout, Model, ModelRole, Pack, UpdateResult, missing_model
from astraflow.trainer.engines.optimizers import OptimizerOptions
from astraflow.trainer.engines.scoring.balance import check_routers
from astraflow.trainer.engines.scoring.choice import choose_demanded
from astraflow.trainer.engines.scoring.options import apply_options
from astraflow.trainer.engines.scoring.replay import replay_experts
from astraflow.trainer.engines.scoring.scorer import Scorer
from astraflow.trainer.engines.spec import EngineSpec
from astraflow.trainer.engines.values import build_optimizers, joined_states, restore_optimizers, value_scorer


class LocalEngine:
    """Model with rounded weights and float32 master weights."""

    def __init__(
        self, model: PreTrainedModel, spec: EngineSpec, *, teachers: Mapping[str, PreTrainedModel] | None = None
    ) -> None:
        """model: on the device of `spec`, in the element type to compute in, as are the teachers, by name.

        Raises: InvalidInput when the model cannot be computed in packs of trajectories.
        """
        self._spec = spec
        policy = Scorer(model, spec.device)
        self.choice = choose_demanded(policy, spec.batching)
        """Batching of the policy, and why."""
        self._scorers: dict[Model, Scorer] = {ModelRole.POLICY: policy}
        if spec.critic is not None:  # copied before the weights are rounded for publishing
            self._scorers[ModelRole.CRITIC] = value_scorer(policy, spec.device)
        self._optimizers = build_optimizers(
            spec, model, trained_weights(model, spec.adapters), critic=self._scorers.get(ModelRole.CRITIC)
        )
        self._constants = constant_weights(model, spec.adapters)
        if spec.replays_experts:
            replay_experts(policy)
        if spec.needs_reference:
            is_whole = spec.adapters is None
            self._scorers[ModelRole.REFERENCE] = deepcopy(policy).requires_grad_(False) if is_whole else policy
        for name, teacher in (teachers or {}).items():
            self._scorers[name] = Scorer(teacher, spec.device).requires_grad_(False)
            choose_demanded(self._scorers[name], None)
        if spec.balances_experts:
            check_routers(model)
            policy.balances_experts = True
        apply_options(self._scorers, self._optimizers, spec)

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
        return self._spec.device

    @property
    def batching(self) -> Batching:
        """Batching of the policy."""
        return self.choice.batching

    @torch.no_grad()
    def score(self, pack: Pack, *, role: Model = ModelRole.POLICY, temperature: float = 1.0) -> TokenScores:
        """Computes scores without gradient. Raises: InvalidInput for a model that the engine does not have."""
        if role not in self._scorers:
            raise missing_model(role)
        scorer = self._scorers[role]
        with computing_as(role, self._spec.adapters):
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

    def use(self, options: OptimizerOptions) -> None:
        """Takes the rates of the policy's next updates from other options, as `MasterOptimizer.use`."""
        self._optimizers[ModelRole.POLICY].use(options)

    @property
    def published_dtype(self) -> Dtype:
        """Element type of published weights."""
        return self._spec.published_dtype

    def weights(self) -> Mapping[str, Tensor]:
        """Returns the policy's master weights and constant weights."""
        return {**self._optimizers[ModelRole.POLICY].weights(), **self._constants}

    def state_tensors(self) -> Mapping[str, Tensor]:
        """Returns master weights, constant weights and moments."""
        return joined_states(self._optimizers, self._constants)

    def restored(self, *, updates: int, critic_updates: int) -> None:
        """Rounds the restored master weights into the models."""
        restore_optimizers(self._optimizers, updates=updates, critic_updates=critic_updates)
