"""What one node is told about itself; what it runs, dataflow tells it when it joins."""

import os
import platform
import socket
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import NodeId, PoolId
from astraflow.contract.nodes import MAX_CAPACITY
from astraflow.runtime.config import Config
from astraflow.runtime.overrides import SetBy
from astraflow.weights.config import PullConfig


class RaasConfig(Config):
    """One node."""

    name: Annotated[str, SetBy.RECIPE] = Field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    """Stable over restarts of the same node, and its own: a node that joins under a name replaces the one before."""
    pool: Annotated[str, SetBy.RECIPE] = "local"
    """Nodes of one pool are sized together."""
    region: Annotated[str, SetBy.RECIPE] = "local"
    """Where it stands, for the report."""
    capacity: int = Field(default=64, ge=1, le=MAX_CAPACITY)
    """Episodes it runs at once."""
    engine: dict[str, Any] | None = None
    """`kind` and its options; the run's own suggestion when absent."""
    hardware: Annotated[str, SetBy.RECIPE] = Field(default_factory=lambda: f"{os.cpu_count()}x {platform.machine()}")
    """What it runs on, for the report."""
    price_per_hour: Annotated[float, SetBy.ADMIN] = Field(default=0.0, ge=0)
    """US dollars; 0 when unknown."""
    text_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the groups whose trajectories are sent with their text, for people to look at."""
    episode_timeout_s: float = Field(default=900.0, gt=0)
    """An episode that takes longer is given up as a failure of the engine."""
    join_timeout_s: float = Field(default=60.0, ge=0)
    """How long dataflow may be out of reach before the first join is given up; later it is waited for without end."""
    drain_s: float = Field(default=0.0, ge=0)
    """On stopping, what runs gets this long to end before it is handed back; 0 hands it back at once."""
    hand_back_s: float = Field(default=2.0, gt=0)
    """Handing back what was begun takes at most this long, and begins this long before a deadline."""
    dead_man_s: float = Field(default=0.0, ge=0)
    """Without an answer from dataflow for so long, the node ends by itself, and whoever pays for its machine pays no
    more; 0 waits for ever."""
    preemption: Annotated[dict[str, Any], SetBy.RECIPE] = Field(default={"kind": "none"})
    """Where a notice is read that this machine goes away soon: `kind` and its options."""
    evaluates: bool = True
    """Whether it takes tasks of evaluations: for these it makes a second engine of each policy while they last."""
    evaluation_idle_s: float = Field(default=60.0, ge=0)
    """That engine is closed when no such task has run for this long."""
    keep: Annotated[Path | None, SetBy.RECIPE] = None
    """Folder in which the credential that a join token was exchanged for is kept, with its key: started again there
    under the same name, the node needs no other token. In memory alone when absent."""
    weights_key: Annotated[str, SetBy.RECIPE] = ""
    """The run's public key, as in `weights.pub` of its directory, if it is to be pinned by hand; dataflow tells it."""
    pull: PullConfig = PullConfig()
    """How versions are fetched."""

    @field_validator("name", "pool")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        try:
            PoolId(value)
            NodeId(f"{value}.0")
        except InvalidInput as problem:
            raise ValueError(str(problem)) from None
        return value
