"""docker-compose.yml, read as Compose reads it, and its services as processes of this machine."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import yaml

from astraflow.cli.ports import free_ports

ROOT = Path(__file__).parents[2]
ENTRYPOINT = ROOT / "deploy" / "node" / "entrypoint.sh"

Json = dict[str, Any]

PATIENCE_S = 180.0
"""How long what must come is waited for: a machine may be slow, and busy with other work."""

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_DURATION = re.compile(r"(\d+)s")


def compose(environment: Mapping[str, str] | None = None) -> Json:
    """The file with its variables replaced."""
    read: Json = _filled(yaml.safe_load((ROOT / "docker-compose.yml").read_text()), environment or {})
    return read


def _filled(value: Any, environment: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(one, environment) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, environment) for one in value]
    if not isinstance(value, str):
        return value
    filled = _VARIABLE.sub(lambda seen: environment.get(seen[1]) or seen[2] or "", value)
    assert "$" not in filled, f"what Compose would make of {value!r} is not known here"
    return filled


def seconds(text: str) -> float:
    """A duration as the file has them."""
    matched = _DURATION.fullmatch(text)
    assert matched is not None, text
    return float(matched[1])


def mounts(service: Json) -> dict[str, tuple[str, bool]]:
    """Where each volume is mounted: path -> (volume, whether it is only read)."""
    split = [given.split(":") for given in service.get("volumes", [])]
    return {target: (volume, mode == ["ro"]) for volume, target, *mode in split}


def depends_on(service: Json) -> dict[str, str]:
    """Whom it waits for, and for what of them."""
    return {name: given["condition"] for name, given in service.get("depends_on", {}).items()}


@dataclass(kw_only=True)
class Composed:
    """The services of the file on this machine: names of services are loopback, volumes and secrets are folders here.

    What a container would not let them write, their home and their working directory, is watched here instead.
    """

    file: Json
    directory: Path
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    ports: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        said = re.findall(r"--(?:enroll-)?port=(\d+)", str(self.services))
        self.ports = dict(zip(said, map(str, free_ports(len(said))), strict=True))
        self.working.mkdir()

    @property
    def services(self) -> dict[str, Json]:
        """By name."""
        found: dict[str, Json] = self.file["services"]
        return found

    @property
    def home(self) -> Path:
        """Of the user; it is not there."""
        return self.directory / "home"

    @property
    def working(self) -> Path:
        """Where they are started."""
        return self.directory / "working"

    def volume(self, name: str) -> Path:
        """Of that name."""
        return self.directory / "volumes" / name

    def secret(self, name: str) -> Path:
        """A file that holds it, or should."""
        return self.directory / "secrets" / name

    def here(self, text: str, service: Json) -> str:
        """A word of a command or of the environment, as it is on this machine."""
        for target, (volume, _) in mounts(service).items():
            text = re.sub(rf"{target}(?=/|$)", str(self.volume(volume)), text)
        text = re.sub(r"/run/secrets/([\w-]+)", lambda seen: str(self.secret(seen[1])), text)
        for given in service.get("configs", []):
            text = text.replace(given["target"], str(ROOT / self.file["configs"][given["source"]]["file"]))
        text = re.sub(rf"\b(?:{'|'.join(self.services)}):(?=\d)", "127.0.0.1:", text)
        return re.sub(r"(?<=[:=])\d{4}\b", lambda seen: self.ports[seen[0]], text)

    def arguments(self, service: Json, words: Sequence[str]) -> Json:
        """For `subprocess`, to run `words` in that service."""
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
        """What `docker compose exec NAME WORDS` would come to."""
        given = self.arguments(self.services[name], words)
        return subprocess.run(**given, capture_output=True, text=True, check=False, timeout=PATIENCE_S)

    def is_healthy(self, name: str) -> bool:
        """What its health check says."""
        command, *words = self.services[name]["healthcheck"]["test"]
        assert command == "CMD"
        return self.done(name, *words).returncode == 0

    def start(self, name: str, copy: int = 1) -> None:
        """Once what it waits for is there."""
        for other, condition in depends_on(self.services[name]).items():
            if condition == "service_healthy":
                self.until(partial(self.is_healthy, other), f"{other} is healthy")
            else:
                assert self.processes[other].wait(PATIENCE_S) == 0, self.said(other)
        service = self.services[name]
        log = self.log(f"{name}.{copy}" if copy > 1 else name)
        with log.open("wb") as out:
            given = self.arguments(service, [str(ENTRYPOINT), *service["command"]])
            self.processes[log.stem] = subprocess.Popen(
                **given, stdout=out, stderr=out, text=True, start_new_session=True
            )

    def log(self, name: str) -> Path:
        """Where it says what it says."""
        return self.directory / f"{name}.log"

    def said(self, name: str) -> str:
        """So far."""
        return self.log(name).read_text()

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for it. Raises: AssertionError when a process died that should not, or when it takes too long."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            died = [name for name, process in self.processes.items() if process.poll()]
            assert not died, f"{died[0]} ended: {self.said(died[0])[-2000:]}"
            assert time.monotonic() < deadline, f"not within {PATIENCE_S:.0f} s: {what}"
            time.sleep(0.3)

    def stop(self) -> dict[str, int | None]:
        """As `docker compose stop`: who depends on others first, each within its grace period. Returns exit codes.

        None for one that had to be killed, as Docker would.
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
        """What still runs of all that they started, as a container would end with its first process."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("HOME") == str(self.home) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def kill(self) -> None:
        """All of that."""
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
