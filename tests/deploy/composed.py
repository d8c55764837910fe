"""Parser of docker-compose.yml, and its services as processes of this machine."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import yaml

from astraflow.cli.ports import free_ports
from tests.words import PROGRAM

ROOT = Path(__file__).parents[2]
ENTRYPOINT = ROOT / "deploy" / "node" / "entrypoint.sh"

Json = dict[str, Any]

PATIENCE_S = 180.0
"""Time limit for an expected state, with a margin for a slow or busy machine. Seconds."""

_VARIABLE = re.compile(r"\$\{(\w+)(?::([-+])([^}]*))?\}")
_DURATION = re.compile(r"(\d+)s")


def compose(environment: Mapping[str, str] | None = None, *, profiles: Collection[str] = ()) -> Json:
    """Returns the file with its variables replaced, and without the services of other profiles."""
    read: Json = _filled(yaml.safe_load((ROOT / "docker-compose.yml").read_text()), environment or {})
    services = read["services"].items()
    enabled = {name: each for name, each in services if "profiles" not in each or {*each["profiles"]} & {*profiles}}
    return {**read, "services": enabled}


def _filled(value: Any, environment: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item, environment) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, environment) for item in value]
    if not isinstance(value, str):
        return value
    filled = _VARIABLE.sub(lambda match: _value(match, environment), value)
    assert "$" not in filled, f"what Compose would make of {value!r} is not known here"
    return filled


def _value(match: re.Match[str], environment: Mapping[str, str]) -> str:
    name, kind, text = match.groups()
    value = environment.get(name, "")
    return (text if value else "") if kind == "+" else value or text or ""


def seconds(text: str) -> float:
    """Parses a duration of the file."""
    matched = _DURATION.fullmatch(text)
    assert matched is not None, text
    return float(matched[1])


def mounts(service: Json) -> dict[str, tuple[str, bool]]:
    """Returns the volumes of a service: mount path -> (volume, whether it is read-only)."""
    split = [volume.split(":") for volume in service.get("volumes", [])]
    return {target: (volume, mode == ["ro"]) for volume, target, *mode in split}


def depends_on(service: Json) -> dict[str, str]:
    """Returns the services that a service waits for: name -> condition."""
    return {name: dependency["condition"] for name, dependency in service.get("depends_on", {}).items()}


@dataclass(kw_only=True)
class Composed:
    """Services of the file on this machine: service names map to loopback, volumes and secrets to local folders.

    A container makes home and working directory read-only; tests check instead that both stay unchanged.
    """

    file: Json
    directory: Path
    cli: Sequence[str] = (PROGRAM,)
    """Command line of the commands in services."""
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    ports: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        port_numbers = re.findall(r"--(?:enroll-)?port=(\d+)", str(self.services))
        self.ports = dict(zip(port_numbers, map(str, free_ports(len(port_numbers))), strict=True))
        self.working.mkdir()

    @property
    def services(self) -> dict[str, Json]:
        """Services by name."""
        service_tables: dict[str, Json] = self.file["services"]
        return service_tables

    @property
    def home(self) -> Path:
        """Home directory of the user; it does not exist."""
        return self.directory / "home"

    @property
    def working(self) -> Path:
        """Working directory of the services."""
        return self.directory / "working"

    def volume(self, name: str) -> Path:
        """Returns the folder of a volume."""
        return self.directory / "volumes" / name

    def secret(self, name: str) -> Path:
        """Returns the path of a secret's file, which may be missing."""
        return self.directory / "secrets" / name

    def here(self, text: str, service: Json) -> str:
        """Translates paths, service names and ports of a text to this machine."""
        for target, (volume, _) in mounts(service).items():
            text = re.sub(rf"{target}(?=/|$)", str(self.volume(volume)), text)
        text = re.sub(r"/run/secrets/([\w-]+)", lambda match: str(self.secret(match[1])), text)
        for config in service.get("configs", []):
            text = text.replace(config["target"], str(ROOT / self.file["configs"][config["source"]]["file"]))
        text = re.sub(rf"\b(?:{'|'.join(self.services)}):(?=\d)", "127.0.0.1:", text)
        return re.sub(r"(?<=[:=])\d{4}\b", lambda match: self.ports[match[0]], text)

    def arguments(self, service: Json, words: Sequence[str]) -> Json:
        """Returns the `subprocess` arguments that run `words` in a service."""
        environment = {name: self.here(value, service) for name, value in service.get("environment", {}).items()}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        around = {"PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(self.home), "PYTHONUNBUFFERED": "1"}
        for volume, _ in mounts(service).values():
            self.volume(volume).mkdir(mode=0o700, parents=True, exist_ok=True)
        return {
            "args": [self.here(word, service) for word in words],
            "env": {**around, **environment},
            "cwd": self.working,
            "stdin": subprocess.DEVNULL,
        }

    def done(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs the equivalent of `docker compose exec NAME WORDS`. `cli` replaces the command line, if there is one."""
        options = self.arguments(self.services[name], words)
        if words[0] == PROGRAM:
            options["args"] = [*self.cli, *options["args"][1:]]
        return subprocess.run(**options, capture_output=True, text=True, check=False, timeout=PATIENCE_S)

    def is_healthy(self, name: str) -> bool:
        """Returns whether the health check of a service passes."""
        command, *words = self.services[name]["healthcheck"]["test"]
        assert command == "CMD"
        return self.done(name, *words).returncode == 0

    def start(self, name: str, copy: int = 1) -> None:
        """Starts a service after its dependencies meet their conditions."""
        for other, condition in depends_on(self.services[name]).items():
            if condition == "service_healthy":
                self.until(partial(self.is_healthy, other), f"{other} is healthy")
            else:
                assert self.processes[other].wait(PATIENCE_S) == 0, self.said(other)
        service = self.services[name]
        log = self.log(f"{name}.{copy}" if copy > 1 else name)
        with log.open("wb") as out:
            options = self.arguments(service, [str(ENTRYPOINT), *service["command"]])
            self.processes[log.stem] = subprocess.Popen(
                **options, stdout=out, stderr=out, text=True, start_new_session=True
            )

    def log(self, name: str) -> Path:
        """Returns the log file of a service."""
        return self.directory / f"{name}.log"

    def said(self, name: str) -> str:
        """Returns the log of a service so far."""
        return self.log(name).read_text()

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Waits until `holds` is true. Raises: AssertionError when a process failed, or after `PATIENCE_S`."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            died = [name for name, process in self.processes.items() if process.poll()]
            assert not died, f"{died[0]} ended: {self.said(died[0])[-2000:]}"
            assert time.monotonic() < deadline, f"not within {PATIENCE_S:.0f} s: {what}"
            time.sleep(0.3)

    def stop(self) -> dict[str, int | None]:
        """Stops dependents first, as `docker compose stop`, each within its grace period. Returns exit codes.

        The code is None where the grace period passed and Docker would kill the process.
        """
        codes: dict[str, int | None] = {}
        while left := {name.split(".")[0] for name in self.processes.keys() - codes.keys()}:
            needed = {other for name in left for other in depends_on(self.services[name])}
            wave = [name for name in self.processes if name not in codes and name.split(".")[0] in left - needed]
            began = time.monotonic()
            for name in wave:
                self.processes[name].send_signal(signal.SIGTERM)
            for name in wave:
                grace_s = seconds(self.services[name.split(".")[0]].get("stop_grace_period", "10s"))
                codes[name] = _ended(self.processes[name], began + grace_s)
        return codes

    def left(self) -> list[psutil.Process]:
        """Returns the remaining processes, which a container would end with its first process."""
        remaining = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("HOME") == str(self.home) and process.status() != psutil.STATUS_ZOMBIE:
                    remaining.append(process)
        return remaining

    def kill(self) -> None:
        """Kills all remaining processes."""
        for process in self.left():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for started in self.processes.values():
            started.wait()


def _ended(process: subprocess.Popen[str], deadline: float) -> int | None:
    try:
        return process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
