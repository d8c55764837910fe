"""Options of the provider `slurm`: its commands, and resources of jobs."""

from pydantic import Field

from astraflow.runtime.config.base import Config


class JobOptions(Config):
    """Options of sbatch for a node's job; a pool's `options` override those of the type."""

    partition: str = ""
    """Partition; the cluster's default when empty."""
    account: str = ""
    """Account to charge."""
    qos: str = ""
    """Quality of service."""
    constraint: str = ""
    """Required features of the host."""
    gres: str = ""
    """Generic resources: `gpu:h100:8`."""
    cpus_per_task: int | None = Field(default=None, ge=1)
    """Number of processors."""
    mem: str = Field(default="", pattern=r"^(\d+[KMGT]?)?$")
    """Memory of the host: `64G`."""
    reservation: str = ""
    """Reservation to use."""
    exclude: str = ""
    """Hosts to exclude."""
    nice: int | None = None
    """Priority adjustment, as in `nice`."""
    is_exclusive: bool = False
    """Use the host exclusively."""


class JobType(JobOptions):
    """Instance type, selected by a pool's `type`."""

    usd_per_hour: float = Field(default=0.0, ge=0)
    """Price of an instance in US dollars an hour. Slurm has no prices."""


class SlurmOptions(Config):
    """Options for one cluster, with the permissions of the fleet service's user."""

    program: tuple[str, ...] = Field(min_length=1)
    """Command before `join ADDRESS ...` on the hosts, such as the path of a virtual environment's `astraflow`."""
    types: dict[str, JobType] = Field(default={"node": JobType()}, min_length=1)
    """Instance types by a name of your choice; the first is the default."""
    regions: dict[str, str] = Field(default={})
    """Regions by a name of your choice: the partition there."""
    spot_qos: str = ""
    """Quality of service of preemptible jobs; empty without one."""
    spot_discount: float = Field(default=0.6, ge=0, lt=1)
    """Discount of preemptible jobs, as a share of the price."""
    notice_s: float = Field(default=30.0, ge=0)
    """Time from SIGTERM to the end at a preemption: the partition's GraceTime. Seconds."""
    log_directory: str = ""
    """Log directory on the hosts, which must exist there; no logs when empty."""
    forwarded_variables: tuple[str, ...] = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "HF_HOME")
    """Environment variables that are passed to nodes, in addition to the token."""
    has_accounting: bool = True
    """`sacct` is available for ended jobs."""
    timeout_s: float = Field(default=30.0, gt=0)
    """Timeout of a command. Seconds."""
    listing_lag_s: float = Field(default=60.0, ge=0)
    """Maximum time until a submission whose answer was lost is listed. Seconds."""
    schedule_wait_s: float = Field(default=0.0, ge=0)
    """Time after which a job that has not started fails with Capacity or Quota. Seconds; 0: it stays in the queue."""
    launch_delay_s: float = Field(default=120.0, gt=0)
    """Estimated time from launch to a ready node, until it is measured. Seconds."""
