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

from astraflow.runtime.clock import Clock
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
from maintainer.fleet.providers.choices import check_region, chosen_type, pool_options, type_name
from maintainer.fleet.providers.exclusive import exclusive
from maintainer.fleet.providers.slurm_config import JobOptions, JobType, SlurmOptions
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

REHEARSAL = "rehearsal"
"""Stands for a launch id in what is only tried."""

LONGEST_COMMENT = 1024
"""Characters: what fits wherever Slurm keeps comments."""

_LAUNCH_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")
_LOOK_S = 0.5


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

    async def rehearse(self, spec: LaunchSpec) -> str:
        """Have Slurm check the job and estimate its start, without submitting it (`--test-only`)."""
        sbatch, *arguments = self._sbatch(spec, REHEARSAL, self._type(spec))
        await self._command("trying a job", [sbatch, "--test-only", *arguments])
        return f"Slurm would take a job of type {type_name(self._options.types, spec)}"

    async def close(self) -> None:
        """Nothing is held."""

    def _type(self, spec: LaunchSpec) -> JobType:
        """The type with what the pool's options say on top. Raises: Invalid."""
        options = self._options
        kind = chosen_type(options.types, spec)
        check_region(options.regions, spec)
        if spec.is_spot and not options.spot_qos:
            raise Invalid("preemptible jobs are not configured here: give the provider a spot_qos")
        own = pool_options(JobOptions, spec)
        return kind.model_copy(update=own.model_dump(exclude_unset=True))

    def _sbatch(self, spec: LaunchSpec, launch_id: str, kind: JobType) -> Sequence[str]:
        """The command line; the token is not on it. Raises: Invalid."""
        options, left_s = self._options, spec.tags.expires_at - self._clock.wall()
        if left_s < 60:
            raise Invalid(f"launch {launch_id} would expire in {left_s:.0f} s: Slurm counts minutes")
        order = {
            "fingerprint": fingerprint(spec),
            "tags": asdict(spec.tags),
            "type": type_name(options.types, spec),
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
