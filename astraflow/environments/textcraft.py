"""Environment of the dataset `textcraft`: take items and craft others until the inventory holds the goal.

Rules of TextCraft (ADaPT, arXiv:2311.05772), with the counts of the goal: `get 2 oak log`, `craft 4 oak plank using 1
oak log` and `inventory`.
"""

from pydantic import Field

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.environments import environments
from astraflow.environments.base import EnvironmentLimits, Observation
from astraflow.environments.textcraft_world import CraftingWorld, world_of
from astraflow.runtime.config.base import Config


class TextcraftOptions(Config):
    """Limit of an episode."""

    max_steps: int = Field(default=0, ge=0)
    """Commands in an episode; then it ends without a reward. 0: no limit but that of the workflow."""


@environments.register("textcraft", options=TextcraftOptions)
class TextcraftFactory:
    """Crafting tasks of the dataset `textcraft`. Reward 1 once the inventory holds the goal."""

    def __init__(self, options: TextcraftOptions) -> None:
        self._options = options

    @property
    def limits(self) -> EnvironmentLimits:
        """Limits: commands take microseconds."""
        return EnvironmentLimits(begin_s=10.0, act_s=10.0)

    def make(self) -> "TextcraftEnvironment":
        """Returns a new environment."""
        return TextcraftEnvironment(self._options)

    async def check(self) -> None:
        """Needs nothing."""


class TextcraftEnvironment:
    """One task with one agent."""

    def __init__(self, options: TextcraftOptions) -> None:
        self._options = options
        self._world: CraftingWorld | None = None
        self._ending: Ending | None = None

    async def begin(self, prompt: Prompt, _seed: int) -> Observation:
        """Shows the recipes and the goal. The seed has no effect. Raises: InvalidInput for another dataset's prompt."""
        world = self._world = world_of(prompt, max_steps=self._options.max_steps or None)
        return Observation(text=str(prompt.fields.get("question", "")), state=world.inventory_text)

    async def act(self, action: str) -> Observation:
        """Performs a command. Raises: InvalidInput before `begin`."""
        world = self._world
        if world is None:
            raise InvalidInput(
                "cannot act in the environment: it has not begun; call `begin` first", code="environment.not_begun"
            )
        if self._ending is not None:
            return Observation(text="The episode has ended.", ending=self._ending)
        result = world.perform(action)
        if result.is_malformed:
            return Observation(text=result.text, is_malformed=True, state=world.inventory_text)
        self._ending = Ending.WON if world.is_won else Ending.BUDGET if world.steps_left == 0 else None
        reward = 1.0 if self._ending is Ending.WON else 0.0
        return Observation(text=result.text, reward=reward, ending=self._ending, state=world.inventory_text)

    async def close(self) -> None:
        """Has nothing to release."""
