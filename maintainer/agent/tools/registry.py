"""Registry of the tools, in the order of listing. A read tool never writes."""

from collections.abc import Mapping

from maintainer.agent.tools import inputs, outputs
from maintainer.agent.tools.base import Kind, Tool, ToolModel


def _read(name: str, title: str, description: str, accepts: type[ToolModel], returns: type[ToolModel]) -> Tool:
    return Tool(name=name, kind=Kind.READ, description=description, input=accepts, output=returns, title=title)


_ALL = (
    _read(
        "fleet_report",
        "Report of the fleet",
        "Returns the state of all pools, or of one: nodes by state, the rule's target with its reasons and limits, the "
        "band, prices, failures, and how long trainers wait. Call it first when you have no report. Texts are never "
        "shown: `template` is equal for texts that differ only in numbers and names, `hash` for identical "
        "texts, and `cause` is the cause that their words indicate.",
        inputs.ReportInput,
        outputs.ReportOutput,
    ),
    _read(
        "fleet_nodes",
        "Nodes",
        "Returns nodes of one pool or of all, filtered and sorted: state, speed relative to the same hardware, price, "
        "time since the last heartbeat. Call it to find slow, lost or failed nodes before you plan to retire any.",
        inputs.NodesInput,
        outputs.NodesOutput,
    ),
    _read(
        "fleet_events",
        "Events",
        "Returns recent entries of the journal and events of the run, newest first: changes, refusals, failed "
        "launches, nodes that joined or left. Call it when the report does not show the cause of a problem.",
        inputs.EventsInput,
        outputs.EventsOutput,
    ),
    _read(
        "fleet_explain",
        "Explain a decision",
        "Returns one decision of the journal: the role of its actor, the change in numbers, and the current state of "
        "its pool. Call it with a decision number from fleet_events.",
        inputs.ExplainInput,
        outputs.ExplainOutput,
    ),
    _read(
        "run_doctor",
        "Faults of learning",
        "Returns what is wrong with how the run learns: each fault with its measured values, the threshold with its "
        "reason, and what mends it; and the policies, flows, evaluations and plugins that run_change can name. Call it "
        "when a learning_fault woke you.",
        inputs.DoctorInput,
        outputs.DoctorOutput,
    ),
    Tool(
        name="fleet_plan",
        kind=Kind.PROPOSE,
        description="Plans a change of one pool and applies nothing. Returns the nodes to remove, the duration in "
        "seconds, the change of cost in US dollars per hour, and the verdict of the guard. A wake allows one plan per "
        "pool: decide before you call it. Give either `target` or `retire`.",
        input=inputs.PlanInput,
        output=outputs.PlanOutput,
        title="Plan a change",
    ),
    Tool(
        name="run_change",
        kind=Kind.PROPOSE,
        description="Plans one change of the run and applies nothing: pause a flow, set a plugin, evaluate, stop, or "
        "fork with another learning rate. Returns the verdict of the guard; a person approves everything but "
        "evaluations. A wake allows one plan for the run: choose the smallest change that mends the fault.",
        input=inputs.RunChangeInput,
        output=outputs.RunChangeOutput,
        title="Plan a change of the run",
    ),
    Tool(
        name="fleet_apply",
        kind=Kind.MUTATE,
        description="Applies a plan of fleet_plan or run_change, or proposes it to a person if it needs approval. "
        "Returns the `outcome` and the number of launched and retired nodes. A plan is valid for five minutes, while "
        "its pool is unchanged. Do not retry a refused plan.",
        input=inputs.ApplyInput,
        output=outputs.ApplyOutput,
        title="Apply a plan",
    ),
    Tool(
        name="fleet_hold",
        kind=Kind.CAUTION,
        description="Sets a hold on a pool for 1 to 60 minutes: no actor can remove its nodes, and launches "
        "continue. Call it when removing nodes would be wrong for some time. Returns the number of the journal entry.",
        input=inputs.HoldInput,
        output=outputs.DoneOutput,
        title="Set a hold",
    ),
    Tool(
        name="fleet_escalate",
        kind=Kind.CAUTION,
        description="Notifies people of a problem that only they can solve: a used-up quota, an image that does not "
        "start, a higher price. Changes nothing in the fleet. Returns the number of the journal entry.",
        input=inputs.EscalateInput,
        output=outputs.DoneOutput,
        title="Escalate to people",
    ),
)

TOOLS: Mapping[str, Tool] = {tool.name: tool for tool in _ALL}
"""Tools by name; the model has no other way to act."""
