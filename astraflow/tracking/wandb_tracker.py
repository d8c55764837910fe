"""Weights & Biases: offline by default, uploaded later by `wandb sync FOLDER`; or online with an API key."""

from typing import Annotated, Literal

import wandb

from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.tracking import trackers
from astraflow.tracking.base import TrackedRun, TrackedStep, TrackerOptions


class WandbOptions(TrackerOptions):
    """Options of the tracker `wandb`."""

    mode: Annotated[Literal["offline", "online"], SettableBy.RECIPE] = "offline"
    """`online` sends to the server that the library is configured for; its API key comes from WANDB_API_KEY."""
    entity: str | None = None
    """User or team; the library's default when absent."""


@trackers.register("wandb", options=WandbOptions)
class WandbTracker:
    """Logs `policy/metric` to Weights & Biases over `policy/step`.

    A restarted exporter continues the run of the same id.
    """

    def __init__(self, options: WandbOptions, run: TrackedRun) -> None:
        self._folder = run.folder
        self._is_offline = options.mode == "offline"
        settings = wandb.Settings(
            console="off", silent=True, x_disable_stats=True, disable_git=True, save_code=False, x_disable_meta=True
        )
        self._run = wandb.init(
            project=options.project,
            entity=options.entity,
            name=run.name,
            id=run.id,
            dir=run.folder,
            mode=options.mode,
            resume="allow",
            settings=settings,
        )
        self._policies: set[str] = set()

    @property
    def location(self) -> str:
        """Address of the run, or its local folder while offline."""
        return str(self._folder / "wandb") if self._is_offline else str(self._run.url)

    def log(self, step: TrackedStep) -> None:
        """Logs the metrics of the step."""
        if step.policy not in self._policies:
            self._policies.add(step.policy)
            self._run.define_metric(f"{step.policy}/*", step_metric=f"{step.policy}/step")
        named = {f"{step.policy}/{name}": value for name, value in step.metrics.items()}
        self._run.log({**named, f"{step.policy}/step": step.step})

    def close(self) -> None:
        """Flushes and ends the run."""
        self._run.finish()
