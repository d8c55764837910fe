"""Environments of the package `openenv`, each session in a server of its own process, or at an address."""

from dataclasses import replace
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets import datasets
from astraflow.datasets.base import ANSWER, QUESTION, GeneratedDataset
from astraflow.environments import environments
from astraflow.environments.adapters.process import ProcessEnvironment
from astraflow.environments.adapters.worker_pool import PooledFactory, StepOptions
from astraflow.environments.base import EnvironmentLimits
from astraflow.environments.foreign.workers import WorkerOptions, foreign_pool
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy

RESET = "reset"
"""Field of a prompt: the arguments of `reset`."""


class OpenEnvOptions(WorkerOptions, StepOptions):
    """Server, and how its observations are shown."""

    id: Annotated[str, SettableBy.RECIPE] = Field(default="", pattern=r"^([\w.]+:\w+)?$")
    """Application of an installed environment as `module:name`, such as `echo_env.server.app:app`; each process
    serves it. Empty: `url` names a server."""
    url: Annotated[str, SettableBy.RECIPE] = Field(default="", pattern=r"^(https?://.+)?$")
    """Address of a server that runs already, such as one in a container. All processes use it."""
    text: Annotated[str, SettableBy.RECIPE] = ""
    """Field of an observation that the policy reads; empty: all of them, as JSON."""

    @model_validator(mode="after")
    def _check_server(self) -> Self:
        if bool(self.id) == bool(self.url):
            raise ValueError("set either `id` or `url`")
        return self


@environments.register("openenv", options=OpenEnvOptions)
class OpenEnvFactory(PooledFactory):
    """Environments of the package `openenv`. Rewards of steps are summed; an action is a JSON object, or the value of
    its only property. An action at which the application raises again in a replay has the least reward."""

    def __init__(self, options: OpenEnvOptions) -> None:
        values = options.model_dump(mode="json", include={"id", "url", "text"})
        super().__init__(foreign_pool("openenv", options, values), options)

    @property
    def limits(self) -> EnvironmentLimits:
        """Limits of the workers."""
        return replace(super().limits, replays_failures=True)

    def make(self) -> ProcessEnvironment:
        """Returns a new environment."""
        return ProcessEnvironment(self._pool, self._options)


class OpenEnvResetsOptions(Config):
    """Arguments of `reset`."""

    size: int = Field(default=1000, ge=1, le=10**9)
    """Number of prompts."""
    reset: Annotated[dict[str, Any], SettableBy.RECIPE] = Field(default_factory=dict)
    """Arguments that are the same for all prompts, such as `split`."""
    index: Annotated[str, SettableBy.RECIPE] = Field(default="seed", pattern=r"^\w{1,100}$")
    """Argument that gets the number of the prompt: `seed`, or `index` for an environment with tasks."""


@datasets.register("openenv", options=OpenEnvResetsOptions)
class OpenEnvResets(GeneratedDataset):
    """Numbered arguments of `reset`, so that all members of a group begin alike.

    Fields: question (the arguments), answer (empty: the environment decides), reset.
    """

    def __init__(self, options: OpenEnvResetsOptions, _seed: int) -> None:
        super().__init__(options.size)
        self._options = options

    def _prompt(self, index: int) -> Prompt:
        reset = {**self._options.reset, self._options.index: index}
        question = ", ".join(f"{name} {value}" for name, value in reset.items())
        return Prompt(id=PromptId(f"openenv:{index}"), fields={QUESTION: question, ANSWER: "", RESET: reset})
