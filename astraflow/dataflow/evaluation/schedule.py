"""Schedule of the evaluation rounds that the recipe requests."""

from collections.abc import Mapping
from typing import Any

from astraflow.contract.ids import Version
from astraflow.contract.values import Json


class Schedule:
    """Due once at every multiple of `every_versions`, even if versions in between are skipped.

    >>> schedule = Schedule(every_versions=10, at_start=False)
    >>> [version for version in (0, 4, 9, 12, 13, 35, 40) if schedule.is_due(Version(version))]
    [12, 35, 40]
    """

    def __init__(self, *, every_versions: int, at_start: bool) -> None:
        self._every_versions = every_versions
        self._at_start = at_start
        self._seen: Version | None = None

    def is_due(self, version: Version) -> bool:
        """Returns whether a round is to begin with the trainers' version; the same version is due only once."""
        last_version, self._seen = self._seen, version if self._seen is None else max(version, self._seen)
        if last_version is None:
            return self._at_start
        return self._every_versions > 0 and version // self._every_versions > last_version // self._every_versions

    def state_dict(self) -> dict[str, Json]:
        """Returns the version seen last."""
        return {"seen": None if self._seen is None else int(self._seen)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state."""
        self._seen = None if state["seen"] is None else Version(state["seen"])
