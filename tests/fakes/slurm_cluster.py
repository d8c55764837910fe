"""A real Slurm cluster of one host on loopback, with its own munge, keys, ports and folders; needs root.

Both hosts of its partition are this machine, under two names, so that two jobs run at the same time.
"""

import os
import secrets
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from astraflow.cli.ports import free_ports

PATIENCE_S = 240.0

_CONFIGURATION = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmctldPort={controller_port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
SchedulerParameters=bf_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=30
MailProg=/bin/true
NodeName=one NodeHostname=localhost NodeAddr=127.0.0.1 Port={first_port} CPUs=1
NodeName=two NodeHostname=localhost NodeAddr=127.0.0.1 Port={second_port} CPUs=1
PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=INFINITE
"""
"""Requeued jobs wait for `cred_expire`, 120 s by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmCluster:
    """A running cluster and its commands."""

    folder: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables with which Slurm's commands find the cluster."""
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def call(self, *words: str, **variables: str) -> str:
        """Returns the output of a command. Raises: CalledProcessError."""
        done = subprocess.run(
            words, env={**self.environment, **variables}, capture_output=True, text=True, check=True, timeout=PATIENCE_S
        )
        return done.stdout.strip()

    def state(self, job: str) -> str:
        """Returns the state of a job, such as RUNNING."""
        fields = dict(
            word.split("=", 1) for word in self.call("scontrol", "-o", "show", "job", job).split() if "=" in word
        )
        return fields["JobState"]

    def until_state(self, job: str, *states: str, patience_s: float = PATIENCE_S) -> str:
        """Waits until a job has one of these states; returns it."""
        last = time.monotonic() + patience_s
        while (state := self.state(job)) not in states:
            assert time.monotonic() < last, f"job {job} is {state}"
            time.sleep(0.3)
        return state


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[SlurmCluster]:
    """Starts munge, the controller and two hosts' daemons; ends them with all jobs."""
    folder.mkdir(mode=0o755)
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    controller_port, first_port, second_port = free_ports(3)
    configuration = _CONFIGURATION.format(
        folder=folder, controller_port=controller_port, first_port=first_port, second_port=second_port
    )
    (folder / "slurm.conf").write_text(configuration)
    cluster = SlurmCluster(folder=folder)
    munge = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    munge += [f"--log-file={folder}/munge.log", f"--pid-file={folder}/munge.pid", f"--seed-file={folder}/munge.seed"]
    slurmd = ["slurmd", "-D", "-N"]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for words in (munge, ["slurmctld", "-D"], [*slurmd, "one"], [*slurmd, "two"]):
            with (folder / "output.log").open("ab") as output:
                processes.append(subprocess.Popen(words, env=cluster.environment, stdout=output, stderr=output))
        _wait_until_idle(cluster)
        try:
            yield cluster
        finally:
            cluster.call("scancel", "--full", "--user=root")
            _wait_until_idle(cluster)
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in reversed(processes):
            process.wait(PATIENCE_S)


def _wait_until_idle(cluster: SlurmCluster) -> None:
    """Waits until both hosts answer and run no job."""
    last = time.monotonic() + PATIENCE_S
    while True:
        done = subprocess.run(
            ["sinfo", "--noheader", "--format=%D %t"],
            env=cluster.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        if done.stdout.split() == ["2", "idle"]:
            return
        assert time.monotonic() < last, f"{done.stdout}{done.stderr}{(cluster.folder / 'output.log').read_text()}"
        time.sleep(0.3)
