"""What a dataflow service is told about its run."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from astraflow.dataflow.keda_config import KedaConfig
from astraflow.dataflow.stopping import StopConfig
from astraflow.runtime.config import Config
from astraflow.runtime.overrides import SetBy
from astraflow.scaling.options import PoolOptions, SizerOptions

Spec = dict[str, Any]
"""A plug-in: `kind` and that kind's options."""


def _checked_range(value: tuple[float, float]) -> tuple[float, float]:
    low, high = value
    if not -MOST_REWARD <= low < high <= MOST_REWARD:
        raise ValueError(
            f"must be [lowest, highest], two different numbers between {-MOST_REWARD:g} and {MOST_REWARD:g}"
        )
    return value


MOST_REWARD = 1e9
"""Sums and squares of rewards stay far from where they overflow."""

RewardRange = Annotated[tuple[float, float], AfterValidator(_checked_range)]


class FlowConfig(Config):
    """A stream of tasks with one workflow."""

    dataset: Spec
    """Where its prompts come from."""
    workflow: Spec
    """How a task becomes an episode; names the policies that take part."""
    reward: Spec
    """How an episode is scored."""
    reward_range: RewardRange = (-1000.0, 1000.0)
    """Lowest and highest reward of a trajectory. A result with another one is a failure of the reward."""
    group_size: int = Field(default=8, ge=1)
    """Episodes of each prompt."""
    min_group_size: int = Field(default=2, ge=1)
    """A group with fewer successful members is dropped as `failed`."""
    max_attempts: int = Field(default=3, ge=1)
    """Tries of a member before an infrastructure failure masks it out of its group."""
    selector: Spec = Field(default={"kind": "uniform"})
    """Before rollout: which prompt next."""
    filters: tuple[Spec, ...] = ({"kind": "keep_all"},)
    """After rollout, in order: a group that any of them refuses is dropped under that filter's name."""
    when_full: Literal["shed", "wait"] = "shed"
    """Of several policies, when one has no room for another group and its trainer is stalled: `shed` goes on for the
    others and drops that policy's share as `full`; `wait` issues nothing. A trainer that makes steps is always waited
    for, so that no rollout is wasted on trainers of different speed."""


class EvaluationConfig(Config):
    """A flow that feeds no stream: it tells how good pinned versions are, beside training."""

    dataset: Spec
    """Where its prompts come from."""
    workflow: Spec
    """How a task becomes an episode; names the policies that are evaluated together."""
    reward: Spec
    """How an episode is scored."""
    reward_range: RewardRange = (-1000.0, 1000.0)
    """Lowest and highest reward of a trajectory. A result with another one is a failure of the reward."""
    samples: int = Field(default=4, ge=1, le=1024)
    """Episodes of each prompt: the k of avg@k, pass@k and maj@k."""
    prompts: int = Field(default=0, ge=0)
    """How many of the data set, the same ones each time, drawn by the seed; 0 is all of them."""
    every_versions: int = Field(default=0, ge=0)
    """A round begins each time the trainers have made that many versions; 0: only on request."""
    at_start: bool = False
    """A round begins with the first version as well."""
    right_from: float = 0.5
    """An answer counts as right, for pass@k and maj@k, when its reward is at least this."""
    max_attempts: int = Field(default=3, ge=1)
    """Tries of a sample before an infrastructure failure masks it out of every figure."""
    share: float = Field(default=0.25, gt=0, le=1)
    """Largest share of a node's capacity that evaluation tasks may take while training goes on; at least one task. Of
    several evaluations the largest share holds for all of them together."""


class StreamConfig(Config):
    """What one policy's trainer consumes."""

    batch_groups: int = Field(default=32, ge=1)
    """Groups in a batch."""
    max_staleness: int = Field(default=2, ge=0)
    """How many versions before the trainer's a served row may have been begun; 0 is synchronous."""
    stalled_after_steps: float = Field(default=3.0, ge=1)
    """Its trainer counts as stalled when it takes longer than that many of its usual steps, with a batch ready."""
    stalled_after_s: float = Field(default=30.0, ge=0)
    """It never counts as stalled sooner than that; before its first step this is all there is to go by."""
    sampler: Spec = Field(default={"kind": "fresh"})
    """At the batch: which of the buffered groups."""


class DataflowConfig(Config):
    """One run's flows and streams, and what nodes must know to take part."""

    run: Annotated[str, SetBy.RECIPE] = "run"
    """Name of the run, as pages show it."""
    seed: int = 0
    flows: dict[str, FlowConfig]
    evaluations: dict[str, EvaluationConfig] = Field(default_factory=dict)
    """Named as flows are: a name is a flow's or an evaluation's."""
    streams: dict[str, StreamConfig]
    """One for each policy."""
    models: Annotated[dict[str, Spec], SetBy.RECIPE]
    """How nodes build each policy's model."""
    stop: StopConfig | None = None
    """When the run is complete; absent: never."""
    engine: Annotated[Spec, SetBy.RECIPE] = Field(default={"kind": "scripted"})
    """The engine that nodes use unless told otherwise."""
    lease_s: float = Field(default=10.0, gt=0)
    """A task whose node is silent for this long goes to another."""
    beat_s: float = Field(default=1.0, gt=0)
    """How often nodes report, which renews their leases."""
    report_s: float = Field(default=1.0, gt=0)
    """Period of the report."""
    durability: Literal["disk", "none"] = "disk"
    """`disk`: whatever was answered survives a crash; `none`: nothing does, and a restart begins the run anew."""
    memory_bytes: int = Field(default=8 * 2**30, ge=1)
    """Results held in memory; while they take this much, no new groups are issued. Those that are out still count."""
    history: int = Field(default=900, ge=1)
    """Reports kept."""
    history_minutes: int = Field(default=44_640, ge=1)
    """Points of the run's history kept, one a minute: 31 days."""
    events: int = Field(default=100_000, ge=100)
    """Events kept."""
    metrics: Annotated[str, SetBy.RECIPE] = ""
    """`HOST:PORT` to serve OpenMetrics on, `off` for nowhere. By default a free port of loopback under `astraflow run`,
    and nowhere for a service by itself. Beyond loopback it needs a token, in ASTRAFLOW_METRICS_TOKEN."""
    samples: int = Field(default=4000, ge=0)
    """Trajectories kept to look at."""
    sample_bytes: int = Field(default=256 * 2**20, ge=0)
    """What they may take on disk, about."""

    pools: Annotated[dict[str, PoolOptions], SetBy.ADMIN] = Field(default_factory=dict)
    """Bounds, price and mode of each pool of nodes. A pool that is not here is advised on without bounds."""
    scaling: SizerOptions = SizerOptions()
    """How the pools' sizes are advised."""
    keda: Annotated[KedaConfig | None, SetBy.RECIPE] = None
    """Answer KEDA, which scales on Kubernetes, on a port of its own; absent: nowhere."""

    @model_validator(mode="after")
    def _names_are_free(self) -> Self:
        taken = sorted(self.flows.keys() & self.evaluations.keys())
        if taken:
            raise ValueError(f"the evaluation {taken[0]!r} has the name of a flow: choose another")
        return self
