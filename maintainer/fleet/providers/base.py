"""The port of providers: what the fleet service asks of a cloud, a cluster or this machine.

Every call may be made twice and means the same as made once. The fleet service writes down a launch id, then launches
under it; whatever happens in between, the id finds what was started, because it is a tag from the instance's first
moment on.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from importlib.util import find_spec
from typing import Any, Protocol, runtime_checkable

from astraflow.contract.errors import AstraFlowError


def require_package(name: str) -> None:
    """Checks that a package is installed which a provider imports only when it calls the provider's service.

    A provider's module calls this at its import, so that the fleet service says at its start what is missing.
    Raises: ModuleNotFoundError, which the registry turns into InvalidInput with the extra to install.
    """
    if find_spec(name) is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)


class ProviderError(AstraFlowError):
    """A provider could not do what it was asked. Always one of the six below; each leads to another next step."""


class Retry(ProviderError):
    """A passing trouble: throttled, a timeout, a lost connection. It may have happened: look, ask again."""


class Quota(ProviderError):
    """The account may not have more. Nothing was started; a person has to raise the limit."""


class Capacity(ProviderError):
    """The provider has none left now. Nothing was started; try another type, region or provider, or later."""


class Auth(ProviderError):
    """The credentials are missing, expired or not allowed to. Nothing was started; a person has to mend them."""


class Invalid(ProviderError):
    """What was asked for cannot be: unknown type, bad options, a launch id with another spec. Nothing was started."""


class Unknown(ProviderError):
    """Something else. It may have happened all the same: look before asking again."""


class State(Enum):
    """An instance as its provider sees it: PENDING ─► RUNNING ─► GOING ─► GONE, and from each state to GONE.

    One that does not come up is STUCK instead of RUNNING.
    """

    PENDING = "pending"
    """It is being made, or boots."""
    STUCK = "stuck"
    """It will not boot, and holds what it was given until it is retired: a launch that failed."""
    RUNNING = "running"
    """The node's program was started."""
    GOING = "going"
    """It was asked to end, or the provider takes it away."""
    GONE = "gone"
    """It runs and costs no more."""


class Retired(Enum):
    """What came of asking for an end."""

    GONE = "gone"
    """It has ended, or never was."""
    GOING = "going"
    """It ends; ask again to learn when it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """Written on the instance when it is made, in the same call."""

    cluster: str
    """The fleet service it belongs to: nothing without this tag is ever touched."""
    pool: str
    run: str
    expires_at: float
    """Unix seconds after which anybody may end it: a bound for what even a sweep does not find."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """The node that an instance is to run: the options of `astraflow join`."""

    dataflow: str
    """`HOST:PORT`, as the instance reaches it."""
    engine: str = ""
    """A kind, or a TOML table of its options; empty for what the run suggests."""
    capacity: int | None = None
    """Episodes at once; None for the node's default."""
    drain_s: float = 0.0
    """What runs gets so long to end when the instance is retired without having been drained."""
    dead_man_s: float = 900.0
    """Without an answer from dataflow for so long, the node ends by itself."""
    usd_per_hour: float = 0.0
    """What the instance costs by its quote, for the node to say when it joins; 0 when unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """One instance to be started."""

    tags: Tags
    node: NodePlan
    type: str = ""
    """The provider's name of the hardware; empty for its default."""
    region: str = ""
    """Where it is to stand; empty for the provider's default."""
    is_spot: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    """What only this provider knows, as the pool's spec has it."""
    token: str = field(default="", repr=False)
    """Lets the node join. A secret: it travels in the environment, never in a command line, a tag or an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """One instance in its provider's words."""

    provider: str
    """Kind."""
    id: str
    """The provider's id of the instance."""
    launch_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """What a provider knows of one instance."""

    handle: Handle
    tags: Tags | None
    """None where the instance was never there, or its tags are forgotten."""
    state: State
    created_at: float = 0.0
    """Unix seconds; 0 when unknown."""
    type: str = ""
    region: str = ""
    is_spot: bool = False
    notice_at: float | None = None
    """Unix seconds at which the provider says it takes the instance away."""
    message: str = ""
    """Why it is in this state, as far as the provider says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a provider can do: data, read without a call."""

    kind: str
    simulated: tuple[str, ...] = ()
    """What of it is a stand-in, for every report and page: `launch delay`, `preemption`."""
    has_spot: bool = False
    notice_s: float = 0.0
    """How long before a preemption it is told; 0 for without a notice."""
    listing_lag_s: float = 0.0
    """What was launched is listed after so long at the latest."""
    launch_delay_s: float = 60.0
    """From launch to a node that works, as long as nothing better was measured."""
    launches_at_once: int = 8
    """Calls that it takes beside each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """What an instance costs, and when it would work."""

    usd_per_hour: float
    launch_delay_s: float
    source: str
    """Where the price comes from, for people: `list price of 2026-08`, `this machine costs nothing`."""


class Provider(Protocol):
    """One account, cluster or machine. Every call is idempotent and raises a `ProviderError` or nothing.

    Several of these, in processes that come and go, may be the same provider: all they know is kept outside.
    """

    async def launch(self, spec: LaunchSpec, launch_id: str) -> Handle:
        """Start one instance under `launch_id` (a ULID) with the spec's tags; returns once the provider has taken it.

        The same id and spec again start nothing and return the same handle. Raises: ProviderError; after `Retry` and
        `Unknown` it may have been started.
        """

    async def retire(self, launch_id: str, *, keep: Handle | None = None) -> Retired:
        """End every instance of `launch_id` but `keep`: a duplicate goes, the registered one stays.

        What is gone already, or never was, is GONE.
        """

    async def list(self, cluster: str) -> tuple[Instance, ...]:
        """Every instance with that cluster tag, in any order. Those that are GONE may be among them for a while."""

    async def describe(self, handle: Handle) -> Instance:
        """One instance now; GONE for one that nobody knows."""

    def capabilities(self) -> Capabilities:
        """What it can do."""

    async def quote(self, spec: LaunchSpec) -> Quote:
        """What the instance would cost; starts nothing. Raises: Invalid for a type or region that it has not."""

    async def rehearse(self, spec: LaunchSpec) -> str:
        """What it says to such a launch, for people, as far as it can be asked without one; starts nothing.

        Raises: ProviderError when it would not be let through.
        """

    async def close(self) -> None:
        """Let go of connections. Instances go on."""


@runtime_checkable
class Breakable(Protocol):
    """What a provider of machines that only stand for some can do besides: let them fail on somebody's word."""

    async def lose(self, launch_id: str) -> None:
        """End it at once and without a word, as when a machine fails. What is gone already stays so."""


def fingerprint(spec: LaunchSpec) -> str:
    """Of what is asked for, without the token and the expiry, which may differ when it is asked for again."""
    said = {
        "cluster": spec.tags.cluster,
        "pool": spec.tags.pool,
        "run": spec.tags.run,
        "node": [spec.node.dataflow, spec.node.engine, spec.node.capacity, spec.node.drain_s, spec.node.dead_man_s],
        "where": [spec.type, spec.region, spec.is_spot],
        "options": dict(spec.options),
    }
    return hashlib.blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=16).hexdigest()


def join_arguments(spec: LaunchSpec, launch_id: str, *, preemption: str = "") -> tuple[str, ...]:
    """What comes after `astraflow` on the instance's command line; the node is called as the launch.

    The token goes into the environment variable ASTRAFLOW_TOKEN.
    preemption: where the node reads that its machine goes away: a kind of notice, or a TOML table of its options.
    """
    node = spec.node
    arguments = ["join", node.dataflow, "--name", launch_id, "--pool", spec.tags.pool]
    arguments += ["--region", spec.region] if spec.region else []
    arguments += ["--engine", node.engine] if node.engine else []
    arguments += ["--capacity", str(node.capacity)] if node.capacity is not None else []
    arguments += ["--drain-s", f"{node.drain_s:g}", "--dead-man-s", f"{node.dead_man_s:g}"]
    arguments += ["--price-per-hour", f"{node.usd_per_hour:g}"] if node.usd_per_hour else []
    arguments += ["--preemption", preemption] if preemption else []
    return tuple(arguments)
