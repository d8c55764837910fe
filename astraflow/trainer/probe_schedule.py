"""Schedule of probes, whose forward pass pauses the training."""

from typing import Literal, TypeAlias

from astraflow.contract.ids import Version

ProbeEvery: TypeAlias = int | Literal["auto"]

PROBE_TIME_SHARE = 0.003
"""Default share of the training time for probes: a third of the share for all weight transfer."""


class ProbeSchedule:
    """Decides when a probe is due: at a fixed interval, or when `PROBE_TIME_SHARE` of the time since the last pays for
    it.

    Version 0 always has a probe; in automatic mode the first versions after a start have one too.

    >>> schedule = ProbeSchedule(3)
    >>> [version for version in range(8) if schedule.is_due(Version(version))]
    [0, 3, 6]
    """

    def __init__(self, every: ProbeEvery) -> None:
        self._every = every
        self._since_probe_s = 0.0
        self._cost_s: float | None = None
        """Duration of the latest probe in seconds; None before the second one, since the first takes longer."""
        self._probes = 0

    def is_due(self, version: Version) -> bool:
        """Returns whether this version needs a probe."""
        if self._every != "auto":
            return version % self._every == 0
        return self._cost_s is None or self._since_probe_s >= self._cost_s

    def record_probe(self, cost_s: float) -> None:
        """Records a probe and its duration."""
        self._probes += 1
        self._since_probe_s = 0.0
        self._cost_s = cost_s if self._probes > 1 else None

    def record_step(self, step_s: float) -> None:
        """Records a step and its duration."""
        self._since_probe_s += PROBE_TIME_SHARE * step_s
