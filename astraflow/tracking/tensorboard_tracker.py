"""TensorBoard: event files in a folder, shown by `tensorboard --logdir FOLDER`."""

from tensorboard.summary import Writer

from astraflow.tracking import trackers
from astraflow.tracking.base import TrackedRun, TrackedStep, TrackerOptions


@trackers.register("tensorboard", options=TrackerOptions)
class TensorBoardTracker:
    """Writes files for TensorBoard: one scalar per metric, tagged `policy/metric`.

    A restart adds an event file to the same folder.
    """

    def __init__(self, options: TrackerOptions, run: TrackedRun) -> None:
        self._folder = run.folder / options.project / run.name
        self._writer = Writer(str(self._folder))

    @property
    def location(self) -> str:
        """Folder of the event files."""
        return str(self._folder)

    def log(self, step: TrackedStep) -> None:
        """Writes the scalars and flushes."""
        for name, value in step.metrics.items():
            self._writer.add_scalar(f"{step.policy}/{name}", value, step.step, wall_time=step.at)
        self._writer.flush()

    def close(self) -> None:
        """Closes the event file."""
        self._writer.close()
