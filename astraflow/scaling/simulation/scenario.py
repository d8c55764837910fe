"""Description of a simulated run: a trainer, pools of nodes, and events."""

from typing import Literal, Self

from pydantic import Field, model_validator

from astraflow.runtime.config.base import Config
from astraflow.scaling.options import PoolOptions, SizerOptions


class TrainerScenario(Config):
    """Simulated trainer, and its supply with groups."""

    step_s: float = Field(default=120.0, gt=0)
    """Compute time of a step without waits. Seconds."""
    step_noise: float = Field(default=0.0, ge=0)
    """Standard deviation of the logarithm of the compute time."""
    stall_share: float = Field(default=0.0, ge=0, le=1)
    """Share of steps that take twice as long, as with an evaluation or a checkpoint."""
    batch_groups: int = Field(default=64, ge=1)
    max_staleness: int = Field(default=3, ge=1)
    """Staleness bound: batches that the gate issues besides the batch in training."""
    usable_share: float = Field(default=0.8, gt=0, le=1)
    """Share of finished groups that pass the filters."""


class PoolScenario(Config):
    """Simulated pool of nodes."""

    nodes: int = Field(ge=0)
    """Nodes at the start, all ready."""
    groups_per_s: float = Field(default=1 / 30, gt=0)
    """Rate of a busy node. Groups a second."""
    speeds: tuple[float, ...] = (1.0,)
    """Factors on `groups_per_s`, assigned to nodes in turn: mixed hardware in one pool."""
    speed_spread: float = Field(default=0.05, ge=0)
    """Additional spread between nodes, as a share."""
    rate_noise: float = Field(default=0.0, ge=0)
    """Spread from tick to tick, as a share."""
    slots: float = Field(default=2.0, gt=0)
    """Groups that a node runs at once."""
    launch_delay_s: float = Field(default=300.0, gt=0)
    """Median time from order to first task. Seconds."""
    launch_spread: float = Field(default=0.25, ge=0)
    """Standard deviation of the logarithm of the launch delay."""
    launch_failures: float = Field(default=0.0, ge=0, le=1)
    """Share of launches that fail, each after its launch delay."""
    mean_life_h: float = Field(default=0.0, ge=0)
    """Mean hours until a node is preempted, with two minutes' notice; 0: never."""
    drain_s: float = Field(default=60.0, ge=0)
    """Time in which a retired node finishes its work. Seconds."""
    bounds: PoolOptions = PoolOptions(max_nodes=400, price_per_hour=1.0)


class ScenarioEvent(Config):
    """Event of a scenario."""

    at_h: float = Field(ge=0)
    kind: Literal["demand", "rate", "loss", "out_of_capacity", "silence", "pause", "shrink_yield", "growth", "throttle"]
    """`demand`: steps take 1/factor as long. `rate`: nodes work at factor times their rate. `loss`: a share of the
    nodes is lost at once. `out_of_capacity`: the provider refuses launches. `silence`: a share of the nodes sends no
    heartbeats but works on. `pause`: no group is issued, and the trainer idles. `shrink_yield`: the usable share is
    multiplied by factor. `growth`: episodes grow with every step, up to factor at the last one (`steps` of the
    scenario). `throttle`: a share of the nodes waits, as for weights over a slow link, and works factor of the time."""
    factor: float = Field(default=1.0, gt=0)
    share: float = Field(default=1.0, gt=0, le=1)
    """Share of the nodes that the event affects."""
    duration_h: float = Field(default=0.0, ge=0)
    """Hours. `rate`: the change builds up linearly over this time. Others: the event ends after it; 0: never."""
    pool: str = ""
    """Pool that the event affects; empty: all pools."""


class Scenario(Config):
    """Simulated run. All random numbers follow from the seed."""

    name: str = ""
    summary: str = ""
    hours: float = Field(default=4.0, gt=0)
    """Maximum duration of the run. Hours."""
    steps: int = Field(default=0, ge=0)
    """Number of trainer steps after which the run ends, if sooner; 0: no such limit."""
    is_cold_start: bool = False
    """Nothing is in work or buffered at the start, and the work of a node that starts rises to its full rate over the
    time of two groups. By default every node begins in full work, beside a buffer of one and a half batches."""
    trainer: TrainerScenario = TrainerScenario()
    pools: dict[str, PoolScenario] = Field(min_length=1)
    events: tuple[ScenarioEvent, ...] = ()
    sizer: SizerOptions = SizerOptions()

    @model_validator(mode="after")
    def _pools_are_known(self) -> Self:
        for event in self.events:
            if event.pool and event.pool not in self.pools:
                raise ValueError(
                    f"cannot use the event {event.kind!r}: no pool is named {event.pool!r}; use one of its pools"
                )
        return self
