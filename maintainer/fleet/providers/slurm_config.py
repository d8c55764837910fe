"""What the provider `slurm` is told: how its commands are used, and what jobs of nodes ask for."""

from pydantic import Field

from astraflow.runtime.config import Config


class JobOptions(Config):
    """What is asked of Slurm for one node; in a pool's `options` on top of the type's. Each is sbatch's option."""

    partition: str = ""
    """Where it runs; the cluster's default when empty."""
    account: str = ""
    """Who pays."""
    qos: str = ""
    """Quality of service."""
    constraint: str = ""
    """Features that its machine must have."""
    gres: str = ""
    """Generic resources: `gpu:h100:8`."""
    cpus_per_task: int | None = Field(default=None, ge=1)
    """Processors."""
    mem: str = Field(default="", pattern=r"^(\d+[KMGT]?)?$")
    """Memory of the machine: `64G`."""
    reservation: str = ""
    """Of which it takes."""
    exclude: str = ""
    """Machines that it does not run on."""
    nice: int | None = None
    """How much it yields to others."""
    is_exclusive: bool = False
    """The machine is its own."""


class JobType(JobOptions):
    """A type of node, as `type` of a pool names it."""

    usd_per_hour: float = Field(default=0.0, ge=0)
    """What one costs: Slurm does not know."""


class SlurmOptions(Config):
    """One cluster, as whoever runs the fleet service may use it."""

    program: tuple[str, ...] = Field(min_length=1)
    """What stands before `join ADDRESS ...` on the machines, as the path of a venv's `astraflow` there."""
    types: dict[str, JobType] = Field(default={"node": JobType()}, min_length=1)
    """By a name of your own; the first is the default."""
    regions: dict[str, str] = Field(default={})
    """By a name of your own: the partition that stands there."""
    spot_qos: str = ""
    """Quality of service whose jobs may be preempted; empty where there is none."""
    spot_discount: float = Field(default=0.6, ge=0, lt=1)
    """By how much of the price those are cheaper."""
    notice_s: float = Field(default=30.0, ge=0)
    """From SIGTERM to the end on preemption: the partition's GraceTime."""
    log_directory: str = ""
    """On the machines, which must share it or have it; nothing is kept when empty."""
    passed_on: tuple[str, ...] = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "HF_HOME")
    """Variables of this environment that nodes get beside the token."""
    has_accounting: bool = True
    """Whether `sacct` knows jobs that have ended."""
    timeout_s: float = Field(default=30.0, gt=0)
    """A command is given up after so long."""
    listing_lag_s: float = Field(default=60.0, ge=0)
    """A submission whose answer was lost shows after so long at the latest."""
    place_wait_s: float = Field(default=0.0, ge=0)
    """A launch that does not start within so long is taken back as Capacity or Quota; 0 leaves it in the queue."""
    launch_delay_s: float = Field(default=120.0, gt=0)
    """From launch to a node that works, as long as nothing better was measured."""
