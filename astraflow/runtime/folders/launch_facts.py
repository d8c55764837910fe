"""Facts of a run's launch, in its folder: the recipe, who launched it and why, and the options to resume it with."""

from pathlib import Path

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.toml import read_json
from astraflow.runtime.folders.private_files import write_private

LAUNCH = "launch.json"
BASE_RECIPE = "base_recipe.json"
"""File with the resolved recipe without the overrides of the launch."""


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
    key: str = ""
    """Idempotency key of the launch, scoped to its user; empty without one."""
    request: str = ""
    """Request of the launch with this key, as JSON; empty without a key."""


def read_launch(folder: Path) -> LaunchFacts | None:
    """Returns the facts of the launch; None for a folder without readable ones."""
    try:
        return LaunchFacts.parse(read_json(folder / LAUNCH), where=LAUNCH)
    except InvalidInput:
        return None  # a run of another release


def write_launch(folder: Path, facts: LaunchFacts) -> None:
    """Writes the facts of the launch. Raises: OSError."""
    write_private(folder / LAUNCH, facts.model_dump_json(indent=2))
