"""Settings of a run: its resolved recipe by key, and how it differs from the recipe that it was launched from."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow.runtime.config.toml import toml_text
from astraflow.runtime.folders.launch_facts import BASE_RECIPE
from astraflow.runtime.folders.run_folders import RunFolder

_MAX_RECIPE_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """Setting that differs from the recipe."""

    key: str
    before: str | None
    """Value in the recipe; None where it has none."""
    after: str | None


def read_settings(file: Path) -> dict[str, Any] | None:
    """Returns the values of a snapshot by key; None for a file that is missing, too large or damaged."""
    try:
        if file.stat().st_size > _MAX_RECIPE_BYTES:
            return None
        content = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return dict(flattened_settings(content)) if isinstance(content, dict) else None


def flattened_settings(content: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the keys and values of a tree of settings.

    >>> list(flattened_settings({"stop": {"steps": 5}, "names": ["a", "b"]}))
    [('stop.steps', 5), ('names', ['a', 'b'])]
    """
    if isinstance(content, dict) and content:
        for key, value in content.items():
            yield from flattened_settings(value, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, content


def setting_text(value: Any) -> str:
    """Returns a value as text; a text stays as it is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def settings_toml(settings: Mapping[str, Any]) -> str:
    """Returns settings as TOML with dotted keys; those without a value are left out.

    >>> settings_toml({"stop.steps": 5, "stop.reward": None})
    'stop.steps = 5'
    """
    return "\n".join(f"{key} = {toml_text(value)}" for key, value in settings.items() if value is not None)


def changes_of(folder: RunFolder) -> list[SettingChange] | None:
    """Returns the settings that differ from the recipe that a run was launched from; None when it is not known."""
    base, resolved = read_settings(folder.path / BASE_RECIPE), read_settings(folder.recipe_file)
    if base is None or resolved is None:
        return None
    keys = sorted(key for key in base.keys() | resolved.keys() if base.get(key) != resolved.get(key))
    return [
        SettingChange(
            key=key,
            before=setting_text(base[key]) if key in base else None,
            after=setting_text(resolved[key]) if key in resolved else None,
        )
        for key in keys
    ]
