"""An environment that a test controls: a corridor with a door at its end."""

import asyncio

from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.environments import environments
from astraflow.environments.base import EnvironmentLimits, Observation
from astraflow.runtime.config.base import Config


class CorridorOptions(Config):
    """Size and faults of the corridor."""

    length: int = 2
    """Steps to the door."""
    concurrency: int = 0
    begin_s: float = 30.0
    act_s: float = 30.0
    fault: str = ""
    """Injected fault: `hangs`, `raises`, `raises_once`, `raises_at_back`, `nan`, `text`, `many_metrics`,
    `hangs_at_begin`, `raises_at_close`, or nothing."""
    lists_actions: bool = True
    text: str = ""
    """Text of each observation, instead of the position."""
    replays_failures: bool = False


class Corridor:
    """Goes `forward` and `back`; the door wins, the other end loses. Each step forward costs nothing and gains 0.25."""

    def __init__(self, options: CorridorOptions, factory: "CorridorFactory") -> None:
        self._options = options
        self._factory = factory
        self._position = 0
        self._is_open = False

    async def begin(self, prompt: Prompt, seed: int) -> Observation:
        self._is_open = True
        self._factory.open += 1
        self._factory.most_open = max(self._factory.most_open, self._factory.open)
        self._factory.begun.append((str(prompt.id), seed))
        if self._options.fault == "hangs_at_begin":
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        return self._observation(0.0)

    async def act(self, action: str) -> Observation:
        await asyncio.sleep(0)
        self._factory.actions.append(action)
        match self._options.fault:
            case "hangs":
                await asyncio.Event().wait()
            case "raises_at_back" if action != "back":
                pass
            case "raises_once" if len(self._factory.begun) > 1:
                pass
            case "raises" | "raises_at_back" | "raises_once":
                raise ConnectionError("the world is gone")
            case "nan":
                return Observation(text="?", reward=float("nan"))
            case "text":
                return "no observation"  # type: ignore[return-value]  # the fault
            case "many_metrics":
                return Observation(text="?", metrics={f"metric_{index}": 1.0 for index in range(100)})
        if action not in ("forward", "back"):
            return Observation(text="You cannot do that.", actions=self._actions(), is_malformed=True)
        self._position += 1 if action == "forward" else -1
        return self._observation(0.25 if action == "forward" else 0.0)

    async def close(self) -> None:
        if self._is_open:
            self._factory.open -= 1
            self._is_open = False
        await asyncio.sleep(0)
        if self._options.fault == "raises_at_close":
            raise ConnectionError("the world is gone")

    def _observation(self, reward: float) -> Observation:
        ends = {self._options.length: Ending.WON, -1: Ending.LOST}
        return Observation(
            text=self._options.text or f"You are at {self._position}.",
            actions=self._actions(),
            reward=reward,
            ending=ends.get(self._position),
            state=f"position {self._position}",
            reward_terms={"progress": reward},
            metrics={"position": float(self._position)},
        )

    def _actions(self) -> tuple[str, ...]:
        return ("forward", "back") if self._options.lists_actions else ()


@environments.register("test_corridor", options=CorridorOptions)
class CorridorFactory:
    """Creates corridors, and counts those that are open."""

    latest: "CorridorFactory"

    def __init__(self, options: CorridorOptions) -> None:
        self._options = options
        self.open = self.most_open = 0
        self.begun: list[tuple[str, int]] = []
        self.actions: list[str] = []
        self.is_started = False
        self.is_checked = False
        CorridorFactory.latest = self

    @property
    def limits(self) -> EnvironmentLimits:
        options = self._options
        return EnvironmentLimits(
            concurrency=options.concurrency,
            begin_s=options.begin_s,
            act_s=options.act_s,
            replays_failures=options.replays_failures,
        )

    def make(self) -> Corridor:
        return Corridor(self._options, self)

    async def start(self) -> None:
        self.is_started = True

    async def close(self) -> None:
        self.is_started = False

    async def check(self) -> None:
        self.is_checked = True
