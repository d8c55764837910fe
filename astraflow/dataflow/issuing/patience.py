"""Patience: how long a node may keep a task before others that have none get it too.

A reclaimed task returns to the queue, and its former holder continues: the first result counts. So an idle node takes
over the work of one that hangs, and at worst does it twice. Episodes may take hours, so the time follows the flow's own
episodes. Independently of others, no node keeps a task longer than its time limit of an episode (`longest_s`).
"""

from collections import deque
from statistics import median

MEASURED = 4
"""Episodes after which the time follows their durations; of each push the first one is measured. Count."""

WINDOW = 256
"""Latest episodes that count."""

FACTOR = 4.0
"""Patience as a multiple of the median. A node without most of the results cannot move the median."""

MIN_S = 3.0
"""Least patience. Seconds."""

FIRST_S = 5.0
"""Patience of a flow before anything was measured. Seconds."""

FIRST_TASKS = 8
"""Tasks that an idle node gets then, so that something is measured. Count."""

MAX_DOUBLINGS = 6
"""Doublings of the patience by nodes that held a task before: any number of nodes may take a task and leave. Count."""

MARGIN_S = 30.0
"""Time that a node may take to deliver a failure after its time limit of an episode. Seconds."""

MARGIN_SHARE = 0.1
"""The same, as a share of the limit."""

DEFAULT_LIMIT_S = 900.0
"""Time limit of an episode of a node that reports none. Seconds."""


class Durations:
    """Times from lease to result of the latest episodes of one flow. Seconds."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=WINDOW)
        self._median_s: float | None = None

    def add(self, duration_s: float) -> None:
        """Adds an episode that succeeded."""
        self._latest.append(duration_s)
        self._median_s = None

    @property
    def is_measured(self) -> bool:
        """True once the median means something."""
        return len(self._latest) >= MEASURED

    def patience_s(self, *, requeues: int) -> float:
        """Returns how old a task must be to be leased to an idle node too.

        requeues: nodes that held it before; the patience doubles with each of the first.
        """
        if not self.is_measured:
            least_s = FIRST_S
        else:
            if self._median_s is None:
                self._median_s = median(self._latest)
            least_s = max(MIN_S, FACTOR * self._median_s)
        return float(least_s * 2 ** min(requeues, MAX_DOUBLINGS))


def longest_s(limit_s: float, *, ceiling_s: float) -> float:
    """Returns how long a node may keep a task whatever it reports. limit_s: its time limit of an episode; 0 if unknown.

    >>> longest_s(0, ceiling_s=86_400), longest_s(7_200, ceiling_s=86_400), longest_s(1e9, ceiling_s=86_400)
    (990.0, 7920.0, 95040.0)
    """
    limit_s = min(limit_s or DEFAULT_LIMIT_S, ceiling_s)
    return limit_s + max(MARGIN_S, MARGIN_SHARE * limit_s)
