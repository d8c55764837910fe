"""Services of docker-compose.yml in the engine: Compose commands and the run's report."""

import json
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.containers.engine import CommandFailed, Engine
from tests.containers.image import IMAGE

PATIENCE_S = 480.0
"""Time limit for an expected state, with a margin for a slow or busy machine. Seconds."""

POLL_S = 2.0
"""Pause between two looks at the state: a look that runs a command in a container takes about a second of a core."""

RECIPE = Path(__file__).parent / "recipe.toml"
MOUNTED = "/etc/astraflow/recipe.toml"
USING_RECIPE = ("prepare", "weights", "dataflow", "trainer", "web")

Json = dict[str, Any]


class CheckFailed(AssertionError):
    """The containers violate a guarantee of docs/how-to/deploy.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """Container of the project."""

    id: str
    service: str
    state: str
    exit_code: int


@dataclass(kw_only=True)
class Stack:
    """One Compose project. `image`, `nodes` and `profiles` are variables of its `.env`."""

    engine: Engine
    nodes: int = 3
    profiles: str = ""
    image: str = IMAGE
    compose_file: str = "docker-compose.yml"
    """Path in the engine's namespaces, relative to the repository."""

    def __post_init__(self) -> None:
        token = self.engine.state / "run-token"
        token.write_text(f"{secrets.token_hex(32)}\n")
        token.chmod(0o644)  # the containers' user reads it; only root can enter the parent folder
        shutil.copy(RECIPE, self.engine.state / "recipe.toml")
        mounted = {service: {"volumes": [f"/state/recipe.toml:{MOUNTED}:ro"]} for service in USING_RECIPE}
        (self.engine.state / "recipe.yml").write_text(json.dumps({"services": mounted}))

    def compose(self, *words: str) -> str:
        """Returns the output of `docker compose WORDS`. Raises: CommandFailed."""
        return self.engine.run("docker", "compose", *words, environment=self._environment()).stdout

    def shell(self, commands: str) -> None:
        """Runs commands as an operator types them in the folder of docker-compose.yml. Raises: CommandFailed."""
        self.engine.run("sh", "-ec", commands, environment=self._environment())

    def _environment(self) -> dict[str, str]:
        return {
            "ASTRAFLOW_IMAGE": self.image,
            "ASTRAFLOW_NODES": str(self.nodes),
            "ASTRAFLOW_RECIPE": MOUNTED,
            "ASTRAFLOW_TOKEN_FILE": "/state/run-token",
            "COMPOSE_FILE": f"{self.compose_file}:/state/recipe.yml",
            "COMPOSE_PROFILES": self.profiles,
            "COMPOSE_PROJECT_NAME": "check",
        }

    def up(self) -> float:
        """Starts all services that are not running. Returns seconds."""
        began = time.monotonic()
        self.compose("up", "--detach", "--no-build", "--quiet-pull")
        return time.monotonic() - began

    def astraflow(self, service: str, *words: str) -> str:
        """Returns the output of an `astraflow` command in a service's container. Raises: CommandFailed."""
        return self.compose("exec", "-T", service, "astraflow", *words)

    def report(self) -> Json:
        """Returns the run's report. Raises: CommandFailed while dataflow does not answer."""
        report: Json = json.loads(self.astraflow("dataflow", "report", "dataflow:7001", "--once", "--json"))
        return report

    def containers(self, service: str = "") -> list[Container]:
        """Returns the containers of the project or of one service, running or not."""
        listed = self.compose("ps", "--all", "--format", "json", *([service] if service else []))
        read = [json.loads(line) for line in listed.splitlines() if line]
        return [
            Container(id=line["ID"], service=line["Service"], state=line["State"], exit_code=int(line["ExitCode"]))
            for line in read
        ]

    def only(self, service: str) -> Container:
        """Returns the only container of a service. Raises: CheckFailed."""
        containers = self.containers(service)
        if len(containers) != 1:
            raise CheckFailed(f"{service} has {len(containers)} containers, expected 1")
        return containers[0]

    def kill(self, container: Container) -> None:
        """Kills a container's processes directly, so that the engine sees an unexpected exit."""
        inspect = ["docker", "inspect", "--format", "{{.State.Pid}}", container.id]
        self.engine.run("sh", "-c", f"kill -KILL {int(self.engine.output(*inspect))}")

    def restarts(self, container: Container) -> int:
        """Returns how often the engine has restarted the container."""
        inspect = ["docker", "inspect", "--format", "{{.RestartCount}}", container.id]
        return int(self.engine.output(*inspect))

    def health(self, service: str) -> str:
        """Returns what the health check of a service's only container says, such as `healthy`."""
        inspect = ["docker", "inspect", "--format", "{{.State.Health.Status}}", self.only(service).id]
        return self.engine.output(*inspect).strip()

    def logs(self, service: str, lines: int = 8) -> str:
        """Returns the last log lines of a service."""
        return self.compose("logs", "--no-color", "--no-log-prefix", f"--tail={lines}", service)


def until(holds: Callable[[], bool], what: str, *, patience_s: float = PATIENCE_S) -> float:
    """Waits until `holds` is true; a command error counts as false. Returns seconds. Raises: CheckFailed."""
    began, problem = time.monotonic(), ""
    while True:
        try:
            if holds():
                return time.monotonic() - began
        except CommandFailed as failed:
            problem = f" ({failed})"
        if time.monotonic() - began > patience_s:
            raise CheckFailed(f"not within {patience_s:.0f} s: {what}{problem}")
        time.sleep(POLL_S)
