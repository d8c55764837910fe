"""JSON requests of the Tinker API, release 0.38 of the SDK. Fields that are not served are refused by their names."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, AliasChoices, Field, StringConstraints, model_validator

from astraflow.runtime.config.base import Config

Id = Annotated[str, StringConstraints(max_length=200)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$")]
"""Name of a checkpoint, which is also the name of its folder."""
Metadata = dict[Annotated[str, StringConstraints(max_length=200)], Any]
Lifetime = Annotated[int, Field(ge=3600, le=10 * 366 * 86_400)]
"""Seconds after which a checkpoint is deleted."""
Sequence = Annotated[int, Field(ge=0, lt=2**53)]


def _refuse(value: Any) -> Any:
    if value is not None and value is not False:
        raise ValueError("this server does not serve the field; leave it out")
    return value


NotServed = Annotated[Any, AfterValidator(_refuse)]
"""Field that the SDK sends as null or false unless a script sets it."""


class TinkerRequest(Config):
    """Request. type: its name in the SDK."""

    type: str = ""


class CreateSession(TinkerRequest):
    """Session of a client, which owns models and samplers."""

    tags: list[str] = Field(default_factory=list, max_length=100)
    user_metadata: Metadata | None = None
    sdk_version: str = ""
    project_id: str | None = None
    display_name: str | None = Field(default=None, max_length=500)


class SessionRequest(TinkerRequest):
    """Names a session."""

    session_id: Id


class ModelRequest(TinkerRequest):
    """Names a model. request_kind: its name in the store."""

    request_kind: ClassVar[str] = ""
    model_id: Id
    seq_id: Sequence | None = None


class LoraConfig(Config):
    """Adapters of a new model. `train_unembed` has no effect: the output head has no adapter here."""

    rank: int = Field(ge=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class OptimizerConfig(Config):
    """Optimizer of a new model."""

    type: Literal["adamw"] = "adamw"


class CreateModel(TinkerRequest):
    """New model with adapters on a base."""

    session_id: Id
    model_seq_id: Sequence
    base_model: str
    user_metadata: Metadata | None = None
    lora_config: LoraConfig
    optimizer_config: OptimizerConfig = OptimizerConfig()


class AdamParams(Config):
    """Rates of one optimizer step."""

    learning_rate: float = Field(default=1e-4, ge=0, le=1e3)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-12, gt=0)
    weight_decay: float = Field(default=0.0, ge=0, le=1e3)
    grad_clip_norm: float = Field(default=0.0)


class OptimStep(ModelRequest):
    """One step of AdamW."""

    request_kind: ClassVar = "optim_step"
    adam_params: AdamParams = Field(validation_alias=AliasChoices("adam_params", "optim_params"))


class SaveWeights(ModelRequest):
    """Checkpoint of weights and optimizer."""

    request_kind: ClassVar = "save_weights"
    path: Name
    ttl_seconds: Lifetime | None = None
    overwrite: bool = False
    user_metadata: Metadata | None = None


class SaveWeightsForSampler(ModelRequest):
    """Weights to sample from: by name, or for one sampling session."""

    request_kind: ClassVar = "save_weights_for_sampler"
    path: Name | None = None
    sampling_session_seq_id: Sequence | None = None
    kind: Literal["snapshot"] = "snapshot"
    ttl_seconds: Lifetime | None = None
    user_metadata: Metadata | None = None

    @model_validator(mode="after")
    def _has_one_name(self) -> Self:
        if (self.path is None) == (self.sampling_session_seq_id is None):
            raise ValueError("give either path or sampling_session_seq_id")
        return self


class LoadWeights(TinkerRequest):
    """Restores a checkpoint into a model, or into a new one of a session."""

    model_id: Id | None = None
    seq_id: Sequence | None = None
    session_id: Id | None = None
    model_seq_id: Sequence | None = None
    base_model: str | None = None
    user_metadata: Metadata | None = None
    path: str = Field(max_length=500)
    optimizer: bool
    optimizer_config: NotServed = None
    weights_access_token: NotServed = None

    @model_validator(mode="after")
    def _names_one_model(self) -> Self:
        is_existing = self.model_id is not None and self.seq_id is not None
        is_new = self.session_id is not None and self.model_seq_id is not None
        if is_existing == is_new:
            raise ValueError("give either model_id and seq_id, or session_id and model_seq_id")
        return self


class CreateSamplingSession(TinkerRequest):
    """Sampler of a base model or of saved weights."""

    session_id: Id
    sampling_session_seq_id: Sequence
    base_model: str | None = None
    model_path: str | None = Field(default=None, max_length=500)

    @model_validator(mode="after")
    def _names_weights(self) -> Self:
        if self.base_model is None and self.model_path is None:
            raise ValueError("give base_model or model_path")
        return self


class TextChunk(Config):
    """Tokens of a prompt."""

    tokens: list[Annotated[int, Field(ge=0, lt=2**31)]]
    type: Literal["encoded_text"] = "encoded_text"


class ModelInput(Config):
    """Prompt. Only text is served."""

    chunks: list[TextChunk]


class SamplingParams(Config):
    """Options of the drawing of tokens."""

    max_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = None
    stop: str | list[str] | list[int] | None = None
    temperature: float = Field(default=1.0, ge=0, le=100)
    top_k: int = Field(default=-1, ge=-1)
    top_p: float = Field(default=1.0, gt=0, le=1)


class Sample(TinkerRequest):
    """Continuations of a prompt."""

    sampling_session_id: Id
    seq_id: Sequence
    num_samples: int = Field(default=1, ge=1, le=1024)
    prompt: ModelInput
    sampling_params: SamplingParams
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = Field(default=0, ge=0, le=64)
    topk_sample_logprobs: int = Field(default=0, ge=0, le=64)
    base_model: NotServed = None
    model_path: NotServed = None
    target_prompt_logprobs: NotServed = None
    prompt_alt_tokens_k: Literal[0] = 0
    """Not served."""
    prompt_logprobs_last_n: NotServed = None
    record_stability_info: NotServed = None


class RetrieveFuture(TinkerRequest):
    """Names a request, to wait for its result or to end it."""

    request_id: Id
    allow_metadata_only: bool = False
    model_id: Id | None = None


class WeightsInfo(TinkerRequest):
    """Asks for the facts of a checkpoint."""

    tinker_path: str = Field(max_length=500)
