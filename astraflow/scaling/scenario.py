"""What a simulated run is made of: a trainer, pools of nodes, and what happens to them when."""

from typing import Literal, Self

from pydantic import Field, model_validator

from astraflow.runtime.config import Config
from astraflow.scaling.options import PoolOptions, SizerOptions


class TrainerScenario(Config):
    """The trainer, and how dataflow feeds it."""

    step_s: float = Field(default=120.0, gt=0)
    """Compute of a step, without waiting."""
    step_noise: float = Field(default=0.0, ge=0)
    """Spread of it, as a share."""
    stall_share: float = Field(default=0.0, ge=0, le=1)
    """Of steps that take twice as long: an evaluation, a checkpoint."""
    batch_groups: int = Field(default=64, ge=1)
    max_staleness: int = Field(default=3, ge=1)
    """The issue gate lets out so many batches besides the one in training."""
    usable_share: float = Field(default=0.8, gt=0, le=1)
    """Of finished groups, those that filters let through."""


class PoolScenario(Config):
    """Nodes that are launched together."""

    nodes: int = Field(ge=0)
    """At the start, all of them ready."""
    groups_per_s: float = Field(default=1 / 30, gt=0)
    """Of a node that is busy."""
    speeds: tuple[float, ...] = (1.0,)
    """Factors on it, taken in turn by the nodes: hardware of several kinds under one name."""
    speed_spread: float = Field(default=0.05, ge=0)
    """Further spread from node to node, as a share."""
    rate_noise: float = Field(default=0.0, ge=0)
    """Spread from one half minute to the next, as a share."""
    slots: float = Field(default=2.0, gt=0)
    """Groups a node has in work at once."""
    launch_delay_s: float = Field(default=300.0, gt=0)
    """Median, from order to first task."""
    launch_spread: float = Field(default=0.25, ge=0)
    """Of its logarithm."""
    launch_failures: float = Field(default=0.0, ge=0, le=1)
    """Share of launches that fail, each after its delay."""
    life_h: float = Field(default=0.0, ge=0)
    """Mean hours until a node is taken away, with two minutes' notice; 0: never."""
    drain_s: float = Field(default=60.0, ge=0)
    """A node that is retired finishes its work for so long."""
    bounds: PoolOptions = PoolOptions(max_nodes=400, price_per_hour=1.0)


class ScenarioEvent(Config):
    """Something that happens at a time."""

    at_h: float = Field(ge=0)
    kind: Literal["demand", "rate", "lose", "drought", "silence", "pause", "shrink_yield", "growth", "starve"]
    """`demand`: steps take 1/factor as long. `rate`: nodes do factor as much. `lose`: a share of the nodes is gone at
    once. `drought`: launches are refused. `silence`: a share of the nodes sends no beats, and works on. `pause`:
    nothing is issued, and the trainer rests. `shrink_yield`: the usable share is multiplied by factor. `growth`:
    episodes grow with every step; by the last one (`steps` of the scenario) they take factor as long. `starve`: a share
    of the nodes is kept waiting, by its link to the weights for one, and works factor of the time."""
    factor: float = Field(default=1.0, gt=0)
    share: float = Field(default=1.0, gt=0, le=1)
    """Of nodes that it happens to."""
    over_h: float = Field(default=0.0, ge=0)
    """`rate`: comes on evenly over so long. Others: ends after so long, 0 for never."""
    pool: str = ""
    """It happens to this pool alone; empty: to all."""


class Scenario(Config):
    """A run to be tried out. Every number that is random follows from the seed."""

    name: str = ""
    summary: str = ""
    hours: float = Field(default=4.0, gt=0)
    """It ends after that."""
    steps: int = Field(default=0, ge=0)
    """It ends after so many trainer steps, if that is sooner; 0: it does not."""
    trainer: TrainerScenario = TrainerScenario()
    pools: dict[str, PoolScenario] = Field(min_length=1)
    events: tuple[ScenarioEvent, ...] = ()
    sizer: SizerOptions = SizerOptions()

    @model_validator(mode="after")
    def _pools_are_known(self) -> Self:
        for event in self.events:
            if event.pool and event.pool not in self.pools:
                raise ValueError(f"the event {event.kind!r} is about the pool {event.pool!r}, which is not there")
        return self
