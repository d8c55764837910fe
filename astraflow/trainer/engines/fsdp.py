"""Training engine for several ranks: FSDP2, replicas (HSDP), sequence parallelism, weights offloaded to the host."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from astraflow.algorithms.tokens import Ranks, SingleRank, TokenScores
from astraflow.contract.errors import InvalidInput
from astraflow.contract.weights import Dtype
from astraflow.models.causal import compute_routers_in_float32, named_weights
from astraflow.models.precision import torch_dtype_of
from astraflow.models.stored import StoredModel, set_values
from astraflow.trainer.engines.adapters import base_name, computing_as, constant_weights, trained_weights
from astraflow.trainer.engines.base import Batching, Layout, Model, ModelRole, Pack, UpdateResult, missing_model
from astraflow.trainer.engines.mesh import GroupRanks, RankMesh
from astraflow.trainer.engines.scoring.balance import check_routers
from astraflow.trainer.engines.scoring.choice import BatchingChoice, choose_batching, choose_demanded
from astraflow.trainer.engines.scoring.options import apply_options
from astraflow.trainer.engines.scoring.replay import replay_experts
from astraflow.trainer.engines.scoring.scorer import Scorer
from astraflow.trainer.engines.sequence import SequenceScorer
from astraflow.trainer.engines.spec import EngineSpec
from astraflow.trainer.engines.values import build_optimizers, joined_states, restore_optimizers, value_scorer


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """Division of a model over ranks."""

    mesh: RankMesh
    """Ranks of weights, sequences and data."""
    compute_dtype: torch.dtype
    """Element type of gathered weights."""
    is_offloaded: bool = False
    """Weights, gradients and the optimizer are on the host, and only gathered blocks are on the GPU."""
    syncs_each_pack: bool = False
    """Sums gradients over the ranks after each pack, not only after the last: needs less memory, which is else that of
    the whole gradient."""


class FsdpEngine:
    """One rank of a model whose weights, gradients and moments are sharded over all ranks.

    float32 masters are DTensors with the parameters' own shards. Where the model computes in the published type, the
    parameters are the masters, and gathering them rounds them; else the parameters hold the rounded masters.
    """

    reads_blocks: ClassVar[bool] = True
    """True if models are read a block at a time; False if they must be in memory when the engine is built."""

    def __init__(
        self,
        stored: StoredModel,
        spec: EngineSpec,
        sharding: Sharding,
        *,
        teachers: Mapping[str, StoredModel] | None = None,
    ) -> None:
        """Collective. stored, teachers: models, equal on every rank; a block at a time is read, moved to the device and
        sharded.

        Raises: InvalidInput when the model cannot be computed in packs, or its heads not be divided.
        """
        self._spec, self._sharding = spec, sharding
        self._calls = 0
        policy = self._scorer(stored)
        sources = dict(teachers or {})
        frozen = self._frozen_scorers(policy, sources)
        trained: dict[Model, Any] = {ModelRole.POLICY: policy}
        if spec.critic is not None:
            trained[ModelRole.CRITIC] = value_scorer(policy, torch.device("cpu"))
        scorers: dict[Model, Any] = {**trained, **frozen}
        roots = {
            role: self._sharded(scorer, sources.get(str(role), stored).read, role) for role, scorer in scorers.items()
        }
        choices = {  # in the same order on every rank, since a check gathers weights
            role: self._chosen(root, scorers[role], spec.batching if role is ModelRole.POLICY else None)
            for role, root in roots.items()
            if role is ModelRole.POLICY or role in sources
        }
        self.choice = choices[ModelRole.POLICY]
        """Batching of the policy, and why."""
        if spec.replays_experts:
            roots[ModelRole.POLICY].replay_experts(policy)
        for role, root in roots.items():
            if role not in choices and isinstance(root, _Root):
                root.follow(policy)
        if spec.balances_experts:
            self._balance_experts(policy)
        apply_options(scorers, trained, spec)
        self._trained: dict[Model, Any] = {role: roots[role] for role in trained}
        self._frozen: dict[Model, Any] = {role: roots[role] for role in frozen}
        if spec.needs_reference and spec.adapters is not None:
            self._frozen[ModelRole.REFERENCE] = self._trained[ModelRole.POLICY]
        self._constants = constant_weights(stored.model, spec.adapters)
        self._optimizers = build_optimizers(
            spec,
            stored.model,
            self._trained_weights(stored.model),
            critic=trained.get(ModelRole.CRITIC),
            shares_parameters=self._rounds_when_gathered,
        )

    @property
    def _rounds_when_gathered(self) -> bool:
        return self._sharding.compute_dtype == torch_dtype_of(self._spec.published_dtype)

    def _trains_float32(self, role: Model) -> bool:
        """Returns whether the parameters of a trained model are its float32 masters."""
        return self._rounds_when_gathered or role is ModelRole.CRITIC

    def _frozen_scorers(self, policy: Any, teachers: Mapping[str, StoredModel]) -> dict[Model, Any]:
        """Returns what computes scores with the models that are not trained."""
        scorers: dict[Model, Any] = {}
        if self._spec.needs_reference and self._spec.adapters is None:
            scorers[ModelRole.REFERENCE] = deepcopy(policy).requires_grad_(False)
        for name, teacher in teachers.items():
            scorers[name] = self._scorer(teacher).requires_grad_(False)
        return scorers

    def _scorer(self, stored: StoredModel) -> Any:
        """Returns what computes scores with a model that is not sharded yet."""
        scorer = Scorer(stored.model, self._spec.device)
        compute_routers_in_float32(stored.model)
        return scorer

    def _sharded(self, scorer: Any, read: Callable[[str], Tensor] | None, role: Model) -> Any:
        """Shards the model of a scorer over the ranks. Collective."""
        return _sharded(
            scorer,
            read,
            self._sharding,
            device=self._spec.device,
            trains_float32=self._trains_float32(role),
            is_critic=role is ModelRole.CRITIC,
        )

    def _chosen(self, root: Any, scorer: Any, demanded: Batching | None) -> BatchingChoice:
        """Chooses the batching of a scorer whose model has been sharded. Collective. Raises: InvalidInput."""
        choice: BatchingChoice = root.chosen(scorer, demanded)
        return choice

    def _balance_experts(self, policy: Scorer) -> None:
        """Makes the training pass compute the loss for the balance of experts. Raises: InvalidInput."""
        check_routers(policy.model)
        if self._sharding.mesh.sequence is not None:
            raise InvalidInput(
                "cannot balance experts with sequence_ranks above 1: no rank has the scores of a whole pack; set "
                "algorithm.balance_coefficient = 0 or sequence_ranks = 1",
                code="trainer.balance_of_sequences",
            )
        policy.balances_experts = True

    def _trained_weights(self, model: PreTrainedModel) -> Mapping[str, nn.Parameter]:
        """Returns the parameters that are trained, by published name."""
        return trained_weights(model, self._spec.adapters)

    @property
    def calls(self) -> int:
        """Collective calls begun on this rank. Count."""
        return self._calls

    @property
    def layout(self) -> Layout:
        """Place of this rank."""
        return self._sharding.mesh.layout

    @property
    def ranks(self) -> Ranks:
        """Collective operations over the ranks with different packs."""
        return SingleRank() if self._sharding.mesh.data is None else GroupRanks(self._sharding.mesh.data)

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
        self._calls += 1
        model = self._trained.get(role) or self._frozen.get(role)
        if model is None:
            raise missing_model(role)
        with computing_as(role, self._spec.adapters):
            scores: TokenScores = model.eval().scores(pack, temperature)
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
        """Adds the pack's gradient; sums it over the ranks with the last pack's."""
        self._calls += 1
        is_synchronized = is_last or self._sharding.syncs_each_pack
        model = self._trained[role]
        model.set_requires_gradient_sync(is_synchronized)
        model.set_is_last_backward(is_last)
        loss(model.train().scores(pack, temperature)).backward()
        if is_synchronized:
            self._optimizers[role].accumulate()

    def update(self, *, role: ModelRole = ModelRole.POLICY, is_loss_finite: bool) -> UpdateResult:
        """Runs one optimizer step."""
        self._calls += 1
        result = self._optimizers[role].update(is_loss_finite=is_loss_finite)
        reshard(self._trained[role])
        return result

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
        for model in self._trained.values():
            reshard(model)


_Result = TypeVar("_Result")


class _Root(nn.Module):
    """Root of the sharded modules. Its forward uses all weights, so those outside the blocks, tied or not, are gathered
    and freed together. It returns a tuple: FSDP looks for tensors with gradient in the results."""

    def __init__(self, scorer: Scorer | SequenceScorer, device: torch.device) -> None:
        super().__init__()
        self.scorer = scorer
        self.device = device

    def forward(self, compute: Callable[[], _Result]) -> _Result:
        """Returns what a computation with the gathered weights returns."""
        return compute()

    def scores(self, pack: Pack, temperature: float) -> TokenScores:
        """Returns the scores of the pack's trained tokens."""
        inputs: Any = self.scorer.inputs(pack)
        if isinstance(self.scorer, Scorer):  # the ranks of a sequence group have the same pack
            inputs = self.scorer.aligned(inputs, self._largest)

        def parts() -> tuple[Tensor, ...]:
            scores = self.scorer(inputs, temperature)
            names[:] = [field.name for field in fields(scores) if getattr(scores, field.name) is not None]
            # views would lose FSDP's hook at an operation in place
            return tuple(getattr(scores, name).clone() for name in names)

        names: list[str] = []
        results = self(parts)
        return TokenScores(**dict(zip(names, results, strict=True)))

    def _largest(self, count: int) -> int:
        counts = torch.tensor(count, device=self.device)
        dist.all_reduce(counts, dist.ReduceOp.MAX)
        return int(counts)

    @torch.no_grad()
    def chosen(self, whole: Scorer, demanded: Batching | None) -> BatchingChoice:
        """Chooses the batching of a scorer. Collective. Raises: InvalidInput."""
        if isinstance(self.scorer, SequenceScorer):
            setting = f"sequence_ranks = {self.scorer.ranks}"
            choice: BatchingChoice = self(lambda: choose_batching(whole, (Batching.PACKED,), setting=setting))
            self.scorer.attach()
        else:
            choice = self(lambda: choose_demanded(whole, demanded))
        reshard(self)
        return choice

    @torch.no_grad()
    def replay_experts(self, whole: Scorer) -> None:
        """Makes a scorer compute tokens with the experts of their packs. Collective. Raises: InvalidInput."""
        self(lambda: replay_experts(whole))
        if isinstance(self.scorer, SequenceScorer):
            self.scorer.attach()
        reshard(self)

    def follow(self, policy: Scorer) -> None:
        """Computes in the batching of the policy."""
        if isinstance(self.scorer, Scorer):
            self.scorer.follow(policy)


def _sharded(
    whole: Scorer,
    read: Callable[[str], Tensor] | None,
    sharding: Sharding,
    *,
    device: torch.device,
    trains_float32: bool,
    is_critic: bool,
) -> Any:
    """Shards the weights over the ranks: each block, and the rest together. Collective.

    A block is read and moved to the device when its turn comes, and freed but for the shard before the next one.
    The gradient of a step is the sum over all ranks, in float32.
    """
    scorer = whole if sharding.mesh.sequence is None else SequenceScorer(whole, device, sharding.mesh.sequence)
    options: dict[str, Any] = {
        "mesh": sharding.mesh.shards,
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=sharding.compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
        ),
        "offload_policy": CPUOffloadPolicy() if sharding.is_offloaded else OffloadPolicy(),
    }
    root = _Root(scorer, device)
    if is_critic:  # whose head is in float32
        float32 = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32, cast_forward_inputs=False)
        fully_shard(whole.model.get_output_embeddings(), **{**options, "mp_policy": float32})
    names = {id(parameter): base_name(name) for name, parameter in named_weights(whole.model).items()}

    def read_values(module: nn.Module) -> None:
        for parameter in module.parameters():
            if isinstance(parameter, DTensor):  # sharded already
                continue
            values = parameter.detach()
            if read is not None and parameter.is_meta:
                values = read(names[id(parameter)])
            values = values.to(device).to(sharding.compute_dtype)
            set_values(parameter, values.float() if trains_float32 and parameter.requires_grad else values)

    blocks = set(whole.model._no_split_modules or ())
    for module in [*(module for module in scorer.modules() if type(module).__name__ in blocks), root]:
        read_values(module)
        fully_shard(module, **options)
    sum_gradients(root)
    return root


def sum_gradients(root: nn.Module) -> None:
    """Makes gradients sums over the ranks: losses are already divided by the whole batch."""
    for module in _sharded_modules(root):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo cannot scale while it reduces


def reshard(root: nn.Module) -> None:
    """Frees gathered weights, which are those of the root and of blocks that stay gathered after a pass."""
    for module in _sharded_modules(root):
        module.reshard()


def _sharded_modules(root: nn.Module) -> list[FSDPModule]:
    """Returns the modules on which methods that act on one module only are to be called."""
    return [module for module in root.modules() if isinstance(module, FSDPModule)]
