"""Export of a run's data: metrics to experiment trackers (TensorBoard, W&B, trackio, MLflow), trajectories to a bucket.

An exporter follows the reports of a run as a client, in a process of its own; the run does not depend on it.
"""

from astraflow.runtime.plugins import Registry
from astraflow.tracking.base import Tracker

trackers: Registry[Tracker] = Registry(
    "tracker",
    built_in={
        "mlflow": "astraflow.tracking.mlflow_tracker",
        "tensorboard": "astraflow.tracking.tensorboard_tracker",
        "trackio": "astraflow.tracking.trackio_tracker",
        "wandb": "astraflow.tracking.wandb_tracker",
    },
    heavy=("mlflow", "tensorboard", "trackio", "wandb"),
    extras={kind: kind for kind in ("mlflow", "tensorboard", "trackio", "wandb")},
)
