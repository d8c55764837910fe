"""What Slurm says of jobs: lines of squeue and sacct, states, reasons and refusals, in our words. Pure.

Source: https://slurm.schedmd.com/squeue.html (job states, reasons), https://slurm.schedmd.com/job_reason_codes.html
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from maintainer.fleet.providers.base import (
    Auth,
    Capacity,
    Handle,
    Instance,
    Invalid,
    ProviderError,
    Quota,
    Retry,
    State,
    Tags,
    Unknown,
)

KIND = "slurm"
PREFIX = "astraflow-"

SQUEUE_FORMAT = "%i|%T|%V|%j|%r|%k"
"""Id, state, submitted, name, reason, comment: the last may hold anything."""
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
    "STAGE_OUT": State.GOING,
    "STOPPED": State.GOING,
    "COMPLETING": State.GOING,
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

_NEVER = (
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
"""Reasons why a job waits that do not pass by themselves."""

_DENIED = re.compile(r"AccountNotAllowed|QOSNotAllowed|InvalidAccount|InvalidQOS")
_LIMITED = re.compile(r"(QOS|Assoc|Association|MaxJobs|MaxSubmit|PartitionGroup|Grp)\w*")

_REFUSALS: tuple[tuple[re.Pattern[str], type[ProviderError]], ...] = (
    (re.compile(r"accounting storage is disabled", re.I), Invalid),
    (
        re.compile(
            r"unable to contact|timed out|temporarily|connection refused|connect failure|socket|try again", re.I
        ),
        Retry,
    ),
    (
        re.compile(
            r"job violates accounting/qos policy|submit limit|limit(s)? (was |has been )?(reached|exceeded)", re.I
        ),
        Quota,
    ),
    (re.compile(r"invalid account|invalid qos|permission|not permitted|authentication|invalid user|munge", re.I), Auth),
    (re.compile(r"required (node|partition) not available|nodes are busy", re.I), Capacity),
    (
        re.compile(r"invalid|not available|unrecognized|illegal|more processors|memory specification|exceeds", re.I),
        Invalid,
    ),
)
"""What sbatch and its kin say on stderr. The first that fits counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job."""

    id: str
    name: str
    state: str
    """Slurm's word, in capitals: `PENDING`."""
    reason: str = ""
    submitted_at: float = 0.0
    """Unix seconds."""
    order: Mapping[str, Any] = field(default_factory=dict)
    """What was asked for, from the comment; empty where that is not kept."""

    @property
    def launch_id(self) -> str:
        """From its name."""
        return self.name.removeprefix(PREFIX)


def parse_squeue(text: str) -> tuple[Job, ...]:
    """Lines of SQUEUE_FORMAT; those of others' jobs are left out."""
    found = []
    for line in text.splitlines():
        parts = line.strip().split("|", 5)
        if len(parts) == 6 and parts[3].startswith(PREFIX):
            job, state, submitted, name, reason, comment = parts
            found.append(
                Job(
                    id=job,
                    name=name,
                    state=state,
                    reason="" if reason == "None" else reason,
                    submitted_at=_seconds(submitted),
                    order=parse_order(comment),
                )
            )
    return tuple(found)


def parse_sacct(text: str) -> tuple[Job, ...]:
    """Lines of SACCT_FORMAT with `--parsable2`."""
    found = []
    for line in text.splitlines():
        parts = line.strip().split("|", 5)
        if len(parts) == 6 and parts[3].startswith(PREFIX):
            job, state, submitted, name, code, comment = parts
            word = state.split()[0].rstrip("+") if state else "UNKNOWN"  # as in `CANCELLED by 1000`
            found.append(
                Job(
                    id=job,
                    name=name,
                    state=word,
                    reason=f"exit code {code}" if word == "FAILED" else "",
                    submitted_at=_seconds(submitted),
                    order=parse_order(comment),
                )
            )
    return tuple(found)


def parse_order(comment: str) -> Mapping[str, Any]:
    """What a comment says; empty for one that is not ours."""
    try:
        found = json.loads(comment)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def state_of(job: Job) -> State:
    """Where it stands. A state that Slurm may have one day is one that we do not end it for."""
    if job.state == "PENDING" and is_hopeless(job.reason):
        return State.STUCK
    return _STATES.get(job.state, State.RUNNING)


def is_hopeless(reason: str) -> bool:
    """Whether a job with it waits for ever unless somebody changes something."""
    return reason.startswith(_NEVER)


def read_job(job: Job) -> Instance:
    """As an instance."""
    said = job.order.get("tags")
    state = state_of(job)
    return Instance(
        handle=Handle(provider=KIND, id=job.id, launch_id=job.launch_id),
        tags=Tags(**said) if isinstance(said, dict) and set(said) == set(Tags.__slots__) else None,
        state=state,
        created_at=job.submitted_at,
        type=str(job.order.get("type", "")),
        region=str(job.order.get("region", "")),
        is_spot=bool(job.order.get("is_spot", False)),
        message=_message(job, state),
    )


def want(reason: str) -> type[ProviderError]:
    """What a waiting job waits for: more of its account's limit, a permission, or a free machine.

    >>> want("QOSMaxJobsPerUserLimit").__name__, want("AssocGrpGRES").__name__, want("Resources").__name__
    ('Quota', 'Quota', 'Capacity')
    """
    if _DENIED.match(reason):
        return Auth
    return Quota if _LIMITED.match(reason) else Capacity


def refusal(what: str, code: int, stderr: str) -> ProviderError:
    """What a command that failed said, as one of ours."""
    said = " ".join(stderr.split())[:500] or f"exit code {code}"
    kind = next((kind for pattern, kind in _REFUSALS if pattern.search(said)), Unknown)
    return kind(f"{what}: {said}")


def _message(job: Job, state: State) -> str:
    if state is State.PENDING:
        return f"{want(job.reason).__name__}: {job.reason}" if job.reason else ""
    if state is State.STUCK:
        return f"will not start: {job.reason or job.state}"
    if state is State.GONE:
        return f"{job.state} ({job.reason})" if job.reason else job.state
    return job.state if job.state != "RUNNING" else ""


def _seconds(text: str) -> float:
    """With SLURM_TIME_FORMAT=%s."""
    return float(text) if text.isdigit() else 0.0
