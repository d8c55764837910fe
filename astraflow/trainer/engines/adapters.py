"""Low-rank adapters (LoRA) in a model, by peft: linear layers of the blocks compute `W x + alpha / rank · B (A x)`.

The base `W` is frozen: it is rounded to the published type once and has neither masters nor moments nor gradients.
Adapters are ordinary parameters of the engine. They begin at `B = 0`, so the first version equals its base.
Source: Hu et al., "LoRA", arXiv:2106.09685.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Self

import torch
from blake3 import blake3
from pydantic import Field
from torch import Tensor, nn
from transformers import PreTrainedModel

from astraflow.contract.errors import InvalidInput
from astraflow.contract.weights import Dtype
from astraflow.models.causal import blocks_of, kept_buffers, named_weights
from astraflow.models.precision import bits_of, torch_dtype_of
from astraflow.models.published import PublishedParts, published_parts
from astraflow.models.stored import set_values
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.imports import needs_extra
from astraflow.trainer.engines.base import Model, ModelRole
from astraflow.weights.tensors import lay_out, root_hash

if TYPE_CHECKING:
    from peft.tuners.lora import LoraLayer

_NAME = "default"
"""Name of the adapters within peft, which is part of its parameters' names."""


class LoraOptions(Config):
    """Low-rank adapters."""

    rank: int = Field(default=16, ge=1)
    """Rows of A and columns of B. Engine servers load adapters up to rank 64."""
    alpha: float = Field(default=32.0, gt=0)
    """The adapters' product is multiplied by `alpha / rank`."""
    target_modules: Annotated[tuple[str, ...] | None, SettableBy.AGENT] = Field(default=None, min_length=1)
    """Names of the adapted linear layers within each block, such as `q_proj`; None for all of them."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the adapters' inputs that a training pass drops. Above 0, trained logprobs differ from sampled ones."""

    @property
    def scale(self) -> float:
        """Factor of the adapters' product."""
        return self.alpha / self.rank


class Adapters:
    """Adapters of a model: their parameters, those of their base, and the base's identity.

    Parameters are looked up at each call, because sharding replaces them.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        options: LoraOptions,
        *,
        targets: tuple[str, ...],
        parts: PublishedParts,
        root: bytes,
    ) -> None:
        self._model = model
        self.options = options
        self.targets = targets
        """Names of the adapted layers within a block, sorted."""
        self.base_parts = parts
        """How the base is published, by the names of `base_weights`."""
        self.base_root = root
        """Root hash of the base as published."""

    @classmethod
    def add(
        cls,
        model: PreTrainedModel,
        options: LoraOptions,
        *,
        published_dtype: Dtype,
        seed: int,
        read: Callable[[str], Tensor] | None = None,
    ) -> Self:
        """Rounds the weights of a model to the published type, freezes them, and adds adapters in place.

        The initial adapters depend on the seed only, not on the device or on torch's random state.
        read: returns a weight by name, for a model on the meta device, whose weights are to be rounded when they are
        read. Raises: InvalidInput for unknown target modules, or without peft.
        """
        layers = target_layers(model, options.target_modules)
        parts = published_parts(model)
        for weight in named_weights(model).values():
            weight.data = weight.data.to(torch_dtype_of(published_dtype)).to(weight.dtype)
        root = base_root(parts, published_dtype, read or _reader(model))
        _inject(model, options, layers)
        targets = tuple(sorted({name.rpartition(".")[2] for name in layers}))
        adapters = cls(model, options, targets=targets, parts=parts, root=root)
        adapters._initialize(seed)
        return adapters

    def weights(self) -> dict[str, nn.Parameter]:
        """Returns the adapters by published name, in the model's own order."""
        return {
            name.replace(f".{_NAME}.", "."): weight
            for name, weight in named_weights(self._model).items()
            if weight.requires_grad
        }

    def base_weights(self) -> dict[str, Tensor]:
        """Returns the frozen weights and kept buffers by the names that they have in the model without adapters."""
        frozen: dict[str, Tensor] = {
            base_name(name): weight for name, weight in named_weights(self._model).items() if not weight.requires_grad
        }
        return frozen | kept_buffers(self._model)

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Makes the model compute exactly as its base, without adapters, within the block."""
        for layer in self._layers():
            layer.set_scale(_NAME, 0.0)
        try:
            yield
        finally:
            for layer in self._layers():
                layer.set_scale(_NAME, 1.0)

    def _layers(self) -> Iterator["LoraLayer"]:
        from peft.tuners.lora import LoraLayer

        return (module for module in self._model.modules() if isinstance(module, LoraLayer))

    @torch.no_grad()
    def _initialize(self, seed: int) -> None:
        """Draws A as `nn.Linear` draws its weights, in float32 on the host, and sets B to 0."""
        draws = torch.Generator().manual_seed(seed)
        for name, weight in self.weights().items():
            values = torch.zeros(weight.shape)
            if ".lora_A." in name:
                nn.init.kaiming_uniform_(values, a=math.sqrt(5), generator=draws)
            if weight.is_meta:
                set_values(weight, values)
            else:
                weight.copy_(values)


def base_name(name: str) -> str:
    """Returns the name that a weight of a model with adapters has without them."""
    return name.replace(".base_layer.", ".")


def trained_weights(model: PreTrainedModel, adapters: Adapters | None) -> dict[str, nn.Parameter]:
    """Returns the parameters that are trained and published, by published name."""
    return named_weights(model) if adapters is None else adapters.weights()


def constant_weights(model: PreTrainedModel, adapters: Adapters | None) -> dict[str, Tensor]:
    """Returns the frozen weights and kept buffers that are published beside trained weights; adapters have them in
    their base."""
    if adapters is not None:
        return {}
    frozen = {name: weight for name, weight in named_weights(model).items() if not weight.requires_grad}
    return {**frozen, **kept_buffers(model)}


def computing_as(role: Model, adapters: Adapters | None) -> AbstractContextManager[None]:
    """Returns a context in which a model with adapters computes as `role`: the reference is its base."""
    return nullcontext() if adapters is None or role is not ModelRole.REFERENCE else adapters.disabled()


def base_root(parts: PublishedParts, dtype: Dtype, read: Callable[[str], Tensor]) -> bytes:
    """Returns the root hash of the version that whole weights make when they are published in `dtype`.

    parts: how each weight is published. read: returns a weight or kept buffer by its name in `parts`.
    """
    hashes: dict[str, bytes] = {}
    for name, published in parts.items():
        values = read(name)
        for part in published:
            bits = bits_of(part.of(values), part.dtype(dtype))
            hashes[part.name] = blake3(bits.view("u1").data).digest()
    specs = lay_out({part.name: (part.dtype(dtype), part.shape) for published in parts.values() for part in published})
    return root_hash(tuple(replace(spec, hash=hashes[spec.name]) for spec in specs))


def _reader(model: PreTrainedModel) -> Callable[[str], Tensor]:
    weights: dict[str, Tensor] = {**named_weights(model), **kept_buffers(model)}
    return lambda name: weights[name].detach()


def target_layers(model: PreTrainedModel, wanted: Iterable[str] | None) -> list[str]:
    """Returns the names of the linear layers in the model's blocks that get adapters. Raises: InvalidInput."""
    blocks = {id(module) for module in blocks_of(model).modules()}
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and id(module) in blocks]
    layer_names = {name.rpartition(".")[2] for name in linear}
    unknown = sorted(set(wanted or ()) - layer_names)
    if unknown or not layer_names:
        raise InvalidInput(
            f"cannot add adapters to {', '.join(map(repr, unknown)) or 'any layer'}: the blocks of a "
            f"{type(model).__name__} have the linear layers {', '.join(sorted(layer_names)) or '(none)'}; choose "
            "target_modules among them, or train the whole model",
            code="trainer.unknown_adapter_targets",
        )
    chosen = layer_names if wanted is None else set(wanted)
    return [name for name in linear if name.rpartition(".")[2] in chosen]


def _inject(model: PreTrainedModel, options: LoraOptions, layers: list[str]) -> None:
    """Wraps the layers in layers of peft; only their parameters require a gradient.

    peft is given the blocks alone: of a whole model with experts it takes targets as those of an older layout, and
    adapts the experts instead of shared layers of that name.
    """
    dtype = next(model.parameters()).dtype
    peft: Any = _peft()
    blocks = blocks_of(model)
    prefix = next(name for name, module in model.named_modules() if module is blocks)
    config = peft.LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,
        lora_dropout=options.dropout,
        target_modules=[name.removeprefix(f"{prefix}.") for name in layers],
        bias="none",
    )
    model.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):  # peft draws initial adapters on the host
        peft.inject_adapter_in_model(config, blocks, adapter_name=_NAME)
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)  # peft keeps adapters in float32 beside rounded weights


def _peft() -> Any:
    with needs_extra("train", to="train adapters"):
        import peft
    return peft
