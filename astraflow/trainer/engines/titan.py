"""Training engine on torchtitan's dense Qwen3 and its FSDP, for one rank or several.

Source: https://github.com/pytorch/torchtitan, release 0.3.0. The model's attention is replaced by attention over packs,
and its head by one that computes trained tokens only, so packs, losses and gradients are those of the other engines.
Weights have the names of the Hugging Face model, by torchtitan's own adapter of names.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from astraflow.algorithms.tokens import TokenScores
from astraflow.contract.errors import InvalidInput
from astraflow.contract.weights import Dtype
from astraflow.models.causal import check_supported, embedding_names, named_weights
from astraflow.models.precision import torch_dtype_of
from astraflow.models.published import PublishedParts, matrix_shapes
from astraflow.trainer.engines.attention import packed_attention
from astraflow.trainer.engines.attention_kernels import AttentionKernel, SdpaKernel
from astraflow.trainer.engines.base import ModelRole, Pack, UpdateResult
from astraflow.trainer.engines.fsdp import FsdpEngine
from astraflow.trainer.engines.heads import target_scores
from astraflow.trainer.engines.mesh import RankMesh
from astraflow.trainer.engines.optimizers import MasterOptimizer, OptimizerOptions
from astraflow.trainer.engines.varlen_attention import VarlenKernel
from astraflow.trainer.packing import pack_sequences

INSTALL = "pip install 'astraflow[titan]' && pip install --no-deps torchtitan==0.3.0"

_PARTS = {
    "torchtitan.distributed.fsdp": ("apply_fsdp_to_decoder",),
    "torchtitan.models.common": ("CosSinRoPE", "Embedding", "Linear"),
    "torchtitan.models.common.attention": ("ScaledDotProductAttention",),
    "torchtitan.models.common.config_utils": ("make_ffn_config", "make_gqa_config"),
    "torchtitan.models.common.nn_modules": ("RMSNorm",),
    "torchtitan.models.qwen3.model": ("Qwen3Model", "Qwen3TransformerBlock"),
    "torchtitan.models.qwen3.state_dict_adapter": ("Qwen3StateDictAdapter",),
}
"""Names that the engine uses, by module."""

_UNSET = (None, False, "none")

_TOLERANCE = 1e-3
"""Nats between logprobs of torchtitan's model and of transformers', in float32."""
_CHECKED = [0, 1, 2, 3, 2, 1, 0, 3]


class TitanEngine(FsdpEngine):
    """One rank of a model of torchtitan, sharded over all ranks, with float32 masters as in `FsdpEngine`.

    From there it has only the properties of the rank: model, passes and optimizer are its own.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        optimizer: OptimizerOptions,
        *,
        mesh: RankMesh,
        device: torch.device,
        compute_dtype: torch.dtype,
        published_dtype: Dtype,
        parts: PublishedParts | None = None,
        needs_reference: bool = False,
        teacher: PreTrainedModel | None = None,
        is_offloaded: bool = False,
        syncs_each_pack: bool = False,
        **others: object,
    ) -> None:
        """Collective. model, teacher: of transformers, all weights in float32, equal on every rank, on the host.
        others: options of `FsdpEngine` that this engine does not have.

        Raises: InvalidInput when torchtitan is not installed, its model differs from transformers', or another option
        is set.
        """
        if unsupported := sorted(name for name, value in others.items() if value not in _UNSET):
            raise _refusal(type(model).__name__, f"it does not have {', '.join(unsupported)}")
        self._mesh = mesh
        self._device = device
        self._published_dtype = published_dtype
        self._syncs_each_pack = syncs_each_pack
        self._calls = 0
        self._shares_parameters = compute_dtype == torch_dtype_of(published_dtype)
        shard = {"mesh": mesh, "compute_dtype": compute_dtype, "is_offloaded": is_offloaded}
        self._policy = _TitanScorer(model, device)
        frozen = {ModelRole.REFERENCE: _TitanScorer(model, device)} if needs_reference else {}
        if teacher is not None:
            frozen[ModelRole.TEACHER] = _TitanScorer(teacher, device)
        for scorer in frozen.values():
            scorer.model.requires_grad_(False)
        self._scorers = {ModelRole.POLICY: self._policy, **frozen}
        names = hugging_face_names(self._policy.model)
        for scorer in self._scorers.values():
            _shard(scorer.model, **shard, keeps_float32=self._shares_parameters)
        weights = dict(self._policy.model.named_parameters())
        self._optimizer = MasterOptimizer(
            {names[name]: weights[name] for name in names},
            optimizer,
            rounded_to=torch_dtype_of(published_dtype),
            not_matrices=embedding_names(model),
            matrix_shapes=matrix_shapes(parts or {}),
            shares_parameters=self._shares_parameters,
        )

    @torch.no_grad()
    def score(self, pack: Pack, *, role: ModelRole = ModelRole.POLICY, temperature: float = 1.0) -> TokenScores:
        """Computes scores without gradient. Raises: InvalidInput for a role whose model the engine does not have."""
        self._calls += 1
        if role not in self._scorers:
            raise InvalidInput(
                f"cannot compute a pass of the {role.value}: the engine has no such model; give the algorithm a "
                f"{role.value}, or use an algorithm without it",
                code="trainer.no_such_role",
            )
        return self._scorers[role].scores(pack, temperature)

    def learn(
        self, pack: Pack, loss: Callable[[TokenScores], Tensor], *, temperature: float = 1.0, is_last: bool
    ) -> None:
        """Adds the pack's gradient; sums it over the ranks with the last pack's."""
        self._calls += 1
        is_synchronized = is_last or self._syncs_each_pack
        self._policy.model.set_requires_gradient_sync(is_synchronized)
        self._policy.model.set_is_last_backward(is_last)
        loss(self._policy.scores(pack, temperature)).backward()
        if is_synchronized:
            self._optimizer.accumulate()

    def update(self, *, is_loss_finite: bool) -> UpdateResult:
        """Runs one optimizer step."""
        self._calls += 1
        result = self._optimizer.update(is_loss_finite=is_loss_finite)
        self._reshard()
        return result

    def weights(self) -> Mapping[str, Tensor]:
        """Returns the master weights."""
        return self._optimizer.weights()

    def state_tensors(self) -> Mapping[str, Tensor]:
        """Returns master weights and moments."""
        return self._optimizer.state_tensors()

    def restored(self, *, updates: int) -> None:
        """Rounds the restored master weights into the model."""
        self._optimizer.restored(updates=updates)
        self._reshard()

    def _reshard(self) -> None:
        for module in self._policy.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


class _TitanScorer:
    """Scores of packs by torchtitan's model."""

    def __init__(self, source: PreTrainedModel, device: torch.device) -> None:
        """Builds the model with the weights of `source`. Raises: InvalidInput."""
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
            self._device, self._kernel = device, VarlenKernel()
            self.model.to(device)

    def scores(self, pack: Pack, temperature: float = 1.0) -> TokenScores:
        """Returns the scores of the pack's trained tokens."""
        self._head = (pack, temperature)
        logprobs, entropy = self.model(
            pack.input_ids.to(self._device)[None],
            positions=pack.positions.to(self._device)[None],
            attention_masks=(self._kernel, self._kernel.plan(pack.segments, self._device)),
        )
        return TokenScores(logprobs=logprobs, entropy=entropy)

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
            raise _refusal(type(source).__name__, f"logprobs of torchtitan's model differ by {gap:.3g} nats")


class _PackAttention(nn.Module):
    """Inner attention of a layer of torchtitan, by the plan of a pack."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, attention_masks: Any, scale: float | None, **_: Any
    ) -> Tensor:
        """`[1, width, heads, head size]`, of query and result."""
        kernel, plan = attention_masks
        size = query.shape[-1] ** -0.5 if scale is None else scale
        return packed_attention(kernel, plan, query[0], key[0], value[0], scale=size)[None]


def titan_model(source: PreTrainedModel) -> Any:
    """Returns torchtitan's model with the weights of a transformers model, in float32. Raises: InvalidInput."""
    if not isinstance(source, Qwen3ForCausalLM):
        raise _refusal(type(source).__name__, "it builds dense Qwen3 models only")
    if source.config.rope_parameters["rope_type"] != "default" or source.config.attention_bias:
        raise _refusal(type(source).__name__, "it has scaled positions or biases in its attention")
    titan = torchtitan()
    config = titan_config(source.config)
    model = titan.Qwen3Model(config)
    weights = {name: weight.detach().float() for name, weight in named_weights(source).items()}
    model.load_state_dict(titan.Qwen3StateDictAdapter(config, None).from_hf(weights))
    return model


def hugging_face_names(model: Any) -> dict[str, str]:
    """Returns the Hugging Face name of each parameter of torchtitan's model, tied ones once."""
    adapter = torchtitan().Qwen3StateDictAdapter(model.config, None)
    found = adapter.to_hf({name: name for name, _ in model.named_parameters()})
    return {name: hugging_face for hugging_face, name in found.items()}


def titan_config(config: Qwen3Config) -> Any:
    """Returns torchtitan's configuration of a dense Qwen3."""
    titan = torchtitan()
    init = {"weight": nn.init.zeros_}  # never used: the weights are loaded
    norm = {"eps": config.rms_norm_eps, "param_init": init}
    layer = titan.Qwen3TransformerBlock.Config(
        attention_norm=titan.RMSNorm.Config(normalized_shape=config.hidden_size, **norm),
        ffn_norm=titan.RMSNorm.Config(normalized_shape=config.hidden_size, **norm),
        attention=titan.make_gqa_config(
            dim=config.hidden_size,
            n_heads=config.num_attention_heads,
            n_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            wqkv_param_init=init,
            wo_param_init=init,
            inner_attention=titan.ScaledDotProductAttention.Config(),
            rope=titan.CosSinRoPE.Config(
                dim=config.head_dim,
                max_seq_len=config.max_position_embeddings,
                theta=config.rope_parameters["rope_theta"],
            ),
            qk_norm=titan.RMSNorm.Config(normalized_shape=config.head_dim, **norm),
        ),
        feed_forward=titan.make_ffn_config(
            dim=config.hidden_size, hidden_dim=config.intermediate_size, w1_param_init=init, w2w3_param_init=init
        ),
    )
    return titan.Qwen3Model.Config(
        vocab_size=config.vocab_size,
        dim=config.hidden_size,
        norm=titan.RMSNorm.Config(normalized_shape=config.hidden_size, **norm),
        enable_weight_tying=config.tie_word_embeddings,
        tok_embeddings=titan.Embedding.Config(
            num_embeddings=config.vocab_size, embedding_dim=config.hidden_size, param_init=init
        ),
        lm_head=titan.Linear.Config(in_features=config.hidden_size, out_features=config.vocab_size, param_init=init),
        layers=[layer] * config.num_hidden_layers,
    )


def torchtitan() -> SimpleNamespace:
    """Returns the parts of torchtitan that the engine uses, imported on first use. Raises: InvalidInput."""
    try:
        parts = {name: getattr(import_module(module), name) for module, names in _PARTS.items() for name in names}
    except ImportError as problem:
        raise InvalidInput(
            f"cannot use the trainer engine titan: {problem}; install torchtitan, on a machine with a GPU, with "
            f"`{INSTALL}`",
            code="trainer.titan_missing",
        ) from problem
    return SimpleNamespace(**parts)


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


def _refusal(kind: str, cause: str) -> InvalidInput:
    return InvalidInput(
        f"cannot train a {kind} with the trainer engine titan: {cause}; use a dense Qwen3, or the backend fsdp",
        code="trainer.titan_unsupported",
    )
