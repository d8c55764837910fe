"""Training engine on torchtitan's dense Qwen3 and its FSDP, for one rank or several.

Source: https://github.com/pytorch/torchtitan, release 0.3.0. The model's attention is replaced by attention over packs,
and its head by one that computes trained tokens only, so packs, losses and gradients are those of the other engines.
Weights have the names of the Hugging Face model, by torchtitan's own adapter of names.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from astraflow.algorithms.tokens import TokenScores
from astraflow.contract.weights import Dtype
from astraflow.models.causal import check_supported, embedding_names, named_weights
from astraflow.models.precision import torch_dtype_of
from astraflow.models.published import PublishedParts, matrix_shapes
from astraflow.models.stored import StoredModel
from astraflow.models.titan import hugging_face_names, titan_model, torchtitan, unsupported_by_titan
from astraflow.trainer.engines.attention.attention import kernel_of, packed_attention
from astraflow.trainer.engines.attention.kernels import AttentionKernel, SdpaKernel
from astraflow.trainer.engines.base import ModelRole, Pack
from astraflow.trainer.engines.fsdp import FsdpEngine
from astraflow.trainer.engines.heads import target_scores
from astraflow.trainer.engines.mesh import RankMesh
from astraflow.trainer.engines.optimizers import MasterOptimizer, OptimizerOptions
from astraflow.trainer.step.packing import pack_sequences

_UNSET = (None, False, "none")

_TOLERANCE = 1e-3
"""Nats between logprobs of torchtitan's model and of transformers', in float32."""
_CHECKED = [0, 1, 2, 3, 2, 1, 0, 3]


class TitanEngine(FsdpEngine):
    """One rank of a model of torchtitan, sharded over all ranks, with float32 masters as in `FsdpEngine`.

    Passes and updates are those of that engine; the models and their division over the ranks are torchtitan's.
    """

    def __init__(
        self,
        stored: StoredModel,
        optimizer: OptimizerOptions,
        *,
        mesh: RankMesh,
        device: torch.device,
        compute_dtype: torch.dtype,
        published_dtype: Dtype,
        parts: PublishedParts | None = None,
        needs_reference: bool = False,
        teacher: StoredModel | None = None,
        is_offloaded: bool = False,
        syncs_each_pack: bool = False,
        **others: object,
    ) -> None:
        """Collective. stored, teacher: of transformers, all weights in float32, equal on every rank, on the host.
        others: options of `FsdpEngine` that this engine does not have.

        Raises: InvalidInput when torchtitan is not installed, its model differs from transformers', or another option
        is set.
        """
        model = stored.model
        if unsupported := sorted(name for name, value in others.items() if value not in _UNSET):
            raise unsupported_by_titan(type(model).__name__, f"it does not have {', '.join(unsupported)}")
        self._mesh = mesh
        self._device = device
        self._published_dtype = published_dtype
        self._syncs_each_pack = syncs_each_pack
        self._calls = 0
        self._adapters = None
        shares_parameters = compute_dtype == torch_dtype_of(published_dtype)
        shard: dict[str, Any] = {"mesh": mesh, "compute_dtype": compute_dtype, "is_offloaded": is_offloaded}
        policy = _TitanScorer(model, device)
        frozen = {ModelRole.REFERENCE: _TitanScorer(model, device)} if needs_reference else {}
        if teacher is not None:
            frozen[ModelRole.TEACHER] = _TitanScorer(teacher.model, device)
        for scorer in frozen.values():
            scorer.model.requires_grad_(False)
        self._trained: dict[ModelRole, Any] = {ModelRole.POLICY: policy}
        self._frozen: dict[ModelRole, Any] = frozen
        names = hugging_face_names(policy.model)
        for scorer in (policy, *frozen.values()):
            _shard(scorer.model, **shard, keeps_float32=shares_parameters)
        weights = dict(policy.model.named_parameters())
        self._optimizer = MasterOptimizer(
            {name: weights[names[name]] for name in named_weights(model)},  # in the order of the other engines
            optimizer,
            rounded_to=torch_dtype_of(published_dtype),
            not_matrices=embedding_names(model),
            matrix_shapes=matrix_shapes(parts or {}),
            shares_parameters=shares_parameters,
        )
        self._optimizers = {ModelRole.POLICY: self._optimizer}


class _TitanScorer:
    """Scores of packs by torchtitan's model."""

    def __init__(self, source: PreTrainedModel, device: torch.device) -> None:
        """Builds the model with the weights of `source`, on the host: sharding moves it, a block at a time. Raises:
        InvalidInput."""
        check_supported(source)
        self._device = torch.device("cpu")
        self._kernel: AttentionKernel = SdpaKernel()
        self._head: tuple[Pack, float] | None = None
        self.model = titan_model(source)
        for layer in self.model.layers.values():
            layer.attention.inner_attention = _PackAttention()
        self.model.lm_head.forward = self._target_scores
        self._check(source)
        if device.type == "cuda":
            self._device, self._kernel = device, kernel_of(source, device)

    def scores(self, pack: Pack, temperature: float = 1.0) -> TokenScores:
        """Returns the scores of the pack's trained tokens."""
        self._head = (pack, temperature)
        logprobs, entropy = self.model(
            pack.input_ids.to(self._device)[None],
            positions=pack.positions.to(self._device)[None],
            attention_masks=self._kernel.plan(pack.segments, self._device),
        )
        return TokenScores(logprobs=logprobs, entropy=entropy)

    def train(self, mode: bool = True) -> "_TitanScorer":
        """Sets the mode of the model; returns the scorer."""
        self.model.train(mode)
        return self

    def eval(self) -> "_TitanScorer":
        """Sets the mode of the model to evaluation; returns the scorer."""
        return self.train(False)

    def set_requires_gradient_sync(self, is_synchronized: bool) -> None:
        """Sets whether the next backward pass sums gradients over the ranks."""
        self.model.set_requires_gradient_sync(is_synchronized)

    def set_is_last_backward(self, is_last: bool) -> None:
        """Sets whether the next backward pass is the last before an update."""
        self.model.set_is_last_backward(is_last)

    def reshard(self) -> None:
        """Frees gathered weights, also of the last block, which torchtitan keeps after a forward pass."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def _target_scores(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Computes the head, as its module's forward, where FSDP has gathered the weights."""
        assert self._head is not None  # noqa: S101 (the model is called by `scores` only)
        pack, temperature = self._head
        logprobs, entropy = target_scores(
            hidden[0].index_select(0, pack.predictors.to(self._device)),
            self.model.lm_head.weight,
            pack.targets.to(self._device),
            temperature=temperature,
        )
        return logprobs.clone(), entropy.clone()  # views would lose FSDP's hook at an operation in place

    @torch.no_grad()
    def _check(self, source: PreTrainedModel) -> None:
        """Checks that the model computes what transformers' computes. Raises: InvalidInput."""
        ids = torch.tensor(_CHECKED)
        expected = source(input_ids=ids[None], use_cache=False).logits[0, :-1].log_softmax(-1)
        expected = expected.gather(-1, ids[1:, None])[:, 0]
        gap = float((self.scores(pack_sequences([ids.numpy()], [1])).logprobs - expected).abs().max())
        if not gap <= _TOLERANCE:
            raise unsupported_by_titan(
                type(source).__name__, f"logprobs of torchtitan's model differ by {gap:.3g} nats"
            )


class _PackAttention(nn.Module):
    """Inner attention of a layer of torchtitan, by the plan of a pack."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, attention_masks: Any, scale: float | None, **_: Any
    ) -> Tensor:
        """`[1, width, heads, head size]`, of query and result."""
        size = query.shape[-1] ** -0.5 if scale is None else scale
        return packed_attention(attention_masks, query[0], key[0], value[0], scale=size)[None]


def _shard(model: Any, *, mesh: RankMesh, compute_dtype: torch.dtype, is_offloaded: bool, keeps_float32: bool) -> None:
    """Shards the weights over the ranks as torchtitan does. Collective."""
    if not keeps_float32:
        for parameter in model.parameters():
            parameter.data = parameter.data.to(compute_dtype)
    torchtitan().apply_fsdp_to_decoder(
        model,
        mesh.shards,
        param_dtype=compute_dtype,
        reduce_dtype=torch.float32,
        pp_enabled=False,
        cpu_offload=is_offloaded,
    )
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot scale while it reduces
