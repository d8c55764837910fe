"""Options of the weight store and of those who pull from it."""

from pydantic import Field

from astraflow.runtime.config import Config
from astraflow.weights.tensors import MAX_VERSION_BYTES


class WeightsConfig(Config):
    """What the weight store keeps."""

    keep_versions: int = Field(default=32, ge=2)
    """Versions of each policy that stay fetchable as deltas; a node further behind gets the full snapshot."""
    anchor_every: int = Field(default=16, ge=1)
    """Every that many versions a full snapshot goes to disk, so that a restart replays fewer deltas than that."""
    max_version_bytes: int = Field(default=MAX_VERSION_BYTES, ge=1)
    """Larger versions are refused before anything is allocated for them."""
    codec_threads: int = Field(default=1, ge=1)
    """Threads that apply, encode and hash one version."""


class PullConfig(Config):
    """How a node follows the versions of a policy."""

    stall_s: float = Field(default=30.0, gt=0)
    """A fetch that brings nothing for this long is broken off and resumed."""
    max_version_bytes: int = Field(default=MAX_VERSION_BYTES, ge=1)
    """Larger versions are refused before anything is allocated for them."""
    codec_threads: int = Field(default=1, ge=1)
    """Threads that apply and hash one version."""
