"""Options of the weight store and of its readers."""

from typing import Annotated, Any

from pydantic import Field

from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.weights.tensors import MAX_VERSION_BYTES


class PullConfig(Config):
    """Options of a reader that follows the versions of a policy."""

    sources: Annotated[tuple[str, ...], SettableBy.RECIPE] = ()
    """Mirrors to fetch from, `HOST:PORT`, the nearest first; the run's own store is the last source."""
    preferred_source_wait_s: float = Field(default=30.0, ge=0)
    """Time that preferred sources get to fetch a version that another source has announced; mirrors need it."""
    connections: int = Field(default=8, ge=1, le=64)
    """Open connections to each source. On a short link one is enough; over 300 ms it takes eight to fill 4 Gbit/s."""
    max_bytes_per_s: float | None = Field(default=None, gt=0)
    """Limit of the node's fetch rate, over all connections and policies; unlimited when absent."""
    use_shared_memory: Annotated[bool, SettableBy.RECIPE] = True
    """Use bits in the shared memory of a source on the same host directly, without a fetch."""
    stall_timeout_s: float = Field(default=30.0, gt=0)
    """Time without data after which a fetch is interrupted and resumed."""
    slow_window_s: float = Field(default=10.0, gt=0)
    """Time after which a source that is too slow is replaced by the next one, which sends the rest."""
    slow_share: float = Field(default=0.1, ge=0, lt=1)
    """Share of another source's last rate below which a source is too slow; 0 disables the comparison."""
    min_bytes_per_s: float = Field(default=65536.0, ge=0)
    """Rate below which a source is too slow, if there is another one; 0 for no bound."""
    max_version_bytes: int = Field(default=MAX_VERSION_BYTES, ge=1)
    """Larger versions are rejected before memory is allocated for them."""
    codec_threads: int = Field(default=1, ge=1)
    """Threads that apply and hash one version."""


class WeightsConfig(Config):
    """Options of the weight store: storage, retention and limits."""

    storage: Annotated[dict[str, Any], SettableBy.RECIPE] = Field(default={"kind": "disk"})
    """Location of the files: `disk`, `memory` (lost with the machine), `s3`; `kind` and its options."""
    retained_versions: int = Field(default=32, ge=2)
    """Versions of each policy that stay available as deltas; a node further behind gets the full snapshot."""
    max_retained_bytes: int | None = Field(default=None, ge=1)
    """Limit of the retained files of each policy: fewer versions are retained if they are larger. The files that the
    newest version is rebuilt from always stay, and new files are written before old ones go: leave room for one
    version."""
    full_snapshot_every: int = Field(default=16, ge=1)
    """Interval of full snapshots in versions; a restart replays fewer deltas than that."""
    direct_delta_min_chain: int = Field(default=4, ge=2)
    """Number of deltas from which a reader gets a single direct delta instead, if that is smaller."""
    max_direct_deltas: int = Field(default=16, ge=0)
    """Direct deltas cached in memory for later readers; 0 makes none."""
    max_direct_delta_bytes: int = Field(default=2**30, ge=1)
    """Limit of the cached direct deltas; the newest delta stays at any size."""
    direct_delta_wait_s: float = Field(default=2.0, ge=0, le=5)
    """Time that readers wait for a direct delta before they use existing deltas; it is cached for later readers."""
    retired_version_s: float = Field(default=30.0, ge=0)
    """Time since the last read for which the bits of an older version stay in memory, so that a reader of the full
    snapshot may take longer than a version lasts, disconnect and resume."""
    multipart_wait_s: float = Field(default=60.0, gt=0)
    """Time without data after which the parts of an incomplete multipart publish are discarded, and their publishers
    are asked to send them again."""
    max_version_bytes: int = Field(default=MAX_VERSION_BYTES, ge=1)
    """Larger versions are rejected before memory is allocated for them."""
    codec_threads: int = Field(default=1, ge=1)
    """Threads that apply, encode and hash one version."""
    mirror: PullConfig = PullConfig(use_shared_memory=False)
    """Options of a store that mirrors another one."""
