"""Interface of providers: clouds, clusters or hosts on which the fleet service starts instances.

Every call is idempotent. The fleet service records a launch id, then launches under it. The id is a tag of the instance
from its creation on, so that it identifies started instances after any failure.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, runtime_checkable

from astraflow.contract.errors import AstraFlowError


class ProviderError(AstraFlowError):
    """A provider call failed. Always one of the six types below, each with its own next step."""


class RetryError(ProviderError):
    """Temporary failure: throttling, timeout, lost connection. The call may have succeeded: check, then retry."""


class QuotaError(ProviderError):
    """The account's limit is reached. No instance was started; a person must raise the limit."""


class CapacityError(ProviderError):
    """The provider has no capacity. No instance was started; use another type, region or provider, or retry later."""


class AuthError(ProviderError):
    """The credentials are missing, expired or insufficient. No instance was started; a person must correct them."""


class InvalidError(ProviderError):
    """Invalid request: unknown type, bad options, launch id with another spec. No instance was started."""


class UnknownError(ProviderError):
    """Other failure. The call may have succeeded: check before a retry."""


class State(Enum):
    """State of an instance at its provider: PENDING ─► RUNNING ─► TERMINATING ─► GONE, and from each state to GONE.

    An instance that does not start is STUCK instead of RUNNING.
    """

    PENDING = "pending"
    """The instance is being created or boots."""
    STUCK = "stuck"
    """The launch failed: the instance will not boot, and holds its resources until it is retired."""
    RUNNING = "running"
    """The node's program has been started."""
    TERMINATING = "terminating"
    """The instance is terminating on request or by preemption."""
    GONE = "gone"
    """The instance has terminated and is not billed."""


class RetireResult(Enum):
    """Result of a retire call."""

    GONE = "gone"
    """The instance has ended, or never existed."""
    TERMINATING = "terminating"
    """The instance is terminating; call again to learn when it has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """Tags that are set on the instance in the call that creates it."""

    cluster: str
    """Fleet service that owns the instance. Instances without this tag are never touched."""
    pool: str
    run: str
    expires_at: float
    """Unix seconds after which any process may terminate the instance, as a last resort against leaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """Node that an instance runs: options of `astraflow join`."""

    dataflow: str
    """`HOST:PORT` of dataflow, as seen from the instance."""
    engine: str = ""
    """Engine kind, or a TOML table of its options; empty for the run's default."""
    capacity: int | None = None
    """Concurrent episodes; None for the node's default."""
    policies: tuple[str, ...] = ()
    """Policies that the node serves; empty for all."""
    drain_s: float = 0.0
    """Time for episodes to finish when the instance is retired without a drain. Seconds."""
    dataflow_timeout_s: float = 900.0
    """Time without an answer from dataflow after which the node terminates itself. Seconds."""
    usd_per_hour: float = 0.0
    """Quoted price of the instance, which the node reports when it joins; 0 when unknown."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "policies", tuple(self.policies))  # stored as a list


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """Request to launch an instance."""

    tags: Tags
    node: NodePlan
    type: str = ""
    """Instance type, as the provider names it; empty for the default."""
    region: str = ""
    """Region; empty for the provider's default."""
    is_spot: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    """Provider-specific options from the pool's spec."""
    token: str = field(default="", repr=False)
    """Join token of the node. A secret: passed in the environment, never in a command line, a tag or an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """Reference to an instance at its provider."""

    provider: str
    """Kind of the provider."""
    id: str
    """The provider's id of the instance."""
    launch_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Instance as reported by its provider."""

    handle: Handle
    tags: Tags | None
    """None when the instance never existed, or its tags are lost."""
    state: State
    created_at: float = 0.0
    """Unix seconds; 0 when unknown."""
    type: str = ""
    region: str = ""
    is_spot: bool = False
    notice_at: float | None = None
    """Unix seconds of an announced preemption; None without a notice."""
    message: str = ""
    """Reason of the state, as far as the provider reports it."""


class PartialList(tuple[Instance, ...]):
    """Instances of a provider of which some places, such as regions or hosts, could not be read.

    Instances there are unknown, not gone.
    """

    unread: Mapping[str, ProviderError]
    """Error by launch id, or by the common beginning of the ids of a place's handles."""

    def __new__(cls, instances: Iterable[Instance], *, unread: Mapping[str, ProviderError]) -> "PartialList":
        """Returns the instances that could be read. unread: see the attribute."""
        partial_list = super().__new__(cls, instances)
        partial_list.unread = unread
        return partial_list


def unread_places(listed: tuple[Instance, ...]) -> Mapping[str, ProviderError]:
    """Returns what a list does not cover, as in `PartialList.unread`; empty for a complete list."""
    return listed.unread if isinstance(listed, PartialList) else {}


def is_unread(unread: Mapping[str, ProviderError], *, handle: str, launch_id: str) -> bool:
    """Returns whether a list without this instance says nothing about it."""
    return launch_id in unread or handle.startswith(tuple(unread))


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Capabilities of a provider, known without a call."""

    kind: str
    simulated: tuple[str, ...] = ()
    """Simulated properties, named in every report and page: `launch delay`, `preemption`."""
    has_spot: bool = False
    notice_s: float = 0.0
    """Time between notice and preemption. Seconds; 0: no notice."""
    listing_lag_s: float = 0.0
    """Maximum time until a launched instance is listed. Seconds."""
    launch_delay_s: float = 60.0
    """Estimated time from launch to a ready node, until it is measured. Seconds."""
    launches_at_once: int = 8
    """Maximum number of concurrent calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """Price and expected launch delay of an instance."""

    usd_per_hour: float
    launch_delay_s: float
    source: str
    """Source of the price, for people: `list price of 2026-08`, `this machine costs nothing`."""


class Provider(Protocol):
    """Interface of one account, cluster or host. Every call is idempotent and raises only `ProviderError`.

    Several processes may use the same provider, so all state is stored outside the object.
    """

    async def launch(self, spec: LaunchSpec, launch_id: str) -> Handle:
        """Launches an instance under `launch_id` (a ULID) with the spec's tags; returns once the provider accepts it.

        A repeated call with the same id and spec starts nothing and returns the same handle. Raises: ProviderError;
        after `RetryError` and `UnknownError` the instance may have been started.
        """

    async def retire(self, launch_id: str, *, keep: Handle | None = None) -> RetireResult:
        """Terminates all instances of `launch_id` except `keep`, so that only duplicates of it end.

        Returns GONE for instances that have ended or never existed.
        """

    async def list(self, cluster: str) -> tuple[Instance, ...]:
        """Returns all instances with the cluster tag, in any order, possibly including recently ended ones.

        Returns a PartialList when some of the provider's places cannot be read. Raises: ProviderError when none can.
        """

    async def describe(self, handle: Handle) -> Instance:
        """Returns an instance's current state; GONE for an unknown one."""

    def capabilities(self) -> Capabilities:
        """Returns the provider's capabilities."""

    async def quote(self, spec: LaunchSpec) -> Quote:
        """Returns the price of an instance, without a launch. Raises: InvalidError for an unknown type or region."""

    async def preflight(self, spec: LaunchSpec) -> str:
        """Checks a launch request as far as possible without a launch; returns a sentence for people.

        Raises: ProviderError when the launch would be refused.
        """

    async def close(self) -> None:
        """Closes connections. Instances keep running."""


@runtime_checkable
class FaultInjectable(Protocol):
    """Interface of providers that can inject faults."""

    async def inject_fault(self, launch_id: str) -> None:
        """Terminates an instance at once and without a notice, like a failing machine."""


def fingerprint(spec: LaunchSpec) -> str:
    """Returns a hash of the request, without token and expiry, which differ in repeated requests."""
    fields = {
        "cluster": spec.tags.cluster,
        "pool": spec.tags.pool,
        "run": spec.tags.run,
        "node": [
            spec.node.dataflow,
            spec.node.engine,
            spec.node.capacity,
            spec.node.policies,
            spec.node.drain_s,
            spec.node.dataflow_timeout_s,
        ],
        "where": [spec.type, spec.region, spec.is_spot],
        "options": dict(spec.options),
    }
    return hashlib.blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=16).hexdigest()


def join_arguments(spec: LaunchSpec, launch_id: str, *, preemption: str = "") -> tuple[str, ...]:
    """Returns the arguments of `astraflow` on the instance; the node's name is the launch id.

    The token is passed in the environment variable ASTRAFLOW_TOKEN.
    preemption: source of preemption notices: a kind, or a TOML table of its options.
    """
    node = spec.node
    arguments = ["join", node.dataflow, "--name", launch_id, "--pool", spec.tags.pool]
    arguments += ["--region", spec.region] if spec.region else []
    arguments += ["--engine", node.engine] if node.engine else []
    arguments += ["--capacity", str(node.capacity)] if node.capacity is not None else []
    arguments += ["--policies", ",".join(node.policies)] if node.policies else []
    arguments += ["--drain-s", f"{node.drain_s:g}", "--dataflow-timeout-s", f"{node.dataflow_timeout_s:g}"]
    arguments += ["--price-per-hour", f"{node.usd_per_hour:g}"] if node.usd_per_hour else []
    arguments += ["--preemption", preemption] if preemption else []
    return tuple(arguments)
