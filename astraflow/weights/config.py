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

    sources: tuple[str, ...] = ()
    """Mirrors to fetch from, `HOST:PORT`, the nearest first; the run's own store comes after them."""
    patience_s: float = Field(default=30.0, ge=0)
    """When a version is announced somewhere, preferred sources get this long to have it too: a mirror must fetch it."""
    connections: int = Field(default=8, ge=1, le=64)
    """Kept to each source. Near by one does; over 300 ms it takes eight to fill 4 Gbit/s."""
    max_bytes_per_s: float | None = Field(default=None, gt=0)
    """Bound on what the node fetches, over all connections and policies; none when absent."""
    maps_shared: bool = True
    """Whether bits that a source on this host has in shared memory are used there, without fetching them."""
    stall_s: float = Field(default=30.0, gt=0)
    """A fetch that brings nothing for this long is broken off and resumed."""
    max_version_bytes: int = Field(default=MAX_VERSION_BYTES, ge=1)
    """Larger versions are refused before anything is allocated for them."""
    codec_threads: int = Field(default=1, ge=1)
    """Threads that apply and hash one version."""
