"""Environments in which engine servers run: a virtual environment per engine, because their pinned requirements
conflict with each other and with AstraFlow's.

    $ASTRAFLOW_ENGINES/NAME/            virtual environment
    $ASTRAFLOW_ENGINES/NAME/engine.json written last, when the server has answered
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.folders.run_folders import home

DESCRIPTION = "engine.json"

ENGINES = "ASTRAFLOW_ENGINES"
"""Environment variable with the folder of the environments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """An installed engine."""

    name: str
    """Name of the folder, such as `sglang-cpu`."""
    kind: str
    """Engine: `sglang` or `vllm`."""
    device: str
    """`cpu` or `cuda`."""
    version: str
    """Release of the engine."""
    folder: Path

    @property
    def python(self) -> Path:
        """Interpreter of the environment."""
        return self.folder / "bin" / "python"

    def describe(self) -> None:
        """Writes the description, which completes an installation."""
        facts = {name: value for name, value in asdict(self).items() if name not in ("folder", "name")}
        (self.folder / DESCRIPTION).write_text(json.dumps(facts, indent=1) + "\n")


def environments_folder() -> Path:
    """Returns the folder of all environments: `$ASTRAFLOW_ENGINES`, or `engines` in AstraFlow's cache directory. In an
    image they are part of the file system, which is read-only, while the cache directory is writable."""
    chosen = os.environ.get(ENGINES)
    return Path(chosen) if chosen else home() / "engines"


def installed_environments() -> list[Environment]:
    """Returns the complete environments by name; a folder without a valid description is left out."""
    environments = []
    for description in sorted(environments_folder().glob(f"*/{DESCRIPTION}")):
        try:
            facts = json.loads(description.read_text())
            environment = Environment(
                name=description.parent.name,
                kind=str(facts["kind"]),
                device=str(facts["device"]),
                version=str(facts["version"]),
                folder=description.parent,
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if environment.python.exists():
            environments.append(environment)
    return environments


def find_environment(kind: str, name: str = "") -> Environment:
    """Returns the environment `name`, or the first one with the engine `kind`. Raises: InvalidInput."""
    candidates = [environment for environment in installed_environments() if environment.kind == kind]
    for environment in candidates:
        if name in ("", environment.name):
            return environment
    wanted = f"environment {name!r}" if name else f"environment with {kind}"
    raise InvalidInput(
        f"cannot start the engine {kind!r}: no {wanted} is installed below {str(environments_folder())!r}; run "
        f"`astraflow engines install {kind}`",
        code="engine.not_installed",
    )
