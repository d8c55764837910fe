"""Configuration of a policy's learning algorithm: advantages, loss, and the sampling facts that both depend on."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from astraflow.contract.rollouts.recording import ColumnNeeds
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy


class CriticConfig(Config):
    """Critic of a policy: a model of its own that starts from the policy's initial weights and predicts returns.

    It needs as much memory as the policy. Its optimizer has the options of the backend, but for those here.
    """

    learning_rate: float = Field(default=5e-6, gt=0)
    """Higher than that of the policy, since the critic begins without knowledge of the rewards. (SkyRL)"""
    grad_clip: float = Field(default=1.0, gt=0)
    """Maximum norm of the critic's gradient; a larger gradient is scaled down to it."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps since the run began in which only the critic is trained and the policy stays as it is. (verl)"""
    loss: dict[str, Any] = Field(default_factory=lambda: {"kind": "critic"})
    """Loss spec: `kind` and its options."""


class TeacherEndpointConfig(Config):
    """Server of a teacher that is too large for the trainer's devices, such as SGLang or vLLM. It must have the
    policy's tokenizer, and score at temperature 1."""

    base_url: Annotated[str, SettableBy.RECIPE] = Field(pattern=r"^https?://[^\s?#]+$")
    """Address, such as `http://teacher.internal:8000`, with or without a final `/v1`."""
    model: Annotated[str, SettableBy.RECIPE] = Field(min_length=1)
    """Name of the model on the server."""
    key_variable: Annotated[str, SettableBy.RECIPE] = Field(default="", pattern=r"^(ASTRAFLOW_TEACHER_KEY[A-Z0-9_]*)?$")
    """Name of the environment variable of the trainer with the server's key, `ASTRAFLOW_TEACHER_KEY` or a name that
    begins so. Empty: no key."""
    concurrency: Annotated[int, SettableBy.AGENT] = Field(default=32, ge=1)
    """Trajectories that are scored at the same time."""
    request_timeout_s: Annotated[float, SettableBy.AGENT] = Field(default=120.0, gt=0)
    """Time limit of one trajectory. Seconds."""
    attempts: Annotated[int, SettableBy.AGENT] = Field(default=12, ge=1, le=100)
    """Attempts of a request that the server refused for its load or whose connection failed, with doubling pauses of
    at most 30 s. The trainer restarts and repeats the batch after the last one."""


class TeacherConfig(Config):
    """Teacher of a distillation. Set exactly one of its options."""

    model: dict[str, Any] | None = None
    """Model spec of a teacher that the trainer loads beside the policy."""
    endpoint: TeacherEndpointConfig | None = None
    """Server of the teacher."""
    policy: Annotated[Literal["current", "initial"] | None, SettableBy.AGENT] = None
    """The policy itself, which reads another prompt than the answer was written for: the option `teacher_question` of
    the workflow, such as the question with its solution. `current`: with the weights at the start of the batch.
    `initial`: with those at the start of the run, whose copy stays in memory. (SDFT, arXiv:2601.19897)"""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.model is not None) + (self.endpoint is not None) + (self.policy is not None) != 1:
            raise ValueError("a teacher has one of the options model, endpoint and policy; set exactly one")
        return self


class AlgorithmConfig(Config):
    """GRPO by default: group-relative advantages, clipped ratio against the recorded behaviour logprobs, token mean."""

    advantages: tuple[dict[str, Any], ...] = ({"kind": "group_relative"},)
    """Applied in order: the first to the rewards, each further one to the previous result. Empty: the rewards."""
    token_advantages: tuple[dict[str, Any], ...] = ()
    """Applied in order to the advantages of tokens, which at first have the advantage of their row."""
    loss: dict[str, Any] = Field(default_factory=lambda: {"kind": "ppo"})
    """Loss spec: `kind` and its options."""
    critic: CriticConfig | None = None
    """Required by the token advantage `gae`; None: no critic is trained."""
    teachers: dict[str, TeacherConfig] = Field(default_factory=dict)
    """By name. Required by the token advantage `distillation` and by losses with `teacher_coefficient`."""
    teacher_field: Annotated[str, SettableBy.RECIPE] = ""
    """Field of prompts with the name of the teacher that scores their answers; required with several teachers."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of rollouts. Recorded logprobs and the trainer's are of the tempered distribution."""
    mask_truncated: Annotated[bool, SettableBy.AGENT] = False
    """Exclude trajectories that were cut off at their length limit from loss and means. (DAPO, arXiv:2503.14476)"""
    balance_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the auxiliary loss that keeps the experts of a mixture evenly used, such as 0.001; it is computed over
    all tokens of a micro-batch, context included. 0: none. (Switch Transformers, arXiv:2101.03961)"""
    router_replay: Annotated[bool, SettableBy.AGENT] = False
    """Compute each token of a mixture with the experts that the engine chose when it sampled the next one, weighted by
    the trainer's own router. Other context is routed by the trainer. Needs engines that record them.
    (R3, arXiv:2510.11370)"""
    minibatches: int = Field(default=1, ge=1)
    """Optimizer steps per batch."""
    max_mismatch: float | None = Field(default=0.02, gt=0)
    """Bound of the divergence (mean k3) of engine and trainer for the same weights. Nats per token. Engines of the same
    precision stay below 0.002, so the default stops on errors only, such as a temperature of 0.8 instead of 1; None: no
    bound."""
    max_mismatch_steps: int = Field(default=3, ge=1)
    """Consecutive steps above `max_mismatch` after which the trainer stops. A restart resets the count."""

    @property
    def columns(self) -> ColumnNeeds:
        """Columns that engines record of each token."""
        return ColumnNeeds(top_tokens=int(self.loss.get("centering") or 0), experts=self.router_replay)

    @property
    def corrects_samples(self) -> bool:
        """True if the loss corrects samples of an engine that computes otherwise: by centering or by corrections."""
        return bool(self.columns.top_tokens or self.loss.get("corrections"))

    @property
    def teacher_models(self) -> dict[str, dict[str, Any]]:
        """Specs of the teachers that the trainer loads, by name."""
        return {name: teacher.model for name, teacher in self.teachers.items() if teacher.model is not None}
