"""Settings of one node. Flows, policies and the default engine come from dataflow on join."""

import os
import platform
import socket
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import NodeId, PoolId
from astraflow.contract.nodes import MAX_CAPACITY
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.weights.config import PullConfig


class RaasConfig(Config):
    """Settings of one node."""

    name: Annotated[str, SettableBy.RECIPE] = Field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    """Unique name, stable across restarts: a node that joins under a name replaces the previous node of that name."""
    pool: Annotated[str, SettableBy.RECIPE] = "local"
    """Pool of the node; the nodes of a pool are scaled together."""
    region: Annotated[str, SettableBy.RECIPE] = "local"
    """Region, for the report."""
    capacity: int = Field(default=MAX_CAPACITY, ge=1, le=MAX_CAPACITY)
    """Upper limit of concurrent episodes. The limit in effect follows the load of the engines (`lease_limit`), so a
    lower value is needed only where something else on the machine limits episodes, such as sandboxes."""
    engine: dict[str, Any] | None = None
    """`kind` of the engine and its options; the engines of the run when absent."""
    engines: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Engines of single policies, by policy, instead of `engine`."""
    policies: Annotated[tuple[str, ...], SettableBy.RECIPE] = ()
    """Policies that the node serves; empty: all. The node gets tasks of flows whose policies are all among them."""
    hardware: Annotated[str, SettableBy.RECIPE] = Field(
        default_factory=lambda: f"{os.cpu_count()}x {platform.machine()}"
    )
    """Hardware, for the report."""
    price_per_hour: Annotated[float, SettableBy.ADMIN] = Field(default=0.0, ge=0)
    """US dollars; 0 when unknown."""
    text_share: float = Field(default=0.1, ge=0, le=1)
    """Share of groups whose trajectories are sent with their text, for inspection: evenly spaced, and some prompts each
    time."""
    episode_timeout_s: float = Field(default=900.0, gt=0)
    """Time limit of an episode in seconds; a longer episode fails at the boundary `engine`."""
    join_timeout_s: float = Field(default=60.0, ge=0)
    """Seconds to wait for an unreachable dataflow service at the first join; later the node retries without a limit."""
    drain_s: float = Field(default=0.0, ge=0)
    """Seconds for running episodes to finish on shutdown before their hand-back; 0 hands them back at once."""
    hand_back_s: float = Field(default=2.0, gt=0)
    """Maximum seconds to hand back partial rollouts; the hand-back starts this long before a deadline."""
    dataflow_timeout_s: float = Field(default=0.0, ge=0)
    """Seconds without an answer from dataflow after which the node exits, so that an orphaned instance costs nothing;
    0 waits without a limit."""
    preemption: Annotated[dict[str, Any], SettableBy.RECIPE] = Field(default={"kind": "none"})
    """Source of preemption notices: `kind` and its options."""
    evaluates: Annotated[bool, SettableBy.AGENT] = True
    """Accepts evaluation tasks. While they run, an engine in the node's process gets a second engine beside it, and a
    node with servers is reserved for the evaluation."""
    evaluation_idle_s: float = Field(default=60.0, ge=0)
    """Idle time in seconds after which second engines for evaluation tasks are closed."""
    credential_folder: Annotated[Path | None, SettableBy.RECIPE] = None
    """Folder that stores the credential that the join token was exchanged for, with its key; a node restarted with this
    folder and the same name needs no new token. The credential stays in memory when absent."""
    weights_key: Annotated[str, SettableBy.RECIPE] = ""
    """Public key of the run to pin, as in `weights.pub` of the run directory; empty: the key that dataflow sends."""
    pull: PullConfig = PullConfig()
    """Settings of the weight transfer."""

    @field_validator("name", "pool")
    @classmethod
    def _check_name(cls, value: str) -> str:
        try:
            PoolId(value)
            NodeId(f"{value}.0")
        except InvalidInput as problem:
            raise ValueError(str(problem)) from None
        return value
