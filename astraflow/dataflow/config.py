"""Configuration of a dataflow service."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from astraflow.agents.environment_flows import with_environment
from astraflow.contract.rollouts.limits import MAX_ABS_REWARD
from astraflow.contract.rollouts.recording import ColumnNeeds
from astraflow.dataflow.endpoint_config import KedaConfig
from astraflow.dataflow.stop_condition import StopConfig
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.scaling.options import PoolOptions, SizerOptions

Spec = dict[str, Any]
"""Specification of a plugin: `kind` and the options of that kind."""


def _checked_range(value: tuple[float, float]) -> tuple[float, float]:
    low, high = value
    if not -MAX_ABS_REWARD <= low < high <= MAX_ABS_REWARD:
        raise ValueError(
            f"must be [lowest, highest], two different numbers between {-MAX_ABS_REWARD:g} and {MAX_ABS_REWARD:g}"
        )
    return value


RewardRange = Annotated[tuple[float, float], AfterValidator(_checked_range)]


class GroupRewardConfig(Config):
    """A comparison of the members of a group, which changes their rewards before the filters see them.

    A member's reward becomes `base_weight * reward + weight * score`. Members of one policy and role are compared.
    """

    reward: Annotated[Spec, SettableBy.RECIPE]
    """Group reward: kind and options."""
    weight: float = Field(default=1.0, allow_inf_nan=False)
    """Factor of the group reward's score."""
    base_weight: float = Field(default=1.0, allow_inf_nan=False)
    """Factor of the reward that the node computed; 0 replaces it."""
    policies: Annotated[tuple[str, ...], SettableBy.AGENT] = ()
    """Policies whose trajectories are compared; empty: all of the flow."""
    concurrency: int = Field(default=8, ge=1, le=1024)
    """Groups that are scored at the same time; others wait, and the staleness gate counts them."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Time limit of one attempt for a group. Seconds."""
    attempts: int = Field(default=3, ge=1)
    """Attempts before a group is dropped as `group_reward_failed`."""


class _Episodes(Config):
    """Prompts and episodes, which an environment may give."""

    environment: Annotated[Spec, SettableBy.RECIPE] = Field(default_factory=dict)
    """Environment by its kind, such as `verifiers`, and its options. It gives the workflow that plays in it, the
    reward, and the dataset of the same kind, if there is one. Options in `dataset` and `workflow` are added; one with a
    `kind` replaces what the environment gives. Empty: `dataset` and `workflow` say all."""

    @model_validator(mode="before")
    @classmethod
    def _of_environment(cls, values: Any) -> Any:
        return with_environment(values) if isinstance(values, dict) and values.get("environment") else values


class FlowConfig(_Episodes):
    """Tasks with one workflow that feed the policies' streams."""

    dataset: Spec
    """Source of the prompts."""
    workflow: Spec
    """How a task becomes an episode; names the policies that take part."""
    reward: Spec = Field(default={"kind": "exact_match"})
    """How an episode is scored. The workflow `dataset_answers` does not use it, nor do workflows whose environment
    scores; leave it out there."""
    group_reward: GroupRewardConfig | None = None
    """Changes the rewards of a finished group by comparing its members; None: nothing does."""
    reward_range: RewardRange = (-1000.0, 1000.0)
    """Lowest and highest reward of a trajectory. A result outside the range is a failure of the reward. The reward of a
    turn, and the sum of a trajectory's turns, may have the magnitude of the ends and of the width of the range."""
    max_trajectory_tokens: int = Field(default=2**20, ge=1)
    """Largest number of tokens of a trajectory. Smaller limits follow from the options of the workflow, such as
    `max_context`, and from the longest row that the trainer can train. A longer result is a failure of the engine."""
    group_size: int = Field(default=8, ge=1)
    """Episodes per prompt."""
    min_group_size: int = Field(default=2, ge=1)
    """A group with fewer successful members is dropped as `failed`."""
    max_attempts: int = Field(default=3, ge=1)
    """Attempts per member before an infrastructure failure masks it out of its group."""
    selector: Spec = Field(default={"kind": "uniform"})
    """Before rollout: chooses the next prompt."""
    filters: tuple[Spec, ...] = ({"kind": "keep_all"},)
    """After rollout, in order: a group that a filter refuses is dropped under that filter's name."""
    when_full: Annotated[Literal["shed", "wait"], SettableBy.AGENT] = "shed"
    """With several policies, when one has no headroom for another group and its trainer is stalled: `shed` continues
    for the others and drops that policy's share as `full`; `wait` issues nothing. A flow always waits for a trainer
    that makes steps, so that no rollout is wasted on trainers of different speed."""


class EvaluationConfig(_Episodes):
    """A flow that feeds no stream: it measures pinned versions during training."""

    dataset: Spec
    """Source of the prompts."""
    workflow: Spec
    """How a task becomes an episode; names the policies that are evaluated together."""
    reward: Spec = Field(default={"kind": "exact_match"})
    """How an episode is scored. Workflows whose environment scores do not use it; leave it out there."""
    reward_range: RewardRange = (-1000.0, 1000.0)
    """Lowest and highest reward of a trajectory. A result outside the range is a failure of the reward. The reward of a
    turn, and the sum of a trajectory's turns, may have the magnitude of the ends and of the width of the range."""
    max_trajectory_tokens: int = Field(default=2**20, ge=1)
    """Largest number of tokens of a trajectory. Smaller limits follow from the options of the workflow, such as
    `max_context`, and from the longest row that the trainer can train. A longer result is a failure of the engine."""
    samples: int = Field(default=4, ge=1, le=1024)
    """Episodes per prompt: the k of avg@k, pass@k and maj@k."""
    prompts: int = Field(default=0, ge=0)
    """Number of prompts taken from the dataset, the same prompts each round, drawn by the seed; 0: all."""
    every_versions: int = Field(default=0, ge=0)
    """A round begins each time the trainers have published this many versions; 0: only on request."""
    at_start: Annotated[bool, SettableBy.AGENT] = False
    """Begin a round with the first version as well."""
    correct_threshold: float = 0.5
    """Smallest reward of an answer that counts as correct for pass@k and maj@k."""
    max_attempts: int = Field(default=3, ge=1)
    """Attempts per sample before an infrastructure failure masks it out of every figure."""
    share: float = Field(default=0.25, gt=0, le=1)
    """Largest share that evaluation tasks may use during training: of the capacity of a node that has a second engine
    for them, at least one task; of the nodes with servers, which are reserved for a round, at least one node. With
    several evaluations the largest share applies to all of them together."""


class StreamConfig(Config):
    """The batches that one policy's trainer consumes."""

    batch_groups: int = Field(default=32, ge=0)
    """Groups per batch; 0 with `batch_tokens`."""
    batch_tokens: int = Field(default=0, ge=0)
    """Distinct tokens per batch, instead of `batch_groups`; 0: that many groups. A batch ends with the group that
    reaches the number. Tokens that trajectories of a group share at their beginning count once."""
    max_staleness: int = Field(default=2, ge=0)
    """Largest difference in versions between the trainer and the start of a served row; 0 is synchronous."""
    pacing: Annotated[bool, SettableBy.AGENT] = True
    """Issue groups as late as keeps the trainer supplied, so that batches are fresher than the bound. False: issue as
    many groups as the bound admits."""
    stalled_after_steps: float = Field(default=3.0, ge=1)
    """The trainer counts as stalled when a step takes longer than this many usual steps while a batch is ready."""
    stalled_after_s: float = Field(default=30.0, ge=0)
    """Lower bound of that time, and the only bound before the trainer's first step. Seconds."""
    sampler: Spec = Field(default={"kind": "fresh"})
    """At the batch: chooses among the buffered groups."""

    @model_validator(mode="before")
    @classmethod
    def _tokens_replace_the_default(cls, values: Any) -> Any:
        is_sized = isinstance(values, dict) and values.get("batch_tokens") and "batch_groups" not in values
        return {**values, "batch_groups": 0} if is_sized else values

    @model_validator(mode="after")
    def _size_is_one(self) -> Self:
        if bool(self.batch_groups) == bool(self.batch_tokens):
            raise ValueError("either batch_groups or batch_tokens sizes a batch: set the other one to 0")
        return self


class TeacherChoiceConfig(Config):
    """Choice between the teachers of a policy."""

    field: Annotated[str, SettableBy.RECIPE]
    """Field of prompts with the name of a teacher."""
    names: Annotated[tuple[str, ...], SettableBy.RECIPE]
    """Names of the teachers."""


class DataflowConfig(Config):
    """Flows and streams of one run, and the settings that its nodes need."""

    run: Annotated[str, SettableBy.RECIPE] = "run"
    """Name of the run, shown on pages."""
    seed: int = 0
    flows: dict[str, FlowConfig]
    evaluations: dict[str, EvaluationConfig] = Field(default_factory=dict)
    """By name; an evaluation and a flow cannot have the same name."""
    streams: dict[str, StreamConfig]
    """By policy that is trained."""
    models: Annotated[dict[str, Spec], SettableBy.RECIPE]
    """How nodes build the model of each policy."""
    temperatures: Annotated[dict[str, float], SettableBy.RECIPE] = Field(default_factory=dict)
    """`FlowSpec.temperatures`."""
    columns: Annotated[dict[str, ColumnNeeds], SettableBy.RECIPE] = Field(default_factory=dict)
    """Columns that the algorithm of each policy needs of every token; absent: none."""
    teachers: Annotated[dict[str, TeacherChoiceConfig], SettableBy.RECIPE] = Field(default_factory=dict)
    """Policies whose teachers are chosen by a field of the prompts."""
    stop: StopConfig | None = None
    """Condition that completes the run; None: the run never completes."""
    engine: Annotated[Spec, SettableBy.RECIPE] = Field(default={"kind": "scripted"})
    """Engine of nodes that configure no engine."""
    engines: Annotated[dict[str, Spec], SettableBy.RECIPE] = Field(default_factory=dict)
    """Engines of single policies on such nodes, instead of `engine`."""
    lease_s: float = Field(default=10.0, gt=0)
    """A task is leased again when its node has not reported for this long. Seconds."""
    episode_ceiling_s: float = Field(default=86_400.0, gt=0)
    """Longest time limit of an episode that is granted to a node: a task that a node holds beyond its
    `episode_timeout_s`, or beyond this, and a tenth is leased again, whatever the node reports. Seconds."""
    heartbeat_s: float = Field(default=1.0, gt=0)
    """Interval between the reports of a node, which renew its leases. Seconds."""
    report_s: float = Field(default=1.0, gt=0)
    """Period of the report. Seconds."""
    durability: Annotated[Literal["disk", "none"], SettableBy.AGENT] = "disk"
    """`disk`: everything that was acknowledged survives a crash; `none`: nothing does; a restart begins a new run."""
    memory_bytes: int = Field(default=8 * 2**30, ge=1)
    """Results held in memory; no new groups are issued while they exceed this. Groups already issued still count."""
    history: int = Field(default=900, ge=1)
    """Number of reports retained."""
    history_minutes: int = Field(default=44_640, ge=1)
    """Points of the run's history retained, one per minute: 31 days."""
    events: int = Field(default=100_000, ge=100)
    """Number of events retained."""
    metrics: Annotated[str, SettableBy.RECIPE] = ""
    """`HOST:PORT` of the OpenMetrics endpoint, or `off`. By default a free loopback port under `astraflow run`, and off
    for a service on its own. Beyond loopback it requires a token in ASTRAFLOW_METRICS_TOKEN."""
    samples: int = Field(default=10_000, ge=0)
    """Number of trajectories retained for inspection: the newest, and in at most half of this number groups of earlier
    steps over the whole run."""
    samples_per_step: int = Field(default=2, ge=0)
    """Groups of each training step, and of each version of an evaluation, that are retained as groups of earlier steps,
    of the same prompts where possible. When they do not fit, steps are left out at distances that grow with their
    number. 0: only the newest groups."""
    sample_bytes: int = Field(default=256 * 2**20, ge=0)
    """Approximate disk space of the retained trajectories. Bytes."""

    pools: Annotated[dict[str, PoolOptions], SettableBy.ADMIN] = Field(default_factory=dict)
    """Bounds, price and mode of each pool of nodes. A pool without an entry gets recommendations without bounds."""
    scaling: SizerOptions = SizerOptions()
    """How recommended pool sizes are computed."""
    keda: Annotated[KedaConfig | None, SettableBy.RECIPE] = None
    """Endpoint for KEDA, which scales on Kubernetes, on its own port; None: off."""

    @model_validator(mode="after")
    def _names_are_free(self) -> Self:
        duplicates = sorted(self.flows.keys() & self.evaluations.keys())
        if duplicates:
            raise ValueError(f"cannot name an evaluation {duplicates[0]!r}: a flow has this name; choose another name")
        return self
