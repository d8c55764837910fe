"""What the provider `skypilot` is told: where its API server is, and what clusters of nodes ask for."""

from pydantic import Field

from astraflow.runtime.config import Config


class ClusterOptions(Config):
    """What SkyPilot is asked for, in its own words; in a pool's `options` on top of the type's."""

    infra: str = ""
    """Where: `aws`, `aws/us-east-1`, `k8s/context`; wherever it is cheapest when empty."""
    accelerators: str = ""
    """`H100:8`."""
    instance_type: str = ""
    """The cloud's own name of a machine."""
    cpus: str = ""
    """`8+`."""
    memory: str = ""
    """Gigabytes: `64+`."""
    disk_size: int | None = Field(default=None, ge=1)
    """Gigabytes."""
    image_id: str = ""
    """`docker:registry.example/astraflow-node`, or a cloud's image."""
    setup: str = ""
    """Script that installs the node's program, where the image has it not."""


class ClusterType(ClusterOptions):
    """A type of node, as `type` of a pool names it."""

    usd_per_hour: float = Field(default=0.0, ge=0)
    """What one costs."""


class SkyPilotOptions(Config):
    """One user of one API server."""

    endpoint: str = Field(default="http://127.0.0.1:46580", pattern=r"^https?://[^@]+$")
    """Of the API server; credentials do not belong into it."""
    token_variable: str = "SKYPILOT_SERVICE_ACCOUNT_TOKEN"  # noqa: S105 (the variable's name, not a secret)
    """Environment variable with the service account's token; without it, as nobody in particular."""
    user: str = Field(default="a57f10e0", pattern=r"^[0-9a-f]{8}$")
    """SkyPilot's hash of the user whose clusters these are, where no token says it."""
    program: tuple[str, ...] = Field(default=("astraflow",), min_length=1)
    """What stands before `join ADDRESS ...` on the machines."""
    types: dict[str, ClusterType] = Field(default={"node": ClusterType()}, min_length=1)
    """By a name of your own; the first is the default."""
    regions: dict[str, str] = Field(default={})
    """By a name of your own: SkyPilot's `infra` there."""
    spot_discount: float = Field(default=0.6, ge=0, lt=1)
    """By how much of the price spot machines are cheaper."""
    idle_minutes: int = Field(default=5, ge=1)
    """A machine whose node has ended is ended by SkyPilot after so long."""
    answer_wait_s: float = Field(default=10.0, ge=0)
    """A launch waits so long for SkyPilot to refuse it; what it refuses later shows in the list."""
    timeout_s: float = Field(default=60.0, gt=0)
    """An answer is given up after so long: asking the clouds takes a while."""
    listing_lag_s: float = Field(default=60.0, ge=0)
    """A launch whose answer was lost shows after so long at the latest."""
    launch_delay_s: float = Field(default=300.0, gt=0)
    """From launch to a node that works, as long as nothing better was measured."""
