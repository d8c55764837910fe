"""Instances that run, which moto does not provide. Each runs its user data as a real process and may be preempted.

On EC2 every instance is a separate machine; here all share one, so the runner gives each its own metadata service
and folder for secrets, and replaces 169.254.169.254 and /run/astraflow in the script by their addresses. As on EC2, the
script runs once; the instance ends with the script; when the instance is terminated, all its processes get SIGTERM and
then SIGKILL.
"""

import base64
import json
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

POLL_S = 0.2
GRACE_S = 10.0
METADATA, SECRETS = "http://169.254.169.254", "/run/astraflow"

_ACTION = "/latest/meta-data/spot/instance-action"
_TOKEN = "/latest/api/token"
_INHERITED_VARIABLES = ("PATH", "HOME", "LANG", "PYTHONPATH", "VIRTUAL_ENV", "OMP_NUM_THREADS")


class MetadataService:
    """Metadata service of one instance: session tokens and the interruption notice."""

    def __init__(self) -> None:
        self.notice_at: float | None = None
        self.looks = 0
        self._token = secrets.token_hex(8)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, name="metadata")
        self._thread.start()

    @property
    def url(self) -> str:
        """Address that replaces the link-local one."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stops the service."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, method: str, path: str, token: str | None) -> tuple[int, str]:
        """Returns the status and body of a response."""
        if (method, path) == ("PUT", _TOKEN):
            return 200, self._token
        if token != self._token:
            return 401, ""
        if (method, path) != ("GET", _ACTION) or self.notice_at is None:
            self.looks += path == _ACTION
            return 404, ""
        at = datetime.fromtimestamp(self.notice_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return 200, json.dumps({"action": "terminate", "time": at})

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._reply("GET")

            def do_PUT(self) -> None:
                self._reply("PUT")

            def _reply(self, method: str) -> None:
                status, body = service.answer(method, self.path, self.headers.get("X-aws-ec2-metadata-token"))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the library's name)
                pass

        return Handler


@dataclass(kw_only=True)
class Machine:
    """Processes of one instance."""

    directory: Path
    process: subprocess.Popen[bytes]
    metadata: MetadataService
    notified_at: float | None = None
    is_over: bool = False
    preempted_at: float | None = None

    @property
    def log(self) -> str:
        """Output so far."""
        return (self.directory / "log").read_text()

    def pids(self) -> list[int]:
        """Returns the running processes of the script's session."""
        pids = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(ProcessLookupError, FileNotFoundError):
                    state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                    if int(session) == self.process.pid and state != "Z":
                        pids.append(int(entry.name))
        return pids

    def command_lines(self) -> list[str]:
        """Returns the command lines of the running processes."""
        lines = []
        for pid in self.pids():
            with suppress(FileNotFoundError):
                lines.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
        return lines


@dataclass(kw_only=True)
class InstanceRunner:
    """Runs the instances of one EC2 region."""

    ec2: "EC2Client"
    directory: Path
    machines: dict[str, Machine] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    problems: list[BaseException] = field(default_factory=list)

    def interrupt(self, instance_id: str, *, in_s: float) -> None:
        """Sends the interruption notice now and ends a spot instance after this delay."""
        machine = self.machines[instance_id]
        machine.preempted_at = machine.metadata.notice_at = time.time() + in_s

    def run(self) -> None:
        """Runs until `stop`; then ends all instances."""
        try:
            while not self._stop.wait(POLL_S):
                self._look()
        except BaseException as problem:
            self.problems.append(problem)
        finally:
            for machine in self.machines.values():
                _signal(machine, signal.SIGTERM)
            for machine in self.machines.values():
                _end(machine)

    def stop(self) -> None:
        """Makes `run` end soon."""
        self._stop.set()

    def _look(self) -> None:
        running = self._running()
        for instance_id in running:
            if instance_id not in self.machines:
                self.machines[instance_id] = self._boot(instance_id)
        for instance_id, machine in self.machines.items():
            if machine.is_over:
                continue
            if instance_id not in running:
                self._shut_down(machine)
            elif machine.process.poll() is not None:
                self.ec2.terminate_instances(InstanceIds=[instance_id])  # instance-initiated shutdown behaviour
            elif machine.preempted_at is not None and time.time() >= machine.preempted_at:
                _signal(machine, signal.SIGKILL)
                self.ec2.terminate_instances(InstanceIds=[instance_id])

    def _running(self) -> set[str]:
        wanted: Any = [{"Name": "instance-state-name", "Values": ["running"]}]
        pages = self.ec2.get_paginator("describe_instances").paginate(Filters=wanted)
        return {
            instance["InstanceId"]
            for page in pages
            for group in page["Reservations"]
            for instance in group["Instances"]
        }

    def _shut_down(self, machine: Machine) -> None:
        if machine.notified_at is None:
            machine.notified_at = time.monotonic()
            _signal(machine, signal.SIGTERM, only=machine.process.pid)
        elif not machine.pids() or time.monotonic() - machine.notified_at > GRACE_S:
            _end(machine)

    def _boot(self, instance_id: str) -> Machine:
        attribute = self.ec2.describe_instance_attribute(InstanceId=instance_id, Attribute="userData")
        script = base64.b64decode(attribute["UserData"]["Value"]).decode()
        ends = self.ec2.describe_instance_attribute(
            InstanceId=instance_id, Attribute="instanceInitiatedShutdownBehavior"
        )
        assert ends["InstanceInitiatedShutdownBehavior"]["Value"] == "terminate"
        assert "shutdown -h" not in script, "it would end this machine"
        metadata, instance_folder = MetadataService(), self.directory / instance_id
        instance_folder.mkdir(parents=True)
        script = script.replace(METADATA, metadata.url).replace(SECRETS, str(instance_folder / "secrets"))
        (instance_folder / "user-data").write_text(script)
        environment = {key: os.environ[key] for key in _INHERITED_VARIABLES if key in os.environ}
        with (instance_folder / "log").open("wb") as log:
            process = subprocess.Popen(
                ["/bin/sh", str(instance_folder / "user-data")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        return Machine(directory=instance_folder, process=process, metadata=metadata)


@contextmanager
def running_instances(ec2: "EC2Client", directory: Path) -> Iterator[InstanceRunner]:
    """Runs instances until the block ends; then ends all processes."""
    runner = InstanceRunner(ec2=ec2, directory=directory)
    thread = threading.Thread(target=runner.run, name="instances")
    thread.start()
    try:
        yield runner
    finally:
        runner.stop()
        thread.join()
        if runner.problems:
            raise runner.problems[0]


def _signal(machine: Machine, number: signal.Signals, *, only: int = 0) -> None:
    for pid in [only] if only else machine.pids():
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _end(machine: Machine) -> None:
    """Kills the remaining processes."""
    if machine.is_over:
        return
    _wait(lambda: not machine.pids(), 2.0)
    _signal(machine, signal.SIGKILL)
    machine.process.wait()
    machine.metadata.close()
    machine.is_over = True


def _wait(holds: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
