"""Base models that tenants share, and adapters of tenants, which are switched between forward passes.

A base has one copy of its weights, frozen. A hook of each linear layer in its blocks adds the product of whichever
adapters are active, so that adapters of any rank train and sample on it in turn.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn

from astraflow.contract.errors import InvalidInput
from astraflow.contract.weights import Dtype
from astraflow.models import models
from astraflow.models.causal import cast, kept_buffers, named_weights
from astraflow.models.precision import compute_dtype_of, device_of, use_fast_float32_products
from astraflow.models.published import published_parts
from astraflow.raas.engines.local.batcher import Batcher, BatchLimits
from astraflow.raas.engines.local.choice import exact_batcher
from astraflow.raas.engines.local.parameters import LayerAdapter
from astraflow.tinker.config import BaseModelOptions
from astraflow.tinker.training_data import DataLimits
from astraflow.trainer.engines.adapters import Adapters, LoraOptions, base_root, target_layers
from astraflow.trainer.engines.base import Batching
from astraflow.trainer.engines.scoring.choice import choose_demanded
from astraflow.trainer.engines.scoring.scorer import Scorer
from astraflow.trainer.model_preparation import prepare_model
from astraflow.weights.adapters import DOWN_SUFFIX, UP_SUFFIX

ALPHA = 32.0
"""Adapters are scaled by `ALPHA / rank`."""
BATCHING = Batching.ROWS
"""Computes with the model's own attention, as sampling does, so that nothing is switched between the two."""
_LIMITS = BatchLimits(sequences=64, cache_tokens=65_536, prefill_tokens=4096, prefix_bytes=0)


class SharedBase:
    """Base model on a device. For one thread."""

    def __init__(self, name: str, options: BaseModelOptions) -> None:
        """Raises: InvalidInput."""
        self.name = name
        self.spec = options.model
        self.device = device_of(options.device)
        use_fast_float32_products(self.device)
        source = models.build(options.model)
        folder = prepare_model(options.model)
        dtype = compute_dtype_of(options.compute_dtype, self.device)
        self.model = cast(source.load(folder), device=self.device, dtype=dtype).eval().requires_grad_(False)
        self.tokenizer = source.tokenizer()
        self.tokenizer_id = options.tokenizer or str(folder)
        self.parts = published_parts(self.model)
        weights: Mapping[str, Tensor] = {**named_weights(self.model), **kept_buffers(self.model)}
        self.root = base_root(self.parts, Dtype.FLOAT32, lambda name: weights[name].detach())
        config = self.model.config.get_text_config()
        context = min(getattr(config, "max_position_embeddings", _LIMITS.cache_tokens), _LIMITS.cache_tokens)
        self.limits = DataLimits(vocabulary=int(config.vocab_size), context=context)
        self._active: Mapping[str, LayerAdapter] = {}
        self.layers: dict[str, nn.Linear] = self._hooked_layers()
        """Layers that adapters may change, by name."""
        self.scorer = Scorer(self.model, self.device)
        choose_demanded(self.scorer, BATCHING)
        with torch.no_grad():
            self._batcher = type(exact_batcher(self.model, _LIMITS))

    @property
    def target_modules(self) -> Mapping[str, bool]:
        """Names of layers within a block -> whether they are part of attention."""
        return {name.rpartition(".")[2]: "attn" in name.rpartition(".")[0].rpartition(".")[2] for name in self.layers}

    def batcher(self) -> Batcher:
        """Returns an empty batch of sequences that are sampled with the same adapters."""
        return self._batcher(self.model, _LIMITS)

    @contextmanager
    def computing_with(self, adapters: Mapping[str, LayerAdapter]) -> Iterator[None]:
        """Makes the model compute with adapters, by layer, within the block."""
        self._active = adapters
        try:
            yield
        finally:
            self._active = {}

    def _hooked_layers(self) -> dict[str, nn.Linear]:
        layers: dict[str, nn.Linear] = {}
        for name in target_layers(self.model, None):
            layer = self.model.get_submodule(name)
            assert isinstance(layer, nn.Linear)  # noqa: S101 (what target_layers returns)

            def add(layer: nn.Module, inputs: tuple[Tensor], output: Tensor, name: str = name) -> Tensor | None:
                adapter = self._active.get(name)
                return None if adapter is None else adapter.added(layer, inputs, output)

            layer.register_forward_hook(add)
            layers[name] = layer
        return layers


class TenantAdapters(Adapters):
    """Adapters of one model of a tenant, which are active only while the base computes with them."""

    def __init__(self, base: SharedBase, options: LoraOptions, *, targets: Sequence[str]) -> None:
        super().__init__(base.model, options, targets=tuple(sorted(targets)), parts=base.parts, root=base.root)
        dtype = base.model.dtype
        self.layers: dict[str, LayerAdapter] = {}
        """Trained adapters by layer."""
        for name, layer in base.layers.items():
            if name.rpartition(".")[2] in targets:
                down = nn.Parameter(torch.zeros(options.rank, layer.in_features, dtype=dtype, device=base.device))
                up = nn.Parameter(torch.zeros(layer.out_features, options.rank, dtype=dtype, device=base.device))
                self.layers[name] = LayerAdapter(down=down, up=up, scale=options.scale)

    @classmethod
    def begin(cls, base: SharedBase, *, rank: int, targets: Sequence[str], seed: int) -> Self:
        """Returns new adapters, which depend on the seed only."""
        adapters = cls(base, LoraOptions(rank=rank, alpha=ALPHA), targets=targets)
        adapters._initialize(seed)
        return adapters

    def weights(self) -> dict[str, nn.Parameter]:
        """Returns the adapters by published name."""
        weights: dict[str, Any] = {}
        for name, adapter in self.layers.items():
            weights |= {f"{name}{DOWN_SUFFIX}": adapter.down, f"{name}{UP_SUFFIX}": adapter.up}
        return weights


def chosen_targets(base: SharedBase, *, attention: bool, mlp: bool) -> tuple[str, ...]:
    """Returns the names of the layers to adapt. Raises: InvalidInput when there is none."""
    targets = tuple(
        sorted(n for n, is_attention in base.target_modules.items() if (attention if is_attention else mlp))
    )
    if not targets:
        raise InvalidInput(
            "cannot create a model: train_attn and train_mlp select no layer, and this server adapts no output head; "
            "set one of them",
            code="tinker.no_targets",
        )
    return targets


def find_base(bases: Mapping[str, SharedBase], name: str) -> SharedBase:
    """Returns a base by its name. Raises: InvalidInput."""
    if name not in bases:
        raise InvalidInput(
            f"cannot use base_model {name[:200]!r}: this server has {', '.join(map(repr, bases))}; take one of them",
            code="tinker.unknown_base_model",
        )
    return bases[name]
