"""Adapters in checkpoints: what they are, and the base that they belong to, in `adapters.json` beside the tensors."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.weights import Dtype
from astraflow.trainer.backends.base import FrozenBase
from astraflow.trainer.backends.state.files import read_numbers
from astraflow.trainer.engines.adapters import Adapters
from astraflow.weights.publish.staging_buffers import StagedVersion

_FILE = "adapters.json"

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRecord:
    """Adapters of a checkpoint, which holds neither base nor other weights."""

    rank: int
    alpha: float
    target_modules: tuple[str, ...]
    """Names of the adapted layers within a block, sorted."""
    base_root: str
    """Root hash of the base as published, hexadecimal."""

    @property
    def scale(self) -> float:
        """Factor of the adapters' product."""
        return self.alpha / self.rank

    @classmethod
    def of(cls, adapters: Adapters) -> Self:
        """Returns the record of a model's adapters."""
        return cls(
            rank=adapters.options.rank,
            alpha=adapters.options.alpha,
            target_modules=adapters.targets,
            base_root=adapters.base_root.hex(),
        )

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Returns the record in a state's folder; None where whole models were trained. Raises: CorruptData."""
        path = folder / _FILE
        if not path.exists():
            return None
        numbers = read_numbers(path)
        try:
            if numbers["format"] != _FORMAT:
                raise ValueError(f"format is {numbers['format']!r}, this release reads {_FORMAT}")
            return cls(
                rank=int(numbers["rank"]),
                alpha=float(numbers["alpha"]),
                target_modules=tuple(map(str, numbers["target_modules"])),
                base_root=bytes.fromhex(numbers["base_root"]).hex(),
            )
        except (KeyError, TypeError, ValueError) as problem:
            raise CorruptData(
                f"cannot restore {str(path)!r}: {problem!r}; use another checkpoint", code="checkpoint.unreadable_state"
            ) from problem


def frozen_base(
    adapters: Adapters | None, dtype: Dtype, *, write: Callable[[StagedVersion], None]
) -> FrozenBase | None:
    """Returns the base below a model's adapters; None without adapters. dtype: published. write: copies the base."""
    if adapters is None:
        return None
    return FrozenBase(
        shapes={part.name: (part.dtype(dtype), part.shape) for parts in adapters.base_parts.values() for part in parts},
        root_hash=adapters.base_root,
        scale=adapters.options.scale,
        write=write,
    )


def adapter_files(adapters: Adapters | None) -> dict[str, Mapping[str, Any]]:
    """Returns the file of a state that describes its adapters, as JSON values; nothing for a whole model."""
    return {} if adapters is None else {_FILE: {"format": _FORMAT, **asdict(AdapterRecord.of(adapters))}}


def check_adapters(folder: Path, adapters: Adapters | None) -> None:
    """Checks that a state is of these adapters on this base, or of a whole model. Raises: InvalidInput; CorruptData."""
    saved = AdapterRecord.read(folder)
    own = None if adapters is None else AdapterRecord.of(adapters)
    if saved == own:
        return
    if saved is None or own is None:
        kinds = ("adapters", "a whole model") if own is None else ("a whole model", "adapters")
        raise InvalidInput(
            f"cannot resume from {str(folder)!r}: it holds {kinds[0]}, this trainer trains {kinds[1]}; set or remove "
            "the backend's option lora, or give the trainer another directory",
            code="checkpoint.other_adapters",
        )
    if saved.base_root != own.base_root:
        raise InvalidInput(
            f"cannot resume from {str(folder)!r}: its adapters were trained on other weights than this model's; use "
            "the model and weights_dtype that it was made with, or give the trainer another directory",
            code="checkpoint.other_base",
        )
    raise InvalidInput(
        f"cannot resume from {str(folder)!r}: its adapters have rank {saved.rank}, alpha {saved.alpha:g} and target "
        f"modules {', '.join(saved.target_modules)}, this trainer's have rank {own.rank}, alpha {own.alpha:g} and "
        f"{', '.join(own.target_modules)}; restore these options, or give the trainer another directory",
        code="checkpoint.other_adapters",
    )
