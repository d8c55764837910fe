"""Options that all engine servers share."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.generation import Sampling
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy

_NO_INT4 = (
    "no server rounds exact weights to 4-bit integers at a load; use fp8 with the engine vllm, or local_torch, which "
    "shows how an algorithm bears int4"
)


class ServerOptions(Config):
    """Servers of one policy on a node: their number, placement, limits and supervision."""

    environment: Annotated[str, SettableBy.RECIPE] = ""
    """Name of the installed environment (`astraflow engines list`); empty: the first one with this engine."""
    servers: int = Field(default=1, ge=1, le=64)
    """Servers that share the requests (data parallel). Each has a copy of the weights."""
    devices: Annotated[tuple[str, ...], SettableBy.RECIPE] = ()
    """Devices of each server as `CUDA_VISIBLE_DEVICES`, such as `["0,1", "2,3"]`; empty: servers take
    `tensor_parallel * pipeline_parallel` devices each, in order. Ignored on a CPU."""
    tensor_parallel: int = Field(default=1, ge=1)
    """Devices over which each layer is split."""
    pipeline_parallel: int = Field(default=1, ge=1)
    """Devices over which the layers are distributed."""
    expert_parallel: Annotated[bool, SettableBy.AGENT] = False
    """Distributes whole experts over the devices instead of splitting each."""
    dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], SettableBy.AGENT] = "auto"
    """Type of the served weights; `auto`: float32 on a CPU (bfloat16 with rounded weights), the type of the model on a
    GPU."""
    weights: Annotated[Literal["exact", "fp8", "int4"], SettableBy.AGENT] = "exact"
    """Weights of linear layers as they are published, or rounded by the server at each load, after the node has
    verified them: to FP8 with a scale for each output, and activations with one for each token (`fp8`, vLLM only). Set
    `centering` or a correction in the loss with it. The server cannot patch rounded weights, so every version is a
    reload."""
    context_tokens: int = Field(default=0, ge=0)
    """Maximum tokens of prompt and answer; 0: the maximum of the model."""
    max_running: int = Field(default=0, ge=0)
    """Maximum requests that a server generates for at once; 0: 64 on a CPU, the server's choice on a GPU."""
    cache_gib: float = Field(default=0.0, ge=0)
    """Size of the key-value cache of a server on a CPU, in GiB; 0: 1 GiB. A GPU uses `memory_share`."""
    memory_share: float = Field(default=0.85, gt=0, lt=1)
    """Share of a GPU's memory for weights and key-value cache."""
    threads: int = Field(default=1, ge=1)
    """OpenMP threads of a server on a CPU. All processes on the machine must share the cores: one thread each."""
    patch: Annotated[Literal["auto", "off"], SettableBy.AGENT] = "auto"
    """`auto`: writes changed elements into the served weights where engine and model support it, otherwise reloads all
    weights. `off`: always reloads."""
    patch_check_every: int = Field(default=50, ge=1)
    """Compares checksums of the patched weights with a reload once in this many versions, and after an alarm of the
    probe."""
    lora: Annotated[bool, SettableBy.AGENT] = False
    """Serves low-rank adapters without merging them: the base stays loaded, a version is megabytes, and requests in
    flight are sent again with their tokens. Without this option, a recipe sets true for a policy that trains adapters
    of a rank up to 64. False, and where a server does not start with adapters: the node adds them to the base weights,
    which every model and quantisation supports, and which loses most of young adapters in 16 bits."""
    return_routes: Annotated[bool, SettableBy.AGENT] = False
    """Lets requests ask for the experts of each token, in a mixture of experts. Without this option, a recipe sets true
    for a policy whose algorithm replays them (`router_replay`)."""
    deterministic: Annotated[bool, SettableBy.AGENT] = False
    """Uses batch-invariant kernels where the engine has them; slower."""
    speculation: Annotated[Literal["off", "ngram", "draft_model"], SettableBy.AGENT] = "off"
    """Drafts that the server verifies by rejection sampling: `ngram` from the texts of requests, `draft_model` (vLLM
    only) from a smaller model. The server drafts all the time, whether it pays or not."""
    draft_tokens: int = Field(default=4, ge=1, le=16)
    """Maximum tokens drafted for a request in one step."""
    draft_model: Annotated[str, SettableBy.RECIPE] = ""
    """Folder of the draft model, of the same vocabulary. It is not trained, so its drafts get worse as the policy
    learns; watch `tokens_drafted_accepted`."""
    arguments: Annotated[tuple[str, ...], SettableBy.RECIPE] = ()
    """Further command line arguments of the server."""
    start_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds for a server to start."""
    stall_s: float = Field(default=60.0, gt=0)
    """Seconds with requests in flight and no new token after which a server is probed."""
    probe_every_s: float = Field(default=30.0, gt=0)
    """Interval of the probe while a server is idle, in seconds."""
    probe_timeout_s: float = Field(default=20.0, gt=0)
    """Seconds for a probe; two misses in a row, six while it generates, mean that the server hangs."""
    restarts: int = Field(default=3, ge=0)
    """Restarts within `restart_window_s`; when they are used up, the node drains."""
    restart_window_s: float = Field(default=600.0, gt=0)
    """Window of the restart budget, in seconds."""

    not_rounded: ClassVar[Mapping[str, str]] = {"int4": _NO_INT4}
    """Values of `weights` that the server does not support, and why."""
    not_drafted: ClassVar[Mapping[str, str]] = {}
    """Values of `speculation` that the server does not support, and why."""

    def dtype_on(self, device: str) -> str:
        """Returns the type of the served weights on `cpu` or `cuda`; `auto`: that of the model."""
        if self.dtype != "auto" or device != "cpu":
            return self.dtype
        return "float32" if self.weights == "exact" else "bfloat16"

    def unverified(self, sampling: Sampling) -> str:
        """Returns why the server cannot verify drafts for requests with this sampling; empty if it can."""
        return "verification ignores min_p" if sampling.min_p > 0 else ""

    def check_device(self, device: str) -> None:
        """Checks the options on `cpu` or `cuda`. Raises: InvalidInput."""

    def check_verified(self, sampling: Sampling) -> None:
        """Raises: InvalidInput when drafts would change what the request gets."""
        if self.speculation != "off" and (reason := self.unverified(sampling)):
            raise InvalidInput(
                f"cannot sample with speculation = {self.speculation!r}: {reason}; set speculation = 'off', or sample "
                "without it",
                code="engine.unverified_drafts",
            )

    @model_validator(mode="after")
    def _check_speculation(self) -> Self:
        if reason := self.not_drafted.get(self.speculation):
            raise ValueError(f"speculation = {self.speculation!r} is not supported: {reason}")
        if (self.speculation == "draft_model") != bool(self.draft_model):
            raise ValueError("speculation = 'draft_model' and a draft_model need each other; set both or none")
        if self.speculation != "off" and self.return_routes:
            raise ValueError(
                "speculation and return_routes exclude each other: the experts of drafted tokens are not known to be "
                "those of the tokens that were accepted; set speculation = 'off'"
            )
        if any(argument.startswith("--speculative") for argument in self.arguments):
            raise ValueError(
                "arguments cannot contain --speculative options: the node must know what the server verifies; set "
                "`speculation`"
            )
        return self

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if reason := self.not_rounded.get(self.weights):
            raise ValueError(f"weights = {self.weights!r} is not supported: {reason}")
        if self.weights != "exact" and self.dtype == "float32":
            raise ValueError(f"weights = {self.weights!r} needs a dtype of 16 bits; leave out dtype = 'float32'")
        if any(argument.partition("=")[0] == "--quantization" for argument in self.arguments):
            raise ValueError(
                "arguments cannot contain --quantization: the node must know that weights are rounded; set `weights`"
            )
        return self
