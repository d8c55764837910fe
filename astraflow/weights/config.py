"""Options of the weight store and of those who pull from it."""

from typing import Annotated, Any

from pydantic import Field

from astraflow.runtime.config import Config
from astraflow.runtime.overrides import SetBy
from astraflow.weights.tensors import MAX_VERSION_BYTES


class PullConfig(Config):
    """How a node follows the versions of a policy."""

    sources: Annotated[tuple[str, ...], SetBy.RECIPE] = ()
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
    slow_s: float = Field(default=10.0, gt=0)
    """A source that has been too slow for this long is left for the next one, which brings the rest."""
    slow_share: float = Field(default=0.1, ge=0, lt=1)
    """Too slow is less than this share of the rate that another source had when it was used last; 0 compares none."""
    min_bytes_per_s: float = Field(default=65536.0, ge=0)
    """Too slow is also less than this, where there is another source; 0 for no such bound."""
    max_version_bytes: int = Field(default=MAX_VERSION_BYTES, ge=1)
    """Larger versions are refused before anything is allocated for them."""
    codec_threads: int = Field(default=1, ge=1)
    """Threads that apply and hash one version."""


class WeightsConfig(Config):
    """What the weight store keeps."""

    keep_in: Annotated[dict[str, Any], SetBy.RECIPE] = Field(default={"kind": "disk"})
    """Where the files are: `disk`, `memory` (gone with the machine), `s3`; `kind` and its options."""
    keep_versions: int = Field(default=32, ge=2)
    """Versions of each policy that stay fetchable as deltas; a node further behind gets the full snapshot."""
    keep_bytes: int | None = Field(default=None, ge=1)
    """Files of each policy that are kept, at most: fewer versions stay where they would be larger. What the newest
    version is rebuilt from always stays, and before old files go, new ones are there: leave room for one version."""
    anchor_every: int = Field(default=16, ge=1)
    """Every that many versions a full snapshot is kept, so that a restart replays fewer deltas than that."""
    direct_after: int = Field(default=4, ge=2)
    """A reader whose way would take at least that many deltas gets a single one, made for it, where that is smaller."""
    direct_deltas: int = Field(default=16, ge=0)
    """As many of those are kept in memory, for the next reader that needs the same; 0 makes none."""
    direct_bytes: int = Field(default=2**30, ge=1)
    """Of all those that are kept; the one made last stays, whatever its size."""
    direct_wait_s: float = Field(default=2.0, ge=0, le=5)
    """Readers wait for theirs this long, then take the way there is; it is made all the same, for those who come."""
    linger_s: float = Field(default=30.0, ge=0)
    """Bits of a version that is no longer the newest stay in memory this long after somebody read them, so that a
    reader in full may take longer than a version lasts, break off and resume."""
    parts_wait_s: float = Field(default=60.0, gt=0)
    """When nothing has come for this long of a version that several publishers send in parts, the parts that are there
    are let go of, and their publishers told to send them again."""
    max_version_bytes: int = Field(default=MAX_VERSION_BYTES, ge=1)
    """Larger versions are refused before anything is allocated for them."""
    codec_threads: int = Field(default=1, ge=1)
    """Threads that apply, encode and hash one version."""
    mirror: PullConfig = PullConfig(maps_shared=False)
    """How a store that follows another one fetches."""
