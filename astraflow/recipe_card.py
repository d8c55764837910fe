"""Card of a recipe on the launch page: what a run shows and how long it takes."""

from typing import Annotated

from pydantic import Field

from astraflow.runtime.config import Config
from astraflow.runtime.setting_permissions import SettableBy


class CardConfig(Config):
    """Facts about a run for the list of recipes. They belong to one file: `extends` does not inherit them."""

    shows: Annotated[str, SettableBy.RECIPE] = ""
    """Purpose of a run, as a sentence."""
    minutes: Annotated[float | None, SettableBy.RECIPE] = Field(default=None, gt=0)
    """Time to the stop condition, on the machine of `measured_on`. Minutes; None if it was not measured."""
    measured_on: Annotated[str, SettableBy.RECIPE] = ""
    """Machine on which `minutes` was measured."""
    memory_gb: Annotated[float, SettableBy.RECIPE] = Field(default=0.0, ge=0)
    """Main memory of models on the CPU, in addition to that of the processes. Gigabytes."""
