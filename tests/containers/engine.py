"""Docker Engine in separate namespaces: its processes, mounts, network and control groups end with it.

start ──► running ──restart (the engine alone, as an upgrade does)──► running
             └────────── cut (every process at once, as a power loss does) ──► start ...
"""

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.containers.host import NAMESPACES, ControlGroups, NotStarted, control_groups

SOURCE = Path(__file__).parents[2]
"""The repository."""

PREPARE = Path(__file__).parent / "engine.sh"

START_S = 60.0
STOP_S = 180.0
"""Time limit for an engine stop; it includes the stop of the containers. Seconds."""

_ENTER = ("--mount", "--net", "--pid", "--ipc", "--uts", "--cgroup")

_WEIGHTS = {"cpu.shares": 256, "cpu.weight": 25}
"""Processor time of the engine, in versions 1 and 2 of control groups: a quarter of the default, so that the tests
beside it come first. The check ends before them, and its waits have a margin."""

_JOIN = 'for group; do [ "$group" != -- ] || break; echo $$ >"$group/cgroup.procs"; shift; done; shift; exec "$@"'
"""Shell code: joins the control groups before `--`, then executes the command after it."""


@dataclass(kw_only=True)
class Engine:
    """One engine. All its processes end with `cut`, or with this process."""

    root: Path
    """Folder with the engine's file system; images and volumes stay in it."""

    state: Path
    """Folder that the engine and this process share; mounted at /state in the engine's namespaces."""

    _parts: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _groups: list[Path] = field(default_factory=list)
    _first: int = 0
    _daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Prepares and connects the namespaces, and starts the engine. Raises: NotStarted."""
        (self.state / "prepared").unlink(missing_ok=True)
        groups = control_groups(Path("/proc/self/mountinfo").read_text())
        self._groups = [_made_group(folder) for folder in groups.folders]
        unshared = self._started("namespaces", self._unshare(groups))
        self._wait(lambda: (self.state / "prepared").exists(), unshared, "namespaces")
        self._first = _only_child(unshared.pid)
        network = ["slirp4netns", "--configure", "--mtu=65520", "--disable-host-loopback", str(self._first), "tap0"]
        slirp = self._started("network", network)
        self._wait(lambda: "default" in self.output("ip", "route"), slirp, "network")
        self.start_daemon()

    def start_daemon(self) -> None:
        """Starts the engine in the namespaces, and waits until it answers. Raises: NotStarted."""
        self._daemon = self._started("daemon", [*self.beside(), "dockerd"])
        self._wait(lambda: self.run("docker", "version", is_checked=False).returncode == 0, self._daemon, "daemon")

    def stop_daemon(self) -> float:
        """Stops the engine with its containers, as its service manager does. Returns seconds."""
        assert self._daemon is not None
        began = time.monotonic()
        self.run("sh", "-c", 'kill -TERM "$(cat /run/docker.pid)"')
        self._daemon.wait(STOP_S)
        return time.monotonic() - began

    def cut(self) -> None:
        """Kills every process of the engine and its containers; has no effect when none runs."""
        for part in reversed(self._parts):
            part.kill()
            part.wait()
        self._parts.clear()
        for group in self._groups:
            _removed_group(group)
        self._groups.clear()

    def run(
        self,
        *command: str,
        is_checked: bool = True,
        environment: Mapping[str, str] | None = None,
        limit_s: float = 600.0,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in the engine's namespaces, in the repository. Raises: CommandFailed if checked."""
        done = subprocess.run(
            [*self.beside(), "env", *(f"{name}={value}" for name, value in (environment or {}).items()), *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
            stdin=subprocess.DEVNULL,
        )
        if is_checked and done.returncode:
            raise CommandFailed(command, done)
        return done

    def output(self, *command: str) -> str:
        """Returns the output of a command. Raises: CommandFailed."""
        return self.run(*command).stdout

    def feed(self, command: Sequence[str], source: IO[bytes]) -> None:
        """Runs a command in the engine's namespaces with `source` as standard input. Raises: CalledProcessError."""
        subprocess.run([*self.beside(), *command], stdin=source, check=True, stdout=subprocess.DEVNULL, timeout=600)

    def beside(self) -> list[str]:
        """Returns the begin of a command line that runs the rest in the engine's namespaces."""
        return ["nsenter", "--target", str(self._first), *_ENTER, "--root", "--wdns=/src", "--"]

    def _unshare(self, groups: ControlGroups) -> list[str]:
        joining = ["sh", "-c", _JOIN, "sh", *map(str, self._groups), "--"]
        unshare = ["unshare", *NAMESPACES, "--fork", "--kill-child", "--propagation=private"]
        prepare = [str(PREPARE), str(self.root), str(SOURCE), str(self.state), *groups.controllers]
        return [*joining, "setpriv", "--pdeathsig=KILL", *unshare, *prepare]

    def _started(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with (self.state / f"{name}.log").open("wb") as log:
            part = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self._parts.append(part)
        return part

    def _wait(self, holds: Callable[[], bool], part: subprocess.Popen[bytes], name: str) -> None:
        deadline = time.monotonic() + START_S
        while not holds():
            if part.poll() is not None or time.monotonic() > deadline:
                log = " ".join((self.state / f"{name}.log").read_text(errors="replace").split())
                raise NotStarted(f"the engine's {name} did not start: {log[-500:]}; see docs/how-to/deploy.md")
            time.sleep(0.1)


class CommandFailed(Exception):
    """A command in the engine's namespaces failed."""

    def __init__(self, command: Sequence[str], done: subprocess.CompletedProcess[str]) -> None:
        output = " ".join(f"{done.stdout[-1500:]} {done.stderr[-1500:]}".split())
        super().__init__(f"`{' '.join(command)}` ended with status {done.returncode}: {output}")


def _made_group(folder: Path) -> Path:
    group = folder / f"astraflow-containers-{os.getpid()}"
    group.mkdir()
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (folder / name).exists() and not (folder / "cgroup.controllers").exists():
            (group / name).write_text((folder / name).read_text())  # version 1: without values it accepts no process
    for name, weight in _WEIGHTS.items():
        if (group / name).exists():
            (group / name).write_text(str(weight))
    return group


def _removed_group(group: Path) -> None:
    for folder, _, _ in os.walk(group, topdown=False):
        for _ in range(50):  # a killed process may stay in the group briefly
            with suppress(OSError):
                Path(folder).rmdir()
                break
            time.sleep(0.1)


def _only_child(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)
