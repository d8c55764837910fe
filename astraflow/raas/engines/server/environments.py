"""Environments in which engine servers run: a virtual environment per engine, because their pinned requirements
conflict with each other and with AstraFlow's.

    $ASTRAFLOW_ENGINES/NAME/            virtual environment
    $ASTRAFLOW_ENGINES/NAME/engine.json written last, when the server has answered
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.folders.run_folders import home
from astraflow.runtime.virtual_environments import VirtualEnvironment, complete_environments

ENGINES = "ASTRAFLOW_ENGINES"
"""Environment variable with the folder of the environments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment(VirtualEnvironment):
    """An installed engine, in a folder such as `sglang-cpu`. Its kind is `sglang` or `vllm`."""

    description: ClassVar[str] = "engine.json"

    device: str
    """`cpu` or `cuda`."""


def environments_folder() -> Path:
    """Returns the folder of all environments: `$ASTRAFLOW_ENGINES`, or `engines` in AstraFlow's cache directory. In an
    image they are part of the file system, which is read-only, while the cache directory is writable."""
    chosen = os.environ.get(ENGINES)
    return Path(chosen) if chosen else home() / "engines"


def installed_environments() -> list[Environment]:
    return complete_environments(Environment, environments_folder())


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
