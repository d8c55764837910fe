"""Start and supervision of jobs, on the side of the fork server."""

import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from . import kernel, programs, usage
from .confinement import Confinement, Limits
from .guardian import Launch, guard

_TICK_S = 0.05
_AUDIT_S = 0.25
"""Interval at which memory and disk of a running job are measured."""
_COMMAND_S = 5.0
"""Timeout for an interpreter to take a command."""
_CHUNK_BYTES = 2**16


class HostLeft(Exception):
    """The process that started this fork server is gone."""


class Broken(Exception):
    """The sandbox itself failed."""


@dataclass
class Output:
    """Collected output of a stream."""

    descriptor: int
    limit: int
    content: bytearray = field(default_factory=bytearray)
    is_cut: bool = False
    is_open: bool = True

    def read(self) -> None:
        """Reads what is there; discards what exceeds the limit."""
        try:
            chunk = os.read(self.descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return
        self.is_open = bool(chunk)
        stored = chunk[: max(0, self.limit - len(self.content))]
        self.content += stored
        self.is_cut = self.is_cut or len(stored) < len(chunk)


@dataclass
class Child:
    """Processes of a job, and this side of their pipes."""

    guardian: int
    status: int
    """Descriptor with the reports of the guardian, one JSON object per line."""
    out: int
    err: int
    control: socket.socket | None
    reports: bytearray = field(default_factory=bytearray)
    group: int = 0
    """Process group of the job, as seen from its own namespace; 0 before it is known."""

    def report(self) -> Mapping[str, Any]:
        """Returns everything that the guardian reported."""
        lines = bytes(self.reports).splitlines()
        return {key: value for line in lines for key, value in json.loads(line).items()}


class Children:
    """Starts jobs and ends them, with all their processes."""

    def __init__(self, confinement: Confinement, host: socket.socket) -> None:
        """host: connection to the process that receives the results; when it closes, results are discarded."""
        self._confinement = confinement
        self._host = host
        self._own_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY) if confinement.has_namespaces else -1

    def start(
        self,
        program: Callable[[], NoReturn],
        *,
        limits: Limits,
        stdin: int | None,
        files: Mapping[str, str],
        is_session: bool = False,
    ) -> Child:
        """Starts a program. stdin: descriptor of its input, which this closes; None: nothing. A session keeps its
        working directory and gets a control socket. Raises: OSError."""
        input_file = os.open(os.devnull, os.O_RDONLY) if stdin is None else stdin
        (out, job_out), (err, job_err), (status, report) = os.pipe(), os.pipe(), os.pipe()
        control, job_control = socket.socketpair() if is_session else (None, None)
        launch = Launch(
            program=program,
            limits=limits,
            tasks=self._confinement.expected_tasks(),
            files=files,
            is_session=is_session,
            stdio=(input_file, job_out, job_err),
            report=report,
            control=job_control,
        )
        guardian = self._forked(launch)
        for descriptor in (*launch.stdio, report):
            os.close(descriptor)
        for descriptor in (out, err, status):
            os.set_blocking(descriptor, False)
        if control and job_control:
            job_control.close()
            control.settimeout(_COMMAND_S)
        return Child(guardian, status=status, out=out, err=err, control=control)

    def wait(self, child: Child, *, limits: Limits, for_reply: bool = False) -> tuple[dict[str, Any], bool]:
        """Collects output until the job ends, or replies; stops it at a limit. Returns the fields of a result, and
        whether the job has ended.

        Raises: HostLeft; Broken when the guardian died without a report.
        """
        started_at = time.monotonic()
        outputs = [Output(child.out, limits.output_bytes), Output(child.err, limits.output_bytes)]
        reply, limit = self._collect(child, outputs, limits, started_at + limits.wall_s, for_reply=for_reply)
        wall_taken_s = time.monotonic() - started_at
        if reply is None:
            self.kill(child)
        _drain(outputs)
        if reply is None:
            self.release(child)
        outcome, status = ("", reply) if reply is not None else _ending(child.report(), limit, limits)
        if not outcome:
            outcome = "passed" if status == 0 else "memory" if status == programs.MEMORY_STATUS else "failed"
        result = {
            "outcome": outcome,
            "exit_status": status if outcome in {"passed", "failed"} else None,
            "stdout": outputs[0].content.decode(errors="replace"),
            "stderr": outputs[1].content.decode(errors="replace"),
            "wall_s": wall_taken_s,
            "is_output_cut": any(output.is_cut for output in outputs),
        }
        return result, reply is None

    def kill(self, child: Child) -> None:
        """Ends all processes of a job."""
        _read_reports(child)
        if not self._confinement.has_namespaces:
            child.group = child.group or int(child.report().get("group", 0))
            if child.group and "status" not in child.report():
                _kill(os.killpg, child.group)
        _kill(os.kill, child.guardian)  # its death ends its namespace
        os.waitpid(child.guardian, 0)
        if not self._confinement.has_namespaces and child.group:
            _reap(child.group)
        _read_reports(child)

    def release(self, child: Child) -> None:
        """Closes the pipes of a job that has ended."""
        for descriptor in (child.status, child.out, child.err):
            os.close(descriptor)
        if child.control:
            child.control.close()

    def _collect(
        self, child: Child, outputs: list[Output], limits: Limits, deadline: float, *, for_reply: bool
    ) -> tuple[int | None, str]:
        """Returns the exit status that an interpreter replied, else None, and the limit that was reached, else ""."""
        audit_at = time.monotonic() + _AUDIT_S
        while True:
            for descriptor in self._readable(child, outputs, for_reply=for_reply):
                if child.control and descriptor == child.control.fileno():
                    reply = _reply(child)
                    if reply.strip().isdigit():
                        return int(reply), ""
                elif descriptor == child.status and not _read_reports(child):
                    return None, ""
                elif descriptor == self._host.fileno():
                    self.kill(child)
                    raise HostLeft
                for output in outputs:
                    if descriptor == output.descriptor:
                        output.read()
            if "status" in child.report():
                return None, ""
            now = time.monotonic()
            if now > deadline:
                return None, "timeout"
            if now > audit_at:
                audit_at = now + _AUDIT_S
                limit = self._exceeded(child, limits)
                if limit:
                    return None, limit

    def _readable(self, child: Child, outputs: list[Output], *, for_reply: bool) -> list[int]:
        poller = select.poll()
        poller.register(child.status, select.POLLIN)
        poller.register(self._host, select.POLLRDHUP)
        for output in outputs:
            if output.is_open:
                poller.register(output.descriptor, select.POLLIN)
        if for_reply and child.control:
            poller.register(child.control, select.POLLIN)
        if not child.group and not self._confinement.has_namespaces:
            self._announce(child)
        return [descriptor for descriptor, _ in poller.poll(_TICK_S * 1000)]

    def _announce(self, child: Child) -> None:
        """Tells the host the process group, so that it can end the job when this fork server dies."""
        child.group = int(child.report().get("group", 0))
        if child.group:
            send(self._host, {"group": child.group})

    def _exceeded(self, child: Child, limits: Limits) -> str:
        used_bytes = sum(usage.memory_bytes(pid) for pid in self._processes(child))
        if used_bytes > limits.memory_bytes + usage.memory_bytes(os.getpid()):
            return "memory"
        if self._confinement.has_namespaces:
            return ""  # the file system has a size
        return "disk" if usage.folder_bytes(self._confinement.folder) > self._confinement.disk_bytes else ""

    def _processes(self, child: Child) -> Iterator[int]:
        if self._confinement.has_namespaces:
            return (pid for pid in usage.processes() if pid not in {1, os.getpid()})
        return usage.processes_of_group(child.group)

    def _forked(self, launch: Launch) -> int:
        """Forks the guardian, into a process namespace of its own; returns its number."""
        if self._confinement.has_namespaces:
            kernel.unshare(kernel.CLONE_NEWPID)
        guardian = os.fork()
        if guardian == 0:
            guard(self._confinement, launch)
        if self._confinement.has_namespaces:
            kernel.enter_namespace(self._own_namespace, kernel.CLONE_NEWPID)
        return guardian


def send(host: socket.socket, message: Mapping[str, Any]) -> None:
    """Sends a message: its length in 4 bytes, then JSON. Raises: OSError."""
    content = json.dumps(message).encode()
    host.sendall(len(content).to_bytes(4, "big") + content)


def _reply(child: Child) -> bytes:
    """Returns what the interpreter says; empty, and without further polling, when it ended."""
    assert child.control is not None  # noqa: S101 (polled)
    try:
        reply = child.control.recv(64)
    except ConnectionError:
        reply = b""
    if not reply:
        child.control.close()
        child.control = None
    return reply


def _ending(report: Mapping[str, Any], limit: str, limits: Limits) -> tuple[str, int | None]:
    """Returns outcome and exit status of a job that ended; the outcome is empty when the exit status decides."""
    if "broken" in report:
        raise Broken(str(report["broken"]))
    if limit:
        return ("crashed" if limit == "disk" else limit), None
    if "status" not in report:
        raise Broken("the first process of the job died")
    code = int(report["status"])
    if code >= 0:
        return "", code
    is_limit_of_cpu = -code in (signal.SIGXCPU, signal.SIGKILL) and report["cpu_s"] >= limits.cpu_s - 0.2
    return ("timeout" if is_limit_of_cpu else "crashed"), None


def _read_reports(child: Child) -> bool:
    """Returns whether there was anything to read."""
    try:
        chunk = os.read(child.status, _CHUNK_BYTES)
    except BlockingIOError:
        return True
    child.reports += chunk
    return bool(chunk)


def _drain(outputs: list[Output]) -> None:
    """Reads what is left in the pipes, at most about as much as a pipe holds."""
    for output in outputs:
        for _ in range(32):
            before = len(output.content)
            if not output.is_open:
                break
            output.read()
            if len(output.content) == before:
                break


def _kill(function: Callable[[int, int], None], target: int) -> None:
    try:
        function(target, signal.SIGKILL)
    except ProcessLookupError:
        return


def _reap(group: int) -> None:
    """Collects orphans of a job that has ended, which this process adopted."""
    try:
        while os.waitpid(-group, 0):
            pass
    except ChildProcessError:
        return
