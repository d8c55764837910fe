"""Configuration of a trainer: policy, model, optimization and service behavior."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.trainer.retention import KeepBest, Retention
from astraflow.weights.publish.publisher import PublishConfig


class TrainerConfig(Config):
    """One trainer, which trains one policy. The packages that build model, algorithm and backend validate them."""

    policy: Annotated[str, SettableBy.RECIPE]
    """Policy whose batches the trainer pulls."""
    model: Annotated[dict[str, Any], SettableBy.RECIPE]
    """Model spec, the same as on the nodes: `kind` and its options."""
    algorithm: Annotated[dict[str, Any], SettableBy.RECIPE] = Field(default_factory=dict)
    """Advantage and loss; empty for the defaults."""
    backend: Annotated[dict[str, Any], SettableBy.RECIPE] = Field(default_factory=lambda: {"kind": "local"})
    """Backend of the optimizer step: `kind` and its options."""
    seed: int = Field(default=0, ge=0)
    """Random seed of initial weights and of the backend."""
    pull_wait_s: float = Field(default=10.0, gt=0)
    """Longest wait for a batch within one request to dataflow."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Number of newest checkpoints that stay on disk; with 1, a damaged file ends the run."""
    keep_every: int | None = Field(default=None, ge=1)
    """The checkpoints at multiples of this number of steps stay as well; none when absent."""
    keep_best: KeepBest | None = None
    """The best checkpoints by an evaluation stay as well; none when absent. With many evaluations that wait for each
    other, some versions are scored after their checkpoint is gone."""
    keep_bytes: int | None = Field(default=None, ge=1)
    """Limit of the size of all checkpoints on disk. To stay below it, those of `keep_every` are removed first, then the
    older ones of `keep_checkpoints`, then the best; the newest never. While a checkpoint is written, it needs room
    besides them. Unlimited when absent."""
    publish: PublishConfig = PublishConfig()
    """Transfer of versions to the weight store."""
    probe_every: Annotated[Annotated[int, Field(ge=1)] | Literal["auto"], SettableBy.AGENT] = "auto"
    """Versions between two probes, with which engines verify their loaded weights. `auto`: as often as 0.3 percent of
    the training time allows, which is every version where steps are long. With the engine `openai_tokens` in the recipe
    the default is 1, because such nodes refuse a version without a probe."""
    max_steps: int | None = Field(default=None, ge=0)
    """Steps since the run began after which the trainer stops; unlimited when absent."""
    drain_s: float = Field(default=1.5, ge=0)
    """On stopping, time to finish, checkpoint and acknowledge the current step; then it is abandoned."""

    @field_validator("policy")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        try:
            return PolicyId(value)
        except InvalidInput as problem:
            raise ValueError(str(problem)) from None

    @property
    def retention(self) -> Retention:
        """Rule of the checkpoints that stay."""
        return Retention(
            newest=self.keep_checkpoints, every=self.keep_every, best=self.keep_best, max_bytes=self.keep_bytes
        )

    @property
    def backend_kind(self) -> str:
        """Kind of the backend; empty when the spec has none."""
        return str(self.backend.get("kind", ""))

    @property
    def state_kind(self) -> str:
        """Backend kind in the identity of checkpoints: backends that can restore each other's checkpoints have the
        same kind."""
        return "local" if self.backend_kind == "fsdp" else self.backend_kind
