"""Jobs of a Slurm cluster as instances: one batch job for each node, by Slurm's own commands.

Slurm lets many jobs have one name. So a launch looks for its name first, under a lock of this host, and asks for
`--dependency=singleton`: if two fleet services submit one launch all the same, the second job waits until the first has
ended, and is seen and ended long before. The token is in the job's environment, which its owner and the administrators
can read.
"""

import asyncio
import getpass
import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pydantic import Field

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.clock import Clock
from astraflow.runtime.config import Config, nearest
from maintainer.fleet.providers import providers
from maintainer.fleet.providers.base import (
    Capabilities,
    Handle,
    Instance,
    Invalid,
    LaunchSpec,
    ProviderError,
    Quote,
    Retired,
    Retry,
    State,
    Unknown,
    fingerprint,
    join_arguments,
)
from maintainer.fleet.providers.exclusive import exclusive
from maintainer.fleet.providers.slurm_jobs import (
    KIND,
    PREFIX,
    SACCT_FORMAT,
    SQUEUE_FORMAT,
    Job,
    parse_sacct,
    parse_squeue,
    read_job,
    refusal,
    state_of,
    want,
)

SCRIPT = Path(__file__).with_name("slurm_node.sh")
TOKEN = "ASTRAFLOW_TOKEN"  # noqa: S105 (the variable's name, not a secret)

LONGEST_COMMENT = 1024
"""Characters: what fits wherever Slurm keeps comments."""

_LAUNCH_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")
_LOOK_S = 0.5


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


@providers.register(KIND, options=SlurmOptions)
class Slurm:
    """Jobs of this user. `directory` holds locks only."""

    def __init__(self, options: SlurmOptions, *, clock: Clock, directory: Path) -> None:
        self._options = options
        self._clock = clock
        self._directory = directory

    async def launch(self, spec: LaunchSpec, launch_id: str) -> Handle:
        """Submit a job, unless there is one of that name."""
        name, kind = _job_name(launch_id), self._type(spec)
        argv = self._sbatch(spec, launch_id, kind)
        async with exclusive(self._directory, launch_id):
            known = await self._find(name)
            if known:
                job = known[0].id
                if known[0].order and known[0].order.get("fingerprint") != fingerprint(spec):
                    raise Invalid(f"launch {launch_id} was made with another spec: a launch id stands for one instance")
            else:
                said = await self._command("submitting a job", argv, token=spec.token)
                job = said.strip().partition(";")[0]
                if not job.isdigit():
                    raise Unknown(f"submitting a job: sbatch answered {said[:80]!r} instead of a job's number")
        handle = Handle(provider=KIND, id=job, launch_id=launch_id)
        if self._options.place_wait_s:
            await self._until_started(name, handle)
        return handle

    async def retire(self, launch_id: str, *, keep: Handle | None = None) -> Retired:
        """Cancel every job of the launch: Slurm sends SIGTERM, and SIGKILL after the cluster's KillWait."""
        going = [
            job
            for job in await self._queue(_job_name(launch_id))
            if state_of(job) is not State.GONE and (keep is None or job.id != keep.id)
        ]
        to_cancel = [job.id for job in going if state_of(job) is not State.GOING]
        if to_cancel:
            try:
                await self._command("cancelling a job", ["scancel", *to_cancel])
            except Invalid:
                return Retired.GOING  # it ended in this moment: the next call sees
        return Retired.GOING if going else Retired.GONE

    async def list(self, cluster: str) -> tuple[Instance, ...]:
        """All jobs of this user whose comment has the cluster's tag."""
        found = [read_job(job) for job in await self._queue()]
        return tuple(one for one in found if one.tags is not None and one.tags.cluster == cluster)

    async def describe(self, handle: Handle) -> Instance:
        """From the queue, or from the accounting for one that ended a while ago."""
        found = await self._find(PREFIX + handle.launch_id)
        return next(
            (read_job(job) for job in found if job.id == handle.id),
            Instance(handle=handle, tags=None, state=State.GONE),
        )

    def capabilities(self) -> Capabilities:
        """As the options have it."""
        options = self._options
        return Capabilities(
            kind=KIND,
            has_spot=bool(options.spot_qos),
            notice_s=options.notice_s if options.spot_qos else 0.0,
            listing_lag_s=options.listing_lag_s,
            launch_delay_s=options.launch_delay_s,
            launches_at_once=4,
        )

    async def quote(self, spec: LaunchSpec) -> Quote:
        """The price that the options give the type."""
        kind = self._type(spec)
        return Quote(
            usd_per_hour=kind.usd_per_hour * (1 - self._options.spot_discount if spec.is_spot else 1.0),
            launch_delay_s=self._options.launch_delay_s,
            source="as configured for the type" if kind.usd_per_hour else "no price is configured",
        )

    async def close(self) -> None:
        """Nothing is held."""

    def _type(self, spec: LaunchSpec) -> JobType:
        """The type with what the pool's options say on top. Raises: Invalid."""
        options = self._options
        kind = spec.type or next(iter(options.types))
        if kind not in options.types:
            raise Invalid(f"no type of job is called {kind!r}; {nearest(kind, [*options.types])}")
        if spec.region and spec.region not in options.regions:
            known = nearest(spec.region, [*options.regions]) if options.regions else "none is configured"
            raise Invalid(f"no region is called {spec.region!r}; {known}")
        if spec.is_spot and not options.spot_qos:
            raise Invalid("preemptible jobs are not configured here: give the provider a spot_qos")
        try:
            own = JobOptions.parse(spec.options, where="options of the pool")
        except InvalidInput as problem:
            raise Invalid(str(problem)) from None
        return options.types[kind].model_copy(update=own.model_dump(exclude_unset=True))

    def _sbatch(self, spec: LaunchSpec, launch_id: str, kind: JobType) -> Sequence[str]:
        """The command line; the token is not on it. Raises: Invalid."""
        options, left_s = self._options, spec.tags.expires_at - self._clock.wall()
        if left_s < 60:
            raise Invalid(f"launch {launch_id} would expire in {left_s:.0f} s: Slurm counts minutes")
        order = {
            "fingerprint": fingerprint(spec),
            "tags": asdict(spec.tags),
            "type": spec.type or next(iter(options.types)),
            "region": spec.region,
            "is_spot": spec.is_spot,
        }
        comment = json.dumps(order, separators=(",", ":"))
        if len(comment) > LONGEST_COMMENT:
            raise Invalid(f"the tags of launch {launch_id} take {len(comment)} of {LONGEST_COMMENT} characters")
        last_s = max(1, min(120, int(left_s) - 60))
        said = {
            "partition": options.regions.get(spec.region, kind.partition),
            "account": kind.account,
            "qos": options.spot_qos if spec.is_spot else kind.qos,
            "constraint": kind.constraint,
            "gres": kind.gres,
            "cpus-per-task": kind.cpus_per_task,
            "mem": kind.mem,
            "reservation": kind.reservation,
            "exclude": kind.exclude,
            "nice": kind.nice,
        }
        return [
            "sbatch",
            "--parsable",
            f"--job-name={_job_name(launch_id)}",
            f"--comment={comment}",
            "--dependency=singleton",
            "--no-requeue",
            "--nodes=1",
            "--ntasks=1",
            f"--time={_minutes(left_s)}",
            f"--signal=B:TERM@{last_s}",
            f"--export={','.join((TOKEN, *self._passed_on()))}",
            f"--output={options.log_directory.rstrip('/')}/{PREFIX}%j.log"
            if options.log_directory
            else "--output=/dev/null",
            *(f"--{name}={value}" for name, value in said.items() if value not in ("", None)),
            *(["--exclusive"] if kind.is_exclusive else []),
            str(SCRIPT),
            *options.program,
            *join_arguments(spec, launch_id),
        ]

    def _passed_on(self) -> tuple[str, ...]:
        return tuple(name for name in self._options.passed_on if name in os.environ)

    async def _find(self, name: str) -> tuple[Job, ...]:
        """Jobs of that name: in the queue, or ended a while ago."""
        queued = await self._queue(name)
        if queued or not self._options.has_accounting:
            return queued
        argv = ["sacct", "--noheader", "--parsable2", "--allocations", "--starttime=now-30days"]
        said = await self._command("reading the accounting", [*argv, f"--name={name}", f"--format={SACCT_FORMAT}"])
        return tuple(job for job in parse_sacct(said) if job.name == name)

    async def _queue(self, name: str = "") -> tuple[Job, ...]:
        argv = ["squeue", "--noheader", "--states=all", f"--user={getpass.getuser()}", f"--format={SQUEUE_FORMAT}"]
        said = await self._command("reading the queue", [*argv, *([f"--name={name}"] if name else [])])
        return tuple(job for job in parse_squeue(said) if not name or job.name == name)

    async def _until_started(self, name: str, handle: Handle) -> None:
        """Raises: Quota, Capacity or Auth when it still waits after a while; then it is cancelled."""
        give_up_at = self._clock.now() + self._options.place_wait_s
        while True:
            waiting = [job for job in await self._queue(name) if job.id == handle.id and job.state == "PENDING"]
            if not waiting:
                return
            if self._clock.now() >= give_up_at:
                await self._command("taking a job back", ["scancel", handle.id])
                raise want(waiting[0].reason)(f"the job waited {self._options.place_wait_s:g} s: {waiting[0].reason}")
            await asyncio.sleep(_LOOK_S)

    async def _command(self, what: str, argv: Sequence[str], *, token: str = "") -> str:
        """What it says; it is ended with the call. Raises: ProviderError."""
        environment = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
        environment.pop(TOKEN, None)  # the fleet service's own
        environment |= {TOKEN: token} if token else {}
        pipe, limit_s = asyncio.subprocess.PIPE, self._options.timeout_s
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
            )
        except OSError as problem:
            raise Invalid(f"{what}: {argv[0]} cannot be started here: {problem.strerror}") from None
        try:
            async with asyncio.timeout(limit_s):
                said, complaint = await process.communicate()
        except TimeoutError:
            raise Retry(f"{what}: {argv[0]} gave no answer within {limit_s:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise _without(token, refusal(what, process.returncode, complaint.decode(errors="replace")))
        return said.decode(errors="replace")


def _without(token: str, problem: ProviderError) -> ProviderError:
    """Whatever a command repeats, the token is not told on."""
    return type(problem)(str(problem).replace(token, "***")) if token else problem


def _job_name(launch_id: str) -> str:
    if not _LAUNCH_ID.fullmatch(launch_id):
        raise Invalid(f"{launch_id[:80]!r} is no launch id: use 1 to 64 letters, digits, - and _")
    return PREFIX + launch_id


def _minutes(left_s: float) -> int:
    """A year is what Slurm needs not be asked to exceed."""
    return max(1, min(365 * 24 * 60, int(left_s // 60)))
