"""What one trainer is told: the policy, how its model is built and optimised, and how it behaves as a service."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.runtime.config import Config
from astraflow.runtime.overrides import SetBy
from astraflow.weights.publisher import PublishConfig


class TrainerConfig(Config):
    """One trainer: it trains one policy. Model, algorithm and backend are checked by the rooms that build them."""

    policy: Annotated[str, SetBy.RECIPE]
    """The policy whose batches it pulls."""
    model: Annotated[dict[str, Any], SetBy.RECIPE]
    """Model spec, as given to the nodes: `kind` and its options."""
    algorithm: Annotated[dict[str, Any], SetBy.RECIPE] = Field(default_factory=dict)
    """Advantage and loss; empty for the defaults."""
    backend: Annotated[dict[str, Any], SetBy.RECIPE] = Field(default_factory=lambda: {"kind": "single"})
    """What runs the optimizer step: `kind` and its options."""
    seed: int = Field(default=0, ge=0)
    """Of initial weights and everything random in the backend."""
    pull_wait_s: float = Field(default=10.0, gt=0)
    """How long dataflow may hold one request for a batch before it answers that there is none yet."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Newest checkpoints that stay on disk; with one, a damaged file ends the run."""
    publish: PublishConfig = PublishConfig()
    """How versions are handed over."""
    probe_every: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Every so many versions carries a probe, by which engines prove what they loaded. `auto`: as often as 0.3
    percent of the training's time pays for, which is every version where steps are long."""
    max_steps: int | None = Field(default=None, ge=0)
    """Stop by itself after that many steps since the run began; unlimited when absent."""
    drain_s: float = Field(default=1.5, ge=0)
    """On stopping, the step at hand gets this long to be finished, saved and acknowledged; then it is abandoned."""

    @field_validator("policy")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        try:
            return PolicyId(value)
        except InvalidInput as problem:
            raise ValueError(str(problem)) from None

    @property
    def backend_kind(self) -> str:
        """The backend's `kind`, or what stands there instead."""
        return str(self.backend.get("kind", ""))
