"""Facts of a run's launch, in its folder: the recipe, who launched it and why, and the options to resume it with."""

from pathlib import Path

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.toml import read_json
from astraflow.runtime.folders.private_files import write_private

LAUNCH = "launch.json"
BASE_RECIPE = "base_recipe.json"
"""File with the resolved recipe without the overrides of the launch."""


class SettingsChange(Config):
    """Change of settings with which a run was continued."""

    step: int | None = None
    """Step of the newest checkpoint at that time; None without one."""
    at: float
    """Unix seconds."""
    overrides: tuple[str, ...]
    """All overrides of the recipe from then on, as `KEY=VALUE`."""


class LaunchFacts(Config):
    """Facts of a launch, written before the process of the run starts."""

    recipe: str = ""
    """Name of the packaged or declared recipe, or path of its file."""
    overrides: tuple[str, ...] = ()
    """Settings that the launch changed, as `KEY=VALUE`."""
    actor: str = ""
    """User of the page who launched it; empty for a run of the terminal."""
    reason: str = ""
    """Reason that the user gave; empty without one."""
    launched_at: float = 0.0
    """Unix seconds."""
    pid: int = 0
    """Id of the process that the page started last; 0 until it has started, and for a run of the terminal."""
    has_fleet: bool = False
    """True if a fleet service starts the nodes."""
    ends_by_itself: bool = False
    """True if the run ends when a stop condition is met."""
    limit_s: float | None = None
    """Time after which it ends in any case, in seconds; None for no limit."""
    needs_admin: bool = True
    """True if it may have settings that only an admin may override."""
    parent: str = ""
    """Run whose checkpoint this one was forked from; empty for a run that was not forked."""
    parent_step: int | None = None
    """Step of that checkpoint."""
    has_fresh_optimizer: bool = False
    """True for a fork without the state of the parent's optimizer."""
    changes: tuple[SettingsChange, ...] = ()
    """Changes with which the run was continued, in order."""
    key: str = ""
    """Idempotency key of the launch, scoped to its user; empty without one."""
    request: str = ""
    """Request of the launch with this key, as JSON; empty without a key."""


def lineage(facts: LaunchFacts) -> str:
    """Returns where a fork comes from; empty for another run.

    >>> lineage(LaunchFacts(parent="reverse-1", parent_step=40, has_fresh_optimizer=True))
    'fork of reverse-1 at step 40, fresh optimizer'
    """
    if not facts.parent:
        return ""
    optimizer = ", fresh optimizer" if facts.has_fresh_optimizer else ""
    return f"fork of {facts.parent} at step {facts.parent_step}{optimizer}"


def read_launch(folder: Path) -> LaunchFacts | None:
    """Returns the facts of the launch; None for a folder without readable ones."""
    try:
        return LaunchFacts.parse(read_json(folder / LAUNCH), where=LAUNCH)
    except InvalidInput:
        return None  # a run of another release


def write_launch(folder: Path, facts: LaunchFacts) -> None:
    """Writes the facts of the launch. Raises: OSError."""
    write_private(folder / LAUNCH, facts.model_dump_json(indent=2))
