"""Training backend on torchtitan's models: ranks, checkpoints and publishing are those of `fsdp`."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import model_validator

from astraflow.models.titan import torchtitan
from astraflow.trainer.backends import backends
from astraflow.trainer.backends.fsdp import FsdpBackend
from astraflow.trainer.backends.rank_trainer import FsdpOptions

_UNSUPPORTED = ("sequence_ranks", "batching", "recompute", "compile_blocks", "float8", "lora")


class TitanOptions(FsdpOptions):
    """Options of `fsdp`, except those that torchtitan's model does not have."""

    @model_validator(mode="after")
    def _check_titan(self) -> Self:
        fields = TitanOptions.model_fields
        if unsupported := [name for name in _UNSUPPORTED if getattr(self, name) != fields[name].default]:
            raise ValueError(f"the backend titan does not have {', '.join(unsupported)}; remove it, or use fsdp")
        return self


@backends.register("titan", options=TitanOptions)
class TitanBackend(FsdpBackend):
    """Trains a model of torchtitan on several GPUs or hosts."""

    engine = "titan"

    def __init__(
        self, options: TitanOptions, model: Mapping[str, Any], algorithm: Mapping[str, Any], *, seed: int
    ) -> None:
        torchtitan()  # fails before ranks start where it is not installed
        super().__init__(options, model, algorithm, seed=seed)
