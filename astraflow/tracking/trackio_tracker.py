"""trackio: a local SQLite database, shown by `trackio show`."""

import contextlib
import io
import os

from astraflow.tracking import trackers
from astraflow.tracking.base import TrackedRun, TrackedStep, TrackerOptions


@trackers.register("trackio", options=TrackerOptions)
class TrackioTracker:
    """Logs `policy/metric` to Trackio at the step's number, and the step's time as `policy/at` in Unix seconds: the
    library records the time of the export.

    Raises `RuntimeError` if the process has imported Trackio for another folder, since the library reads it once.
    """

    def __init__(self, options: TrackerOptions, run: TrackedRun) -> None:
        self._folder = run.folder
        os.environ["TRACKIO_DIR"] = str(run.folder)  # read when the library is imported
        import trackio
        from trackio.utils import TRACKIO_DIR as FOLDER_IN_USE

        if run.folder != FOLDER_IN_USE:
            raise RuntimeError(
                f"Trackio was imported before and writes to {FOLDER_IN_USE}: "
                f"export to {run.folder} from a process of its own, as `astraflow track` does"
            )
        with contextlib.redirect_stdout(io.StringIO()):  # it prints advice for notebooks
            self.run = trackio.init(
                options.project, name=run.name, resume="allow", embed=False, auto_log_gpu=False, auto_log_cpu=False
            )

    @property
    def location(self) -> str:
        """Folder of the database."""
        return str(self._folder)

    def log(self, step: TrackedStep) -> None:
        """Logs the metrics of the step."""
        named = {f"{step.policy}/{name}": value for name, value in step.metrics.items()}
        self.run.log({**named, f"{step.policy}/at": step.at}, step=step.step)

    def close(self) -> None:
        """Writes pending metrics and ends the run."""
        with contextlib.redirect_stdout(io.StringIO()):
            self.run.finish()  # type: ignore[no-untyped-call]  # trackio has no types
