"""Which versions carry a probe: the forward pass that makes one holds the training up."""

from typing import Literal, TypeAlias

from astraflow.contract.ids import Version

ProbeEvery: TypeAlias = int | Literal["auto"]

SHARE = 0.003
"""Of the training's time, what probes may take by default: a third of what weights may cost altogether."""


class ProbeSchedule:
    """Says when a probe is due: every so many versions, or as often as `SHARE` of the time since the last one pays for.

    Version 0 always has one, and by default the first versions after a start.

    >>> schedule = ProbeSchedule(3)
    >>> [version for version in range(8) if schedule.is_due(Version(version))]
    [0, 3, 6]
    """

    def __init__(self, every: ProbeEvery) -> None:
        self._every = every
        self._saved_s = 0.0
        self._cost_s: float | None = None
        """Of the latest; None until two were made, since the first one of a process takes longer."""
        self._made = 0

    def is_due(self, version: Version) -> bool:
        """Whether this version is to carry one."""
        if self._every != "auto":
            return version % self._every == 0
        return self._cost_s is None or self._saved_s >= self._cost_s

    def made(self, cost_s: float) -> None:
        """A probe was made, in so many seconds."""
        self._made += 1
        self._saved_s = 0.0
        self._cost_s = cost_s if self._made > 1 else None

    def trained(self, step_s: float) -> None:
        """A step went by, in so many seconds."""
        self._saved_s += SHARE * step_s
