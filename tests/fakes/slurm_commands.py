"""Simulated sbatch, squeue, sacct and scancel over a folder, and a slurmd that runs the submitted jobs.

`install(directory)` writes the four as executables; they share the folder: a file for each job, one lock,
and `cluster.json`, which a test changes. They refuse unknown options, so that a test fails where real
Slurm would. Standard library only: each command is a process of its own.

Source: https://slurm.schedmd.com/ (man pages of the four, resource limits, job state and reason codes).
"""

import argparse
import fcntl
import getpass
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

Json = dict[str, Any]

TICK_S = 0.01
OVER = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT")

DEFAULTS: Json = {
    "slots": 64,  # jobs that run at once
    "reason": "Resources",  # reason of jobs that wait for a slot
    "partitions": ["main", "spot"],
    "qos": ["", "normal", "preemptible"],
    "kill_wait_s": 1.0,
    "min_job_age_s": 300.0,  # seconds for which ended jobs stay in the queue
    "accounting": True,
    "comments_in_accounting": True,
    "faults": [],  # {"command", "stderr", "is_after"} of the next calls
}


def install(directory: Path) -> Path:
    """Creates the folder and the commands; returns the folder to put on PATH."""
    (directory / "jobs").mkdir(parents=True)
    (directory / "cluster.json").write_text(json.dumps(DEFAULTS))
    commands = directory / "bin"
    commands.mkdir()
    for name in ("sbatch", "squeue", "sacct", "scancel"):
        path = commands / name
        argv = [sys.executable, "-S", "-E", str(Path(__file__).resolve()), str(directory), name]
        path.write_text(f'#!/bin/sh\nexec {shlex.join(argv)} "$@"\n')
        path.chmod(0o755)
    return commands


class Cluster:
    """Cluster state in the folder."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the folder against other changes."""
        with (self.directory / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def config(self) -> Json:
        """Returns the configuration of the cluster."""
        cluster_config: Json = json.loads((self.directory / "cluster.json").read_text())
        return cluster_config

    def configure(self, **changes: Any) -> None:
        """Changes the configuration."""
        with self.locked():
            _write(self.directory / "cluster.json", self.config() | changes)

    def jobs(self) -> list[Json]:
        """Returns the jobs in submission order."""
        return sorted((self.job(path.name) for path in (self.directory / "jobs").iterdir()), key=lambda job: job["id"])

    def job(self, number: str) -> Json:
        """Returns one job."""
        job_record: Json = json.loads((self.directory / "jobs" / number / "job.json").read_text())
        return job_record

    def change(self, number: int, **changes: Any) -> Json:
        """Changes one job."""
        with self.locked():
            job = self.job(str(number)) | changes
            _write(self.directory / "jobs" / str(number) / "job.json", job)
            return job

    def submit(self, job: Json) -> int:
        """Adds a pending job and starts its slurmd."""
        with self.locked():
            number = 1 + max((job["id"] for job in self.jobs()), default=1000)
            job_folder = self.directory / "jobs" / str(number)
            draft = self.directory / f".{number}"
            draft.mkdir()
            fields = {"id": number, "state": "PENDING", "reason": "None", "submit": int(time.time()), "code": "0:0"}
            _write(draft / "job.json", job | fields)
            draft.rename(job_folder)
        self.start(number)
        return number

    def start(self, number: int) -> None:
        """Starts the process that acts as slurmctld and slurmd for this job."""
        argv = [sys.executable, "-S", "-E", str(Path(__file__).resolve()), str(self.directory), "live", str(number)]
        nothing = subprocess.DEVNULL
        subprocess.run(["setsid", "--fork", *argv], check=True, stdin=nothing, stdout=nothing, stderr=nothing)


def _write(path: Path, content: Json) -> None:
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(content))
    draft.replace(path)


class ApiRefusal(Exception):
    """Error that a command prints to stderr before it exits."""


def sbatch(cluster: Cluster, arguments: list[str]) -> str:
    """Submits a job."""
    parser = argparse.ArgumentParser(prog="sbatch", allow_abbrev=False)
    for name in ("job-name", "comment", "dependency", "time", "signal", "export", "output"):
        parser.add_argument(f"--{name}", required=True)
    for name in (
        "partition",
        "account",
        "qos",
        "constraint",
        "gres",
        "cpus-per-task",
        "mem",
        "reservation",
        "exclude",
        "nice",
    ):
        parser.add_argument(f"--{name}", default="")
    for name in ("nodes", "ntasks"):
        parser.add_argument(f"--{name}", type=int, default=1)
    for name in ("parsable", "no-requeue", "exclusive", "test-only"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options, config = parser.parse_args(arguments), cluster.config()
    if options.partition and options.partition not in config["partitions"]:
        raise ApiRefusal(
            f"sbatch: error: invalid partition specified: {options.partition}\n"
            + failed("Invalid partition name specified")
        )
    if options.qos not in config["qos"]:
        raise ApiRefusal(failed("Invalid qos specification"))
    script = Path(options.script)
    if not script.read_text().startswith("#!"):
        raise ApiRefusal("sbatch: error: This does not look like a batch script.")
    if options.test_only:
        sys.stderr.write(f"sbatch: Job 4711 to start at {stamp(int(time.time()))} using 1 processors on nodes n1\n")
        return ""
    names = [name for name in options.export.split(",") if name != "NONE"]
    job = {
        "name": options.job_name,
        "comment": options.comment,
        "user": getpass.getuser(),
        "partition": options.partition or config["partitions"][0],
        "qos": options.qos,
        "is_singleton": options.dependency == "singleton",
        "minutes": int(options.time),
        "signal_s": int(options.signal.rpartition("@")[2]),
        "output": options.output,
        "script": script.read_text(),  # copied at submission, as Slurm does
        "arguments": options.arguments,
        "environment": {name: os.environ[name] for name in names if name in os.environ},
    }
    return f"{cluster.submit(job)}\n"


def failed(why: str) -> str:
    """Formats an error as sbatch does."""
    return f"sbatch: error: Batch job submission failed: {why}"


def squeue(cluster: Cluster, arguments: list[str]) -> str:
    """Returns the queue, with recently ended jobs."""
    parser = argparse.ArgumentParser(prog="squeue", allow_abbrev=False)
    parser.add_argument("--noheader", action="store_true", required=True)
    for name in ("states", "user", "format"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--name", default="")
    options, oldest = parser.parse_args(arguments), time.time() - cluster.config()["min_job_age_s"]
    shown = [
        job
        for job in cluster.jobs()
        if options.user == job["user"]
        and options.name in ("", job["name"])
        and (job["state"] not in OVER or (options.states == "all" and job.get("ended", 0) > oldest))
    ]
    return "".join(line(options.format, job) + "\n" for job in shown)


def line(form: str, job: Json) -> str:
    """Formats a line by squeue's `--format`."""
    fields = {"%i": job["id"], "%T": job["state"], "%V": stamp(job["submit"]), "%j": job["name"], "%r": job["reason"]}
    fields["%k"] = job["comment"] or "(null)"
    for field, value in fields.items():
        form = form.replace(field, str(value))
    return form


def stamp(at: int) -> str:
    """Formats a time by SLURM_TIME_FORMAT."""
    return time.strftime(os.environ.get("SLURM_TIME_FORMAT", "%Y-%m-%dT%H:%M:%S"), time.localtime(at))


def sacct(cluster: Cluster, arguments: list[str]) -> str:
    """Returns the accounting."""
    parser = argparse.ArgumentParser(prog="sacct", allow_abbrev=False)
    for name in ("noheader", "parsable2", "allocations"):
        parser.add_argument(f"--{name}", action="store_true", required=True)
    for name in ("starttime", "name", "format"):
        parser.add_argument(f"--{name}", required=True)
    options, config = parser.parse_args(arguments), cluster.config()
    if not config["accounting"]:
        raise ApiRefusal("Slurm accounting storage is disabled")
    lines = []
    for job in cluster.jobs():
        if job["name"] in options.name.split(","):
            state = f"CANCELLED by {os.getuid()}" if job["state"] == "CANCELLED" else job["state"]
            fields = {"JobIDRaw": job["id"], "State": state, "Submit": stamp(job["submit"]), "JobName": job["name"]}
            fields |= {"ExitCode": job["code"], "Comment": job["comment"] if config["comments_in_accounting"] else ""}
            lines.append("|".join(str(fields[name]) for name in options.format.split(",")) + "\n")
    return "".join(lines)


def scancel(cluster: Cluster, arguments: list[str]) -> str:
    """Requests the end of jobs."""
    for number in arguments:
        if not (cluster.directory / "jobs" / number).exists():
            raise ApiRefusal(f"scancel: error: Kill job error on job id {number}: Invalid job id specified")
        job = cluster.job(number)
        if job["state"] == "PENDING":
            cluster.change(job["id"], state="CANCELLED", ended=time.time())
        elif job["state"] == "RUNNING":
            cluster.change(job["id"], state="COMPLETING", reason="None", asked=time.time())
    return ""


def live(cluster: Cluster, arguments: list[str]) -> str:
    """Runs a job from its submission to its end."""
    number = arguments[0]
    while (job := cluster.job(number))["state"] == "PENDING":
        reason = pending_reason(cluster, job)
        if not reason:
            with cluster.locked():
                job = cluster.job(number)
                if job["state"] == "PENDING" and not pending_reason(cluster, job):
                    job |= {"state": "RUNNING", "reason": "None", "began": time.time()}
                    _write(cluster.directory / "jobs" / number / "job.json", job)
                    break
        elif reason != job["reason"]:
            with cluster.locked():
                if cluster.job(number)["state"] == "PENDING":
                    _write(cluster.directory / "jobs" / number / "job.json", cluster.job(number) | {"reason": reason})
        time.sleep(TICK_S)
    if job["state"] == "RUNNING":
        run(cluster, job)
    return ""


def pending_reason(cluster: Cluster, job: Json) -> str:
    """Returns the pending reason; empty for a job that may start."""
    config, others = cluster.config(), [listed_job for listed_job in cluster.jobs() if listed_job["id"] != job["id"]]
    before = [
        listed_job
        for listed_job in others
        if listed_job["name"] == job["name"] and listed_job["id"] < job["id"] and listed_job["state"] not in OVER
    ]
    if job["is_singleton"] and before:
        return "Dependency"
    running = sum(1 for job in others if job["state"] in ("RUNNING", "COMPLETING"))
    return str(config["reason"]) if running >= config["slots"] else ""


def run(cluster: Cluster, job: Json) -> None:
    """Runs the batch step."""
    job_folder, kill_wait_s = cluster.directory / "jobs" / str(job["id"]), cluster.config()["kill_wait_s"]
    script = job_folder / "slurm_script"
    script.write_text(job["script"])
    script.chmod(0o700)
    environment = {**job["environment"], "SLURM_JOB_ID": str(job["id"]), "SLURM_JOB_NAME": job["name"]}
    output = Path(job["output"].replace("%j", str(job["id"])))
    with output.open("ab") as log:
        process = subprocess.Popen(
            [str(script), *job["arguments"]],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    cluster.change(job["id"], pid=process.pid)
    end, last_at, requested_at = "", job["began"] + 60 * job["minutes"] - job["signal_s"], 0.0
    while process.poll() is None:
        now = time.time()
        current = cluster.job(str(job["id"]))
        if current["state"] == "NODE_FAIL" or (requested_at and now > requested_at + kill_wait_s):
            os.killpg(process.pid, signal.SIGKILL)
        elif current["state"] == "COMPLETING" and not requested_at:
            end, requested_at = "CANCELLED", now
            os.killpg(process.pid, signal.SIGTERM)
        elif now > last_at and not end:
            end = "TIMEOUT"
            os.kill(process.pid, signal.SIGTERM)  # signal of `--signal=B:TERM@...`
        time.sleep(TICK_S)
    code = process.returncode
    if cluster.job(str(job["id"]))["state"] not in ("NODE_FAIL", "PREEMPTED"):
        ended = end or ("COMPLETED" if code == 0 else "FAILED")
        shown = f"{code}:0" if code >= 0 else f"0:{-code}"
        cluster.change(job["id"], state=ended, ended=time.time(), code=shown, reason="None")


def end_all(cluster: Cluster) -> None:
    """Ends all jobs that a test left running."""
    for job in cluster.jobs():
        if job["state"] not in OVER:
            cluster.change(job["id"], state="NODE_FAIL", ended=time.time())
            if "pid" in job:
                with suppress(ProcessLookupError):
                    os.killpg(job["pid"], signal.SIGKILL)


def lose(cluster: Cluster, job: Json, *, state: str = "NODE_FAIL") -> None:
    """Ends the machine of a job."""
    cluster.change(job["id"], state=state, ended=time.time())
    if "pid" in job:  # it has started
        with suppress(ProcessLookupError):
            os.killpg(job["pid"], signal.SIGKILL)


def purge(cluster: Cluster, number: int) -> None:
    """Removes a job entirely."""
    shutil.rmtree(cluster.directory / "jobs" / str(number))


COMMANDS = {"sbatch": sbatch, "squeue": squeue, "sacct": sacct, "scancel": scancel, "live": live}


def main(arguments: list[str]) -> int:
    """Runs one of the commands."""
    directory, name, *rest = arguments
    cluster = Cluster(Path(directory))
    with (cluster.directory / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps([name, *rest]) + "\n")
    fault = inject_fault(cluster, name)
    try:
        if fault is not None and not fault.get("is_after"):
            raise ApiRefusal(fault["stderr"])
        output = COMMANDS[name](cluster, rest)
        if fault is not None:
            raise ApiRefusal(fault["stderr"])
    except ApiRefusal as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    sys.stdout.write(output)
    return 0


def inject_fault(cluster: Cluster, name: str) -> Json | None:
    """Makes the next call of that command fail."""
    with cluster.locked():
        config = cluster.config()
        matching_fault: Json | None = next((fault for fault in config["faults"] if fault["command"] == name), None)
        if matching_fault is not None:
            config["faults"].remove(matching_fault)
            _write(cluster.directory / "cluster.json", config)
        return matching_fault


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
