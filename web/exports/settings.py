"""Settings of a run for its export, compared with its packaged recipe, without secrets."""

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

from astraflow.contract.errors import AstraFlowError
from astraflow.runtime.folders.run_folders import RunFolder
from astraflow.runtime.processes.child import run_command
from web.launcher.environments import child_environment

MAX_RECIPE_BYTES = 2_000_000
MAX_SETTINGS = 1500
RECIPE_TIMEOUT_S = 60.0

_SECRET_KEY = re.compile(r"(?:^|[._-])(?:token|secret|password|api_key|key)$", re.IGNORECASE)


async def settings_of(folder: Path | None) -> list[dict[str, str | None]]:
    """Returns the settings of a run, sorted by key; each with its value in the packaged recipe if that differs."""
    if folder is None:
        return []
    own = await asyncio.to_thread(_read, RunFolder(folder).recipe_file)
    packaged = await _packaged(folder)
    return [
        {
            "key": key,
            "value": "[secret]" if _SECRET_KEY.search(key) else own.get(key),
            "packaged": packaged.get(key) if packaged.get(key) != own.get(key) else None,
        }
        for key in sorted(own)[:MAX_SETTINGS]
    ]


def _read(file: Path) -> dict[str, str]:
    """Returns the flat settings of a resolved recipe; empty for one that cannot be read."""
    try:
        if file.stat().st_size > MAX_RECIPE_BYTES:
            return {}
        return dict(_flattened(json.loads(file.read_text()), ""))
    except (OSError, ValueError, RecursionError):
        return {}


def _flattened(content: Any, prefix: str) -> list[tuple[str, str]]:
    if isinstance(content, dict) and content:
        begin = f"{prefix}." if prefix else ""
        return [line for key, value in content.items() for line in _flattened(value, f"{begin}{key}")]
    return [(prefix, content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))]


async def _packaged(folder: Path) -> dict[str, str]:
    """Returns the flat settings of the recipe that the run began from; empty for one that is not packaged."""
    try:
        recipe = RunFolder(folder).facts.recipe
        command = (sys.executable, "-m", "astraflow.cli", "recipes", recipe, "--json")
        result = await run_command(*command, environment=child_environment(), limit_s=RECIPE_TIMEOUT_S)
        fields = json.loads(result.output)["fields"]
        return {key: value for field in fields for key, value in _flattened(field["value"], field["key"])}
    except (AstraFlowError, OSError, TimeoutError, ValueError, KeyError, TypeError):
        return {}
