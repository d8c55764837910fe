"""Training engine on torchtitan's dense Qwen3 and its FSDP, for one rank or several.

Source: https://github.com/pytorch/torchtitan, release 0.3.0. The model's attention is replaced by attention over packs,
and its head by one that computes trained tokens only, so packs, losses and gradients are those of the other engines.
Weights have the names of the Hugging Face model, by torchtitan's own adapter of names.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from astraflow.algorithms.tokens import TokenScores
from astraflow.models.causal import check_supported, named_weights
from astraflow.models.stored import StoredModel
from astraflow.models.titan import hugging_face_names, titan_model, torchtitan, unsupported_by_titan
from astraflow.trainer.engines.attention.attention import kernel_of, packed_attention
from astraflow.trainer.engines.attention.kernels import AttentionKernel, SdpaKernel
from astraflow.trainer.engines.base import Batching, Model, ModelRole, Pack
from astraflow.trainer.engines.fsdp import FsdpEngine, Sharding, sum_gradients
from astraflow.trainer.engines.heads import target_scores, temperature_of, token_scores, top_scores, with_candidates
from astraflow.trainer.engines.scoring.choice import BatchingChoice
from astraflow.trainer.engines.spec import EngineSpec
from astraflow.trainer.step.packing import pack_sequences

_UNSUPPORTED = {
    "adapters": None,
    "balances_experts": False,
    "batching": None,
    "compile_blocks": False,
    "critic": None,
    "float8": False,
    "recompute": "none",
    "replays_experts": False,
}
"""Fields of `EngineSpec` that this engine does not have, with the values that do not use them."""

_TOLERANCE = 1e-3
"""Nats between logprobs of torchtitan's model and of transformers', in float32."""
_TOP_FIELDS = ("logprobs", "entropy", "top_logprobs", "top_tokens")
_CHECKED = [0, 1, 2, 3, 2, 1, 0, 3]


class TitanEngine(FsdpEngine):
    """One rank of a model of torchtitan, sharded over all ranks, with float32 masters as in `FsdpEngine`.

    Passes and updates are those of that engine; the models and their division over the ranks are torchtitan's.
    """

    reads_blocks = False

    def __init__(
        self,
        stored: StoredModel,
        spec: EngineSpec,
        sharding: Sharding,
        *,
        teachers: Mapping[str, StoredModel] | None = None,
    ) -> None:
        """Collective. stored, teachers: of transformers, all weights in float32, equal on every rank, on the host.

        Raises: InvalidInput when torchtitan is not installed, its model differs from transformers', or an option is set
        that this engine does not have.
        """
        if unsupported := [name for name, unset in _UNSUPPORTED.items() if getattr(spec, name) != unset]:
            raise unsupported_by_titan(type(stored.model).__name__, f"it does not have {', '.join(unsupported)}")
        super().__init__(stored, spec, sharding, teachers=teachers)

    def _scorer(self, stored: StoredModel) -> Any:
        return scoring_model(stored.model, self._spec.device)

    def _sharded(self, scorer: Any, read: Callable[[str], Tensor] | None, role: Model) -> Any:
        sharding = self._sharding
        for parameter in scorer.parameters():
            if not (self._trains_float32(role) and parameter.requires_grad):
                parameter.data = parameter.data.to(sharding.compute_dtype)
        torchtitan().apply_fsdp_to_decoder(
            scorer,
            sharding.mesh.shards,
            param_dtype=sharding.compute_dtype,
            reduce_dtype=torch.float32,
            pp_enabled=False,
            cpu_offload=sharding.is_offloaded,
        )
        sum_gradients(scorer)
        return scorer

    def _chosen(self, root: Any, scorer: Any, demanded: Batching | None) -> BatchingChoice:
        """Returns the only batching; the model was checked when it was built."""
        return BatchingChoice(batching=Batching.PACKED, largest_difference=scorer.largest_difference)

    def _trained_weights(self, model: PreTrainedModel) -> Mapping[str, nn.Parameter]:
        own = self._trained[ModelRole.POLICY]
        weights, names = dict(own.named_parameters()), hugging_face_names(own)
        return {name: weights[names[name]] for name in named_weights(model)}  # in the order of the other engines


def scoring_model(source: PreTrainedModel, device: torch.device) -> Any:
    """Returns torchtitan's model with the weights of `source`, on the host: sharding moves it, a block at a time. Its
    method `scores` computes scores on `device`. Raises: InvalidInput."""
    check_supported(source)
    model = titan_model(source)
    scorer = _Scorer(model)
    model.scores, model.lm_head.forward = scorer.scores, scorer.target_scores
    for layer in model.layers.values():
        layer.attention.inner_attention = _PackAttention()
    model.largest_difference = scorer.difference(source)
    if device.type == "cuda":
        scorer.device, scorer.kernel = device, kernel_of(source, device)
    return model


class _Scorer:
    """Scores of packs by torchtitan's model, on the CPU unless changed."""

    def __init__(self, model: Any) -> None:
        self.device = torch.device("cpu")
        self.kernel: AttentionKernel = SdpaKernel()
        self._model = model
        self._head: tuple[Pack, float] | None = None

    def scores(self, pack: Pack, temperature: float = 1.0) -> TokenScores:
        """Returns the scores of the pack's trained tokens."""
        self._head = (pack, temperature)
        results = self._model(
            pack.input_ids.to(self.device)[None],
            positions=pack.positions.to(self.device)[None],
            attention_masks=self.kernel.plan(pack.segments, self.device),
        )
        return TokenScores(**dict(zip(_TOP_FIELDS, results, strict=True))) if pack.top else token_scores(*results)

    def target_scores(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """Computes the head, as its module's forward, where FSDP has gathered the weights."""
        assert self._head is not None  # noqa: S101 (the model is called by `scores` only)
        pack, temperature = self._head
        states, weight = hidden[0].index_select(0, pack.predictors.to(self.device)), self._model.lm_head.weight
        if pack.top:
            tempered = temperature_of(pack.temperatures, temperature, self.device)
            top = top_scores(states, weight, pack.targets.to(self.device), pack.top, temperature=tempered)
            return tuple(getattr(top, name) for name in _TOP_FIELDS)
        logprobs, entropy = target_scores(
            states,
            weight,
            with_candidates(pack.targets, pack.candidates).to(self.device),
            support=None if pack.support is None else pack.support.to(self.device),
            temperature=temperature_of(pack.temperatures, temperature, self.device),
        )
        return logprobs.clone(), entropy.clone()  # views would lose FSDP's hook at an operation in place

    @torch.no_grad()
    def difference(self, source: PreTrainedModel) -> float:
        """Returns how much logprobs differ from those of transformers' model, in nats. Raises: InvalidInput when they
        are not equal."""
        ids = torch.tensor(_CHECKED)
        expected = source(input_ids=ids[None], use_cache=False).logits[0, :-1].log_softmax(-1)
        expected = expected.gather(-1, ids[1:, None])[:, 0]
        gap = float((self.scores(pack_sequences([ids.numpy()], [1])).logprobs - expected).abs().max())
        if not gap <= _TOLERANCE:
            raise unsupported_by_titan(
                type(source).__name__, f"logprobs of torchtitan's model differ by {gap:.3g} nats"
            )
        return gap


class _PackAttention(nn.Module):
    """Inner attention of a layer of torchtitan, by the plan of a pack."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, attention_masks: Any, scale: float | None, **_: Any
    ) -> Tensor:
        """`[1, width, heads, head size]`, of query and result."""
        size = query.shape[-1] ** -0.5 if scale is None else scale
        return packed_attention(attention_masks, query[0], key[0], value[0], scale=size)[None]
