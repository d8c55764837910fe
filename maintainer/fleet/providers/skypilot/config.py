"""Options of the provider `skypilot`: the API server, and resources of clusters."""

from pydantic import Field

from astraflow.runtime.config.base import Config


class ClusterOptions(Config):
    """SkyPilot's resource options; a pool's `options` override those of the type."""

    infra: str = ""
    """Infrastructure: `aws`, `aws/us-east-1`, `k8s/context`; the cheapest when empty."""
    accelerators: str = ""
    """Accelerators: `H100:8`."""
    instance_type: str = ""
    """Instance type of the cloud."""
    cpus: str = ""
    """Number of CPUs: `8+`."""
    memory: str = ""
    """Memory in gigabytes: `64+`."""
    disk_size: int | None = Field(default=None, ge=1)
    """Disk size in gigabytes."""
    image_id: str = ""
    """Image: `docker:registry.example/astraflow-node`, or a cloud's image."""
    setup: str = ""
    """Script that installs the node's program, if the image does not contain it."""


class ClusterType(ClusterOptions):
    """Instance type, selected by a pool's `type`."""

    usd_per_hour: float = Field(default=0.0, ge=0)
    """Price of an instance in US dollars an hour."""


class SkyPilotOptions(Config):
    """Options for one user of an API server."""

    endpoint: str = Field(default="http://127.0.0.1:46580", pattern=r"^https?://[^@]+$")
    """URL of the API server, without credentials."""
    token_variable: str = "SKYPILOT_SERVICE_ACCOUNT_TOKEN"  # noqa: S105 (the variable's name, not a secret)
    """Environment variable with the service account's token; unauthenticated when it is not set."""
    token_file: str = ""
    """File with the service account's token, which is read at each request, so that a renewed token needs no restart;
    the variable when empty."""
    user: str = Field(default="a57f10e0", pattern=r"^[0-9a-f]{8}$")
    """SkyPilot's hash of the clusters' user, used without a token."""
    program: tuple[str, ...] = Field(default=("astraflow",), min_length=1)
    """Command before `join ADDRESS ...` on the instances."""
    types: dict[str, ClusterType] = Field(default={"node": ClusterType()}, min_length=1)
    """Instance types by a name of your choice; the first is the default."""
    regions: dict[str, str] = Field(default={})
    """Regions by a name of your choice: SkyPilot's `infra` value."""
    spot_discount: float = Field(default=0.6, ge=0, lt=1)
    """Discount of spot instances, as a share of the price."""
    idle_minutes: int = Field(default=5, ge=1)
    """Idle time after which SkyPilot terminates an instance whose node has ended."""
    answer_wait_s: float = Field(default=10.0, ge=0)
    """Time for which a launch waits for a refusal by SkyPilot; later refusals show in the list. Seconds."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Timeout of a request; calls of clouds can be slow. Seconds."""
    listing_lag_s: float = Field(default=60.0, ge=0)
    """Maximum time until a launch whose answer was lost is listed. Seconds."""
    launch_delay_s: float = Field(default=300.0, gt=0)
    """Estimated time from launch to a ready node, until it is measured. Seconds."""
