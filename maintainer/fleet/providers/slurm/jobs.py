"""Parses Slurm's output: jobs in squeue and sacct, states, reasons and errors. Pure.

Source: https://slurm.schedmd.com/squeue.html (job states, reasons), https://slurm.schedmd.com/job_reason_codes.html
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from maintainer.fleet.providers.base import (
    AuthError,
    CapacityError,
    Handle,
    Instance,
    InvalidError,
    ProviderError,
    QuotaError,
    RetryError,
    State,
    UnknownError,
)
from maintainer.fleet.providers.launches import ordered_instance, parse_order

KIND = "slurm"
PREFIX = "astraflow-"

SQUEUE_FORMAT = "%i|%T|%V|%j|%r|%k"
"""Id, state, submission time, name, reason, comment. The comment may contain any text."""
SACCT_FORMAT = "JobIDRaw,State,Submit,JobName,ExitCode,Comment"

_STATES = {
    "PENDING": State.PENDING,
    "CONFIGURING": State.PENDING,
    "REQUEUED": State.PENDING,
    "REQUEUE_FED": State.PENDING,
    "RESV_DEL_HOLD": State.STUCK,
    "REQUEUE_HOLD": State.STUCK,
    "SPECIAL_EXIT": State.STUCK,
    "RUNNING": State.RUNNING,
    "RESIZING": State.RUNNING,
    "SIGNALING": State.RUNNING,
    "SUSPENDED": State.RUNNING,
    "STAGE_OUT": State.TERMINATING,
    "STOPPED": State.TERMINATING,
    "COMPLETING": State.TERMINATING,
    "BOOT_FAIL": State.GONE,
    "CANCELLED": State.GONE,
    "COMPLETED": State.GONE,
    "DEADLINE": State.GONE,
    "FAILED": State.GONE,
    "LAUNCH_FAILED": State.GONE,
    "NODE_FAIL": State.GONE,
    "OUT_OF_MEMORY": State.GONE,
    "PREEMPTED": State.GONE,
    "RECONFIG_FAIL": State.GONE,
    "REVOKED": State.GONE,
    "TIMEOUT": State.GONE,
}

_PERMANENT_REASONS = (
    "AccountNotAllowed",
    "AssocMaxCpuPerJobLimit",
    "AssocMaxNodePerJobLimit",
    "AssocMaxWallDurationPerJobLimit",
    "BadConstraints",
    "DependencyNeverSatisfied",
    "InvalidAccount",
    "InvalidQOS",
    "JobHeldAdmin",
    "JobHeldUser",
    "JobLaunchFailure",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
    "QOSMaxCpuPerJobLimit",
    "QOSMaxNodePerJobLimit",
    "QOSMaxWallDurationPerJobLimit",
    "QOSNotAllowed",
    "QOSTimeLimit",
    "ReservationDeleted",
)
"""Reasons of waiting jobs that do not resolve by themselves."""

_DENIED = re.compile(r"AccountNotAllowed|QOSNotAllowed|InvalidAccount|InvalidQOS")
_LIMITED = re.compile(r"(QOS|Assoc|Association|MaxJobs|MaxSubmit|PartitionGroup|Grp)\w*")

_REFUSALS: tuple[tuple[re.Pattern[str], type[ProviderError]], ...] = (
    (re.compile(r"accounting storage is disabled", re.I), InvalidError),
    (
        re.compile(
            r"unable to contact|timed out|temporarily|connection (refused|reset|failure)|connect failure|socket"
            r"|try again|zero bytes|receive failure|send failure|no route to host|not connected|not usable now",
            re.I,
        ),
        RetryError,
    ),
    (
        re.compile(
            r"job violates accounting/qos policy|submit limit|limit(s)? (was |has been )?(reached|exceeded)", re.I
        ),
        QuotaError,
    ),
    (
        re.compile(r"invalid account|invalid qos|permission|not permitted|authentication|invalid user|munge", re.I),
        AuthError,
    ),
    (
        re.compile(r"required (node|partition) not available|nodes are busy|licenses? .*not available", re.I),
        CapacityError,
    ),
    (
        re.compile(
            r"invalid|not available|unrecognized|illegal|more processors|memory specification|exceeds"
            r"|already completing",
            re.I,
        ),
        InvalidError,
    ),
)
"""Error messages of Slurm's commands on stderr. The first match counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A Slurm job."""

    id: str
    name: str
    state: str
    """State in Slurm's terms: `PENDING`."""
    reason: str = ""
    submitted_at: float = 0.0
    """Unix seconds."""
    order: Mapping[str, Any] = field(default_factory=dict)
    """Launch order in the comment; empty when the comment is missing."""

    @property
    def launch_id(self) -> str:
        """Launch id in the job's name."""
        return self.name.removeprefix(PREFIX)


def parse_squeue(text: str) -> tuple[Job, ...]:
    """Parses lines in SQUEUE_FORMAT; skips foreign jobs."""
    jobs = []
    for line in text.splitlines():
        columns = line.strip().split("|", 5)
        if len(columns) == 6 and columns[3].startswith(PREFIX):
            job, state, submitted, name, reason, comment = columns
            jobs.append(
                Job(
                    id=job,
                    name=name,
                    state=state,
                    reason="" if reason == "None" else reason,
                    submitted_at=_seconds(submitted),
                    order=parse_order(comment),
                )
            )
    return tuple(jobs)


def parse_sacct(text: str) -> tuple[Job, ...]:
    """Parses lines in SACCT_FORMAT with `--parsable2`."""
    jobs = []
    for line in text.splitlines():
        columns = line.strip().split("|", 5)
        if len(columns) == 6 and columns[3].startswith(PREFIX):
            job, state, submitted, name, code, comment = columns
            word = state.split()[0].rstrip("+") if state else "UNKNOWN"  # as in `CANCELLED by 1000`
            jobs.append(
                Job(
                    id=job,
                    name=name,
                    state=word,
                    reason=f"exit code {code}" if word == "FAILED" else "",
                    submitted_at=_seconds(submitted),
                    order=parse_order(comment),
                )
            )
    return tuple(jobs)


def state_of(job: Job) -> State:
    """Returns a job's state. Unknown states count as running, so that the job is not terminated."""
    if job.state == "PENDING" and can_never_start(job.reason):
        return State.STUCK
    return _STATES.get(job.state, State.RUNNING)


def can_never_start(reason: str) -> bool:
    """Returns whether a job with this reason can never start without a change."""
    return reason.startswith(_PERMANENT_REASONS)


def read_job(job: Job) -> Instance:
    """Returns the instance of a job."""
    state = state_of(job)
    return ordered_instance(
        job.order,
        handle=Handle(provider=KIND, id=job.id, launch_id=job.launch_id),
        state=state,
        created_at=job.submitted_at,
        notice_at=job.submitted_at if job.state == "PREEMPTED" else None,  # Slurm shows no notice
        message=_message(job, state),
    )


def pending_error(reason: str) -> type[ProviderError]:
    """Returns the error type for a waiting job: quota, permission or capacity.

    >>> [pending_error(reason).__name__ for reason in ("QOSMaxJobsPerUserLimit", "AssocGrpGRES", "Resources")]
    ['QuotaError', 'QuotaError', 'CapacityError']
    """
    if _DENIED.match(reason):
        return AuthError
    return QuotaError if _LIMITED.match(reason) else CapacityError


def refusal(what: str, code: int, stderr: str) -> ProviderError:
    """Returns the provider error for a failed command."""
    message = " ".join(stderr.split())[:500] or f"exit code {code}"
    kind = next((kind for pattern, kind in _REFUSALS if pattern.search(message)), UnknownError)
    return kind(f"cannot {what}: {message}")


def _message(job: Job, state: State) -> str:
    if state is State.PENDING:
        return f"{pending_error(job.reason).__name__}: {job.reason}" if job.reason else ""
    if state is State.STUCK:
        return f"cannot start: {job.reason or job.state}"
    if state is State.GONE:
        return f"{job.state} ({job.reason})" if job.reason else job.state
    return job.state if job.state != "RUNNING" else ""


def _seconds(text: str) -> float:
    """Parses a time in the format SLURM_TIME_FORMAT=%s."""
    return float(text) if text.isdigit() else 0.0
