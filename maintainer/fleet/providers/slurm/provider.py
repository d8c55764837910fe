"""Jobs of a Slurm cluster as instances: one batch job per node, with Slurm's commands.

Slurm allows several jobs of one name. A launch therefore searches for its name first, under a lock on this host, and
submits with `--dependency=singleton`: if two fleet services submit one launch, the second job waits for the first to
end, and is found and cancelled before. The token is in the job's environment, which its owner and administrators can
read.
"""

import asyncio
import getpass
import json
import os
from collections.abc import Sequence
from pathlib import Path

from astraflow.runtime.clock import Clock
from astraflow.runtime.processes.child import run_command
from maintainer.fleet.providers import providers
from maintainer.fleet.providers.base import (
    Capabilities,
    Handle,
    Instance,
    InvalidError,
    LaunchSpec,
    Quote,
    RetireResult,
    RetryError,
    State,
    UnknownError,
    join_arguments,
)
from maintainer.fleet.providers.launches import (
    check_launch_id,
    check_region,
    check_same_spec,
    chosen_type,
    configured_quote,
    launch_lock,
    launch_order,
    life_s,
    pool_options,
    type_name,
    without_token,
)
from maintainer.fleet.providers.places import LaunchPlaces
from maintainer.fleet.providers.slurm.config import JobOptions, JobType, SlurmOptions
from maintainer.fleet.providers.slurm.jobs import (
    KIND,
    PREFIX,
    SACCT_FORMAT,
    SQUEUE_FORMAT,
    Job,
    parse_sacct,
    parse_squeue,
    pending_error,
    read_job,
    refusal,
    state_of,
)

SCRIPT = Path(__file__).with_name("slurm_node.sh")
TOKEN = "ASTRAFLOW_TOKEN"  # noqa: S105 (the variable's name, not a secret)

PREFLIGHT_ID = "preflight"
"""Placeholder for the launch id in dry runs."""

LONGEST_COMMENT = 1024
"""Maximum length of a comment that every Slurm storage accepts. Characters."""

_POLL_S = 0.5


@providers.register(KIND, options=SlurmOptions)
class Slurm:
    """Slurm jobs of this user. `directory` holds only lock files and the places of launches."""

    def __init__(self, options: SlurmOptions, *, clock: Clock, directory: Path) -> None:
        self._options = options
        self._clock = clock
        self._directory = directory
        self._places = LaunchPlaces(directory)
        self._place = f"{getpass.getuser()}@{os.environ.get('SLURM_CONF', 'slurm')}"
        """User and cluster, whose jobs this provider sees."""

    async def launch(self, spec: LaunchSpec, launch_id: str) -> Handle:
        """Submits a job unless one has that name."""
        name, kind = _job_name(launch_id), self._type(spec)
        argv = self._sbatch(spec, launch_id, kind)
        async with launch_lock(self._directory, launch_id):
            existing_jobs = await self._find(name)
            if existing_jobs:
                job = existing_jobs[0].id
                if existing_jobs[0].order:
                    check_same_spec(existing_jobs[0].order.get("fingerprint"), spec, launch_id)
            else:
                await asyncio.to_thread(self._places.remember, launch_id, self._place)
                output = await self._command("submit a job", argv, token=spec.token)
                job = output.strip().partition(";")[0]
                if not job.isdigit():
                    raise UnknownError(
                        f"cannot read sbatch's answer {output[:80]!r}: it is no job id; check the Slurm commands",
                        code="provider.no_job_id",
                    )
        handle = Handle(provider=KIND, id=job, launch_id=launch_id)
        if self._options.schedule_wait_s:
            await self._wait_until_started(name, handle)
        return handle

    async def retire(self, launch_id: str, *, keep: Handle | None = None) -> RetireResult:
        """Cancels every job of the launch: Slurm sends SIGTERM, and SIGKILL after the cluster's KillWait."""
        live_jobs = [
            job
            for job in await self._queue(_job_name(launch_id))
            if state_of(job) is not State.GONE and (keep is None or job.id != keep.id)
        ]
        to_cancel = [job.id for job in live_jobs if state_of(job) is not State.TERMINATING]
        if to_cancel:
            try:
                await self._command("cancel a job", ["scancel", *to_cancel])
            except InvalidError:
                return RetireResult.TERMINATING  # it has just ended: the next call finds it gone
        if live_jobs:
            return RetireResult.TERMINATING
        if keep is None:
            await asyncio.to_thread(self._places.end, launch_id, (self._place,))
        return RetireResult.GONE

    async def list(self, cluster: str) -> tuple[Instance, ...]:
        """Lists this user's jobs with the cluster's tag in the comment."""
        instances = [read_job(job) for job in await self._queue()]
        own = [instance for instance in instances if instance.tags is not None and instance.tags.cluster == cluster]
        return await asyncio.to_thread(self._places.listed, {self._place: own})

    async def describe(self, handle: Handle) -> Instance:
        """Reads a job from the queue, or from the accounting if it has ended."""
        for job in await self._find(PREFIX + handle.launch_id):
            if job.id == handle.id:
                return read_job(job)
        await asyncio.to_thread(self._places.check, handle.launch_id, (self._place,))
        return Instance(handle=handle, tags=None, state=State.GONE)

    def capabilities(self) -> Capabilities:
        """Returns the capabilities, as configured."""
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
        """Returns the configured price of the type."""
        kind = self._type(spec)
        discount = self._options.spot_discount if spec.is_spot else 0.0
        return configured_quote(kind.usd_per_hour, launch_delay_s=self._options.launch_delay_s, discount=discount)

    async def preflight(self, spec: LaunchSpec) -> str:
        """Lets Slurm check the job without submitting it (`--test-only`)."""
        sbatch, *arguments = self._sbatch(spec, PREFLIGHT_ID, self._type(spec))
        await self._command("check a job", [sbatch, "--test-only", *arguments])
        return f"Slurm would accept a job of type {type_name(self._options.types, spec)}"

    async def close(self) -> None:
        """Does nothing: no connections are held."""

    def _type(self, spec: LaunchSpec) -> JobType:
        """Returns the spec's type, overridden by the pool's options. Raises: InvalidError."""
        options = self._options
        kind = chosen_type(options.types, spec)
        check_region(options.regions, spec)
        if spec.is_spot and not options.spot_qos:
            raise InvalidError(
                "cannot launch: preemptible jobs are not configured; set spot_qos of the provider",
                code="provider.spot_unsupported",
            )
        own = pool_options(JobOptions, spec)
        return kind.model_copy(update=own.model_dump(exclude_unset=True))

    def _sbatch(self, spec: LaunchSpec, launch_id: str, kind: JobType) -> Sequence[str]:
        """Returns the command line, without the token. Raises: InvalidError."""
        options, left_s = self._options, life_s(spec, launch_id, now=self._clock.wall())
        order = launch_order(spec, launch_id, kind=type_name(options.types, spec))
        comment = json.dumps(order, separators=(",", ":"))
        if len(comment) > LONGEST_COMMENT:
            raise InvalidError(
                f"cannot launch {launch_id}: its tags have {len(comment)} of {LONGEST_COMMENT} characters; "
                "use shorter names",
                code="provider.tags_too_long",
            )
        last_s = max(1, min(120, int(left_s) - 60))
        options_by_name = {
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
            f"--export={','.join((TOKEN, *self._forwarded_variables()))}",
            f"--output={options.log_directory.rstrip('/')}/{PREFIX}%j.log"
            if options.log_directory
            else "--output=/dev/null",
            *(f"--{name}={value}" for name, value in options_by_name.items() if value not in ("", None)),
            *(["--exclusive"] if kind.is_exclusive else []),
            str(SCRIPT),
            *options.program,
            *join_arguments(spec, launch_id),
        ]

    def _forwarded_variables(self) -> tuple[str, ...]:
        return tuple(name for name in self._options.forwarded_variables if name in os.environ)

    async def _find(self, name: str) -> tuple[Job, ...]:
        """Returns jobs of a name, in the queue or the accounting."""
        queued = await self._queue(name)
        if queued or not self._options.has_accounting:
            return queued
        argv = ["sacct", "--noheader", "--parsable2", "--allocations", "--starttime=now-30days"]
        output = await self._command("read the accounting", [*argv, f"--name={name}", f"--format={SACCT_FORMAT}"])
        return tuple(job for job in parse_sacct(output) if job.name == name)

    async def _queue(self, name: str = "") -> tuple[Job, ...]:
        argv = ["squeue", "--noheader", "--states=all", f"--user={getpass.getuser()}", f"--format={SQUEUE_FORMAT}"]
        output = await self._command("read the queue", [*argv, *([f"--name={name}"] if name else [])])
        return tuple(job for job in parse_squeue(output) if not name or job.name == name)

    async def _wait_until_started(self, name: str, handle: Handle) -> None:
        """Waits until the job starts. Cancels it on timeout. Raises: QuotaError, CapacityError or AuthError."""
        give_up_at = self._clock.now() + self._options.schedule_wait_s
        while True:
            waiting = [job for job in await self._queue(name) if job.id == handle.id and job.state == "PENDING"]
            if not waiting:
                return
            if self._clock.now() >= give_up_at:
                await self._command("cancel a job", ["scancel", handle.id])
                raise pending_error(waiting[0].reason)(
                    f"cannot start the job within {self._options.schedule_wait_s:g} s: {waiting[0].reason}; retry later"
                )
            await asyncio.sleep(_POLL_S)

    async def _command(self, what: str, argv: Sequence[str], *, token: str = "") -> str:
        """Runs a command, and kills it when cancelled; returns its output. what: verb phrase for errors."""
        environment = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
        environment.pop(TOKEN, None)  # the token of the fleet service, not of the node
        environment |= {TOKEN: token} if token else {}
        limit_s = self._options.timeout_s
        try:
            result = await run_command(*argv, environment=environment, limit_s=limit_s)
        except TimeoutError:
            raise RetryError(
                f"cannot {what}: no answer from {argv[0]} within {limit_s:g} s; retry later", code="provider.no_answer"
            ) from None
        except OSError as problem:
            raise InvalidError(
                f"cannot {what}: {argv[0]} cannot be started here: {problem.strerror}; install Slurm's commands",
                code="provider.command_missing",
            ) from None
        if result.code:
            raise without_token(refusal(what, result.code, result.errors), token)
        return result.output


def _job_name(launch_id: str) -> str:
    check_launch_id(launch_id)
    return PREFIX + launch_id


def _minutes(left_s: float) -> int:
    """Returns the job's time limit in minutes, at most a year."""
    return max(1, min(365 * 24 * 60, int(left_s // 60)))
