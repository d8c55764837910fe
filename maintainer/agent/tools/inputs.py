"""Inputs of the tools. Pools and nodes are given as tokens from a report."""

from typing import Literal

from pydantic import Field

from astraflow.contract.fleet.run_changes import RunAction
from astraflow.contract.plugins import PluginSlot
from astraflow.contract.record_kinds import Severity
from maintainer.agent.tools.base import ToolModel

MAX_REASON = 500

Format = Literal["concise", "detailed"]
NodeFilter = Literal["all", "ready", "starting", "leaving", "lost", "straggler", "spot", "failed"]
NodeSort = Literal["speed", "age", "price", "silence"]
EventKind = Literal["all", "changes", "refusals", "launch_failures", "orphans", "holds", "escalations", "nodes"]


class ReportInput(ToolModel):
    """Input of `fleet_report`."""

    pool: str | None = Field(default=None, max_length=64)
    """Token of one pool; null for all pools."""
    format: Format = "concise"
    """concise: the fields that a decision needs. detailed: also throughput, budgets and inputs of the rule."""


class NodesInput(ToolModel):
    """Input of `fleet_nodes`."""

    pool: str | None = Field(default=None, max_length=64)
    """Token of one pool; null for all pools."""
    filter: NodeFilter = "all"
    """Nodes to return. leaving: draining or retiring. lost: dataflow receives no heartbeat. failed: launches that ended
    before the node was ready."""
    sort: NodeSort = "speed"
    """speed: slowest first. age: oldest first. price: most expensive first. silence: oldest heartbeat first."""
    limit: int = Field(default=10, ge=1, le=50)
    """Maximum number of nodes to return."""


class EventsInput(ToolModel):
    """Input of `fleet_events`."""

    since_s: float = Field(default=3600.0, gt=0, le=86400.0)
    """Maximum age of an event, seconds."""
    kind: EventKind = "all"
    """Kind of events. nodes: events of the run, from dataflow's report. Other kinds: entries of the journal."""
    limit: int = Field(default=20, ge=1, le=50)
    """Maximum number of events to return; the newest are returned."""


class ExplainInput(ToolModel):
    """Input of `fleet_explain`."""

    decision: int = Field(ge=1)
    """Number of a decision, from fleet_events or fleet_apply."""


class PlanInput(ToolModel):
    """Input of `fleet_plan`: either `target` or `retire`; the other one is null."""

    pool: str = Field(max_length=64)
    """Token of the pool to change."""
    target: int | None = Field(default=None, ge=0, le=1_000_000)
    """Requested size of the pool, nodes; null when `retire` is given."""
    retire: list[str] | None = Field(default=None, max_length=50)
    """Tokens of the nodes to drain and terminate; no other node is removed. Null when `target` is given."""
    reason: str = Field(min_length=1, max_length=MAX_REASON)
    """Reason for people, one or two sentences with numbers from the report."""


class DoctorInput(ToolModel):
    """Input of `run_doctor`."""

    policy: str | None = Field(default=None, max_length=64)
    """Token of one policy; null for all policies."""


class RunChangeInput(ToolModel):
    """Input of `run_change`; fields that an action does not take are null."""

    action: RunAction = Field(strict=False)
    """pause, resume: a flow issues no groups, or issues them again. plugin: another selector, filters or sampler from
    the next version. evaluate: a round with the newest versions; needs no person. stop: ends the run, which can be
    resumed. fork: a new run from the newest kept checkpoint with another learning rate; this run goes on."""
    flow: str | None = Field(default=None, max_length=64)
    """Token of the flow or evaluation, for pause, resume, evaluate, and plugin with the slot selector or filters."""
    policy: str | None = Field(default=None, max_length=64)
    """Token of the policy, for fork, and plugin with the slot sampler."""
    slot: PluginSlot | None = Field(default=None, strict=False)
    """Slot of the plugin."""
    kind: str | None = Field(default=None, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]*$")
    """Kind of the new plugin, from `plugins` of run_doctor."""
    learning_rate: float | None = Field(default=None, gt=0, le=1)
    """Learning rate of the policy in the fork."""
    reason: str = Field(min_length=1, max_length=MAX_REASON)
    """Reason for people, one or two sentences with numbers from the faults."""


class ApplyInput(ToolModel):
    """Input of `fleet_apply`."""

    plan_id: str = Field(min_length=1, max_length=64)
    """`plan_id` from fleet_plan or run_change. A plan expires after five minutes."""
    idempotency_key: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._:-]+$")
    """Key that you choose for this change. A repeated call with the same key returns the first result and changes
    nothing."""


class HoldInput(ToolModel):
    """Input of `fleet_hold`."""

    pool: str = Field(max_length=64)
    """Token of the pool."""
    minutes: int = Field(ge=1, le=60)
    """Duration of the hold, minutes."""
    reason: str = Field(min_length=1, max_length=MAX_REASON)
    """Reason for people."""


class EscalateInput(ToolModel):
    """Input of `fleet_escalate`."""

    severity: Severity = Field(strict=False)
    """critical: a person must look at it immediately."""
    text: str = Field(min_length=1, max_length=MAX_REASON)
    """Text for people: the problem, and the action that a person must take."""
