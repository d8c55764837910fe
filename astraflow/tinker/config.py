"""Configuration of the server: base models, tenants and limits, from a TOML file."""

from typing import Any

from pydantic import Field, field_validator

from astraflow.models.precision import ComputeDtype
from astraflow.runtime.config.base import Config


class BaseModelOptions(Config):
    """Base model that tenants add adapters to."""

    model: dict[str, Any]
    """The model, as its `kind` and options, such as `{ kind = "fetched", name = "smollm2" }`."""
    tokenizer: str = ""
    """Name or folder of the tokenizer that clients load; empty: the folder of the model on this machine."""
    device: str = "auto"
    """`auto` (the first GPU, else the CPU), `cpu`, `cuda`, `cuda:1`."""
    compute_dtype: ComputeDtype = "auto"
    """`auto`: float32 on a CPU, bfloat16 on a GPU."""


class TenantOptions(Config):
    """Share and quotas of a tenant."""

    share: float = Field(default=1.0, gt=0)
    """Weight of the tenant's tokens: while several tenants have work, their tokens are in proportion to it."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens that the tenant may train and sample in all, a backward pass counting twice; None: no limit."""
    max_models: int = Field(default=16, ge=1)
    """Models that are loaded at a time."""
    max_rank: int = Field(default=64, ge=1)
    """Highest rank of an adapter."""
    max_waiting: int = Field(default=4096, ge=1)
    """Requests without a result at a time."""
    max_disk_bytes: int | None = Field(default=None, ge=1)
    """Bytes of models, checkpoints and weights of samplers, above which nothing is added; None: no limit."""


class TinkerOptions(Config):
    """Options of `astraflow serve tinker`."""

    models: dict[str, BaseModelOptions] = Field(min_length=1)
    """Base models by the name that clients give."""
    tenants: dict[str, TenantOptions] = Field(min_length=1)
    """Tenants by name. The key of each is in `keys/NAME` of the server's directory."""
    pass_tokens: int = Field(default=4096, ge=1)
    """Tokens of a forward pass, padding included, after which another tenant may compute."""
    max_request_bytes: int = Field(default=32 * 2**20, ge=1024)
    """Longest body of a request."""
    threads: int = Field(default=1, ge=1)
    """CPU threads of torch."""

    @field_validator("tenants")
    @classmethod
    def _are_names(cls, tenants: dict[str, TenantOptions]) -> dict[str, TenantOptions]:
        if invalid := [name for name in tenants if not name.isidentifier() or not name.isascii()]:
            raise ValueError(f"invalid name {invalid[0]!r}; use letters, digits and underscores")
        return tenants
