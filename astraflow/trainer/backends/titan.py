"""Training backend on torchtitan's models: ranks, checkpoints and publishing are those of `fsdp`."""

from typing import Any, Self

import torch
from pydantic import model_validator

from astraflow.trainer.backends import backends
from astraflow.trainer.backends.fsdp import FsdpBackend
from astraflow.trainer.backends.rank_trainer import FsdpOptions, RankTrainer
from astraflow.trainer.engines.titan import TitanEngine


class TitanOptions(FsdpOptions):
    """Options of `fsdp`, without those that torchtitan's model does not have."""

    @model_validator(mode="after")
    def _check_titan(self) -> Self:
        changed = {
            "sequence_ranks": self.sequence_ranks > 1,
            "recompute": self.recompute != "none",
            "compile_blocks": self.compile_blocks,
        }
        if unsupported := [name for name, is_set in changed.items() if is_set]:
            raise ValueError(f"the backend titan does not have {', '.join(unsupported)}; remove it, or use fsdp")
        return self
