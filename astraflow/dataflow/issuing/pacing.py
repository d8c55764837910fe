"""Pacing: groups of a stream are issued as late as keeps its trainer supplied, within the staleness gate.

The gate only bounds how old a trained group may be; with capacity to spare, every group would be that old. So the
number of outstanding groups, issued and not yet in a batch, is limited to those that must be on their way:

    limit = F + max(F / 4, √F) + 1.15 · (F / S) · L + cushion      at most what the gate admits

F: fresh groups of a batch. S: compute time of a step, without its wait, which would feed back into itself. L: mean time
from the issue of a group to its last result; by Little's law F / S groups a second are open for L each. The cushion
grows with every pull that waited, and shrinks slowly while complete groups pile up.
`python -m benchmarks.pacing` compares it with the gate alone and with the best constant limit.
"""

from collections import deque
from dataclasses import dataclass

from astraflow.contract.reports.report import Pace

MARGIN_SHARE = 0.25
"""Groups beyond the next batch, as a share of a batch: steps and episodes vary."""

MARGIN_FLOW = 1.15
"""Groups in work, as a multiple of those that the mean rates need."""

CUSHION_STEP = 1.0
"""Growth of the cushion after a wait of a whole step. Batches."""

CUSHION_DECAY = 0.015
"""Decrease of the cushion with each batch, while more than `SURPLUS_SHARE` is left over. Batches."""

SURPLUS_SHARE = 0.25
"""Complete groups left over by a batch, as a share of it, that show the cushion to be larger than needed."""

SURPLUS_BATCHES = 20
"""Batches over which the surplus is judged; its 10 % quantile counts. Count."""

STEP_WEIGHT = 0.3
"""Weight of the newest step in the smoothed compute time."""

WINDOW_BATCHES = 4
"""Batches of finished groups over which their durations and the share that passes the filters are averaged. Count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedGroup:
    """A group whose last result arrived."""

    duration_s: float | None
    """Since its issue; None if dataflow was restarted in between."""
    is_usable: bool
    """True if it passed the filters."""


class FinishedGroups:
    """Last finished groups and their sums, which every request for tasks reads."""

    def __init__(self) -> None:
        self._groups: deque[FinishedGroup] = deque()
        self.timed = 0
        """Groups with a duration. Count."""
        self.duration_s = 0.0
        """Sum of the durations. Seconds."""
        self.usable = 0
        """Groups that passed the filters. Count."""

    def __len__(self) -> int:
        return len(self._groups)

    def append(self, group: FinishedGroup, *, size: int) -> None:
        """Adds a group, and removes the oldest ones beyond the size of the window."""
        while len(self._groups) >= size:
            self._count(self._groups.popleft(), -1)
        self._groups.append(group)
        self._count(group, 1)

    def _count(self, group: FinishedGroup, sign: int) -> None:
        self.usable += sign * group.is_usable
        if group.duration_s is not None:
            self.timed += sign
            self.duration_s = max(0.0, self.duration_s + sign * group.duration_s)


class Pacer:
    """Limit on the outstanding groups of one stream. Callers pass times, in seconds.

    There is no limit until a step and a batch of groups were measured, and none where the gate admits no more than the
    next batch and the margin: a synchronous run (a bound of 0) is left alone.
    """

    def __init__(self, *, batch_groups: int, max_staleness: int) -> None:
        self.batch_groups = batch_groups
        """Groups of a batch. Changes where tokens size batches."""
        self._max_batches = max_staleness + 1
        self._window = FinishedGroups()
        self._surplus: deque[int] = deque(maxlen=SURPLUS_BATCHES)
        self._waiting_since: float | None = None
        self._waited_s = 0.0
        self._step_s = 0.0
        self._cushion = 0.0

    def observe_group(self, group: FinishedGroup) -> None:
        """Records a group whose last result arrived."""
        self._window.append(group, size=WINDOW_BATCHES * self.batch_groups)

    def observe_missing_batch(self, *, now: float) -> None:
        """Records that a pull found too few groups."""
        if self._waiting_since is None:
            self._waiting_since = now

    def observe_batch(self, surplus_groups: int, *, now: float) -> None:
        """Records a new batch. surplus_groups: complete groups that it left over."""
        self._surplus.append(surplus_groups)
        self._waited_s = 0.0 if self._waiting_since is None else now - self._waiting_since
        self._waiting_since = None

    def observe_step(self, compute_s: float) -> None:
        """Records a step, by its time without the wait for its batch."""
        newest = max(compute_s, 1e-6)
        self._step_s = self._step_s + STEP_WEIGHT * (newest - self._step_s) if self._step_s else newest
        self._cushion += CUSHION_STEP * self.batch_groups * min(1.0, self._waited_s / self._step_s)
        self._waited_s = 0.0
        is_judged = len(self._surplus) == SURPLUS_BATCHES
        if is_judged and sorted(self._surplus)[SURPLUS_BATCHES // 10] > SURPLUS_SHARE * self.batch_groups:
            self._cushion -= CUSHION_DECAY * self.batch_groups
        self._cushion = min(max(self._cushion, -self._max_groups), self._max_groups)

    @property
    def _max_groups(self) -> int:
        return self._max_batches * self.batch_groups

    def pace(self, *, open_groups: int, buffered: int, fresh_groups: float) -> Pace | None:
        """Returns the limit and how much of it is used; None while only the gate decides.

        open_groups: issued groups without all results. buffered: complete groups outside of batches. fresh_groups:
        those of a batch that were not trained before.
        """
        lowest = fresh_groups + max(MARGIN_SHARE * fresh_groups, fresh_groups**0.5)
        if not self._step_s or self._window.timed < self.batch_groups or not 0 < lowest < self._max_groups:
            return None
        group_s = self._window.duration_s / self._window.timed
        in_work = MARGIN_FLOW * fresh_groups / self._step_s * group_s
        return Pace(
            limit=min(max(lowest + in_work + self._cushion, lowest), self._max_groups),
            outstanding=buffered + open_groups * self._window.usable / len(self._window),
            group_s=group_s,
            step_s=self._step_s,
        )
