"""MLflow: a tracking server, or a local SQLite database shown by `mlflow ui --backend-store-uri URI`."""

from pathlib import Path
from typing import Annotated

from mlflow import MlflowClient
from mlflow.entities import Metric

from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.tracking import trackers
from astraflow.tracking.base import TrackedRun, TrackedStep, TrackerOptions

_RUN_TAG = "astraflow.id"


class MlflowOptions(TrackerOptions):
    """Options of the tracker `mlflow`."""

    uri: Annotated[str, SettableBy.RECIPE] = ""
    """Address of the tracking server, or a database URI; empty for a SQLite database in the exporter's folder."""


def experiment_of(client: MlflowClient, project: str) -> str:
    """Returns the id of a project's experiment, a new one if there is none. Its files are beside a database of SQLite,
    not in the working directory."""
    existing = client.get_experiment_by_name(project)
    if existing is not None:
        return str(existing.experiment_id)
    scheme, _, path = client.tracking_uri.partition(":///")
    files = (Path(path).absolute().parent / "mlruns" / project).as_uri() if scheme == "sqlite" else None
    return str(client.create_experiment(project, artifact_location=files))


@trackers.register("mlflow", options=MlflowOptions)
class MlflowTracker:
    """Logs `policy/metric` to MLflow at the step's number.

    A restarted exporter continues the run with the same id tag.
    """

    def __init__(self, options: MlflowOptions, run: TrackedRun) -> None:
        self._uri = options.uri or f"sqlite:///{(run.folder / 'mlflow.db').absolute()}"
        self._client = MlflowClient(self._uri)
        experiment = experiment_of(self._client, options.project)
        runs = self._client.search_runs([experiment], filter_string=f"tags.`{_RUN_TAG}` = '{run.id}'", max_results=1)
        record = runs[0] if runs else self._client.create_run(experiment, run_name=run.name, tags={_RUN_TAG: run.id})
        self._run_id = record.info.run_id

    @property
    def location(self) -> str:
        """Tracking server or database, without user and password."""
        return self._uri.rpartition("@")[2]

    def log(self, step: TrackedStep) -> None:
        """Logs the metrics of the step in one request."""
        at_ms = int(step.at * 1000)
        metrics = [Metric(f"{step.policy}/{name}", value, at_ms, step.step) for name, value in step.metrics.items()]
        self._client.log_batch(self._run_id, metrics)

    def close(self) -> None:
        """Marks the run as finished."""
        self._client.set_terminated(self._run_id)
