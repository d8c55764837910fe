"""Drops repetitive groups. (seq-rep-n of Neural text unlikelihood, arXiv:1908.04319)"""

import numpy as np
import numpy.typing as npt
from pydantic import Field

from astraflow.contract.ids import Version
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.dataflow.admission.filters import filters
from astraflow.dataflow.admission.routing import RoutedGroup
from astraflow.dataflow.plugin_slot import SavedCounts
from astraflow.runtime.config.base import Config


class RepetitionOptions(Config):
    """Repetition limit of a trajectory, and the accepted share of repetitive trajectories."""

    tokens: int = Field(default=4, ge=1)
    """Length of the n-grams that are compared."""
    max_repetition: float = Field(default=0.5, ge=0, lt=1)
    """A trajectory is repetitive when a larger share of its n-grams occurred in it before."""
    max_share: float = Field(default=0.5, ge=0, lt=1)
    """A group is dropped when a larger share of its trajectories is repetitive."""


@filters.register("repetition", options=RepetitionOptions)
class Repetition(SavedCounts):
    """Drops groups of mostly repetitive trajectories.

    Compares n-grams within each run of model-written tokens; prompt and observation tokens may repeat.
    """

    saved = ("sum", "rows")

    def __init__(self, options: RepetitionOptions) -> None:
        self._options = options
        self._sum = 0.0
        self._rows = 0

    def keep(self, group: RoutedGroup, version: Version) -> bool:
        """Returns whether few enough trajectories are repetitive."""
        shares = [repeated_share(row.trajectory, tokens=self._options.tokens) for row in group.rows]
        self._sum += sum(shares)
        self._rows += len(shares)
        return sum(share > self._options.max_repetition for share in shares) <= self._options.max_share * len(shares)

    def metrics(self) -> dict[str, float]:
        """Returns the mean share of repeated n-grams."""
        return {"repeated_share": self._sum / self._rows if self._rows else 0.0}


def repeated_share(trajectory: Trajectory, *, tokens: int) -> float:
    """Returns the share of the trajectory's n-grams that occurred in it before; 0 without n-grams.

    tokens: the n of the n-grams, over model-written tokens.
    """
    grams = [gram for stretch in _stretches(trajectory) for gram in _grams(stretch, tokens)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def _stretches(trajectory: Trajectory) -> list[npt.NDArray[np.int32]]:
    """Returns the runs of consecutive model-written tokens; a change of version does not end a run."""
    mask = np.concatenate(([False], trajectory.loss_mask(), [False]))
    edges = np.flatnonzero(mask[1:] != mask[:-1])
    return [trajectory.tokens[begin:end] for begin, end in edges.reshape(-1, 2)]


def _grams(stretch: npt.NDArray[np.int32], tokens: int) -> list[bytes]:
    data, width = stretch.tobytes(), stretch.itemsize
    return [data[width * start : width * (start + tokens)] for start in range(len(stretch) - tokens + 1)]
