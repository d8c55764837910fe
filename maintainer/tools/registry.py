"""The tools, in the order that they are listed. One verb each: what reads never writes."""

from collections.abc import Mapping

from maintainer.tools import inputs, outputs
from maintainer.tools.base import Kind, Tool, Typed


def _read(name: str, title: str, description: str, given: type[Typed], returned: type[Typed]) -> Tool:
    return Tool(name=name, kind=Kind.READ, description=description, input=given, output=returned, title=title)


_ALL = (
    _read(
        "fleet_report",
        "Report of the fleet",
        "The state of every pool: nodes by state, the rule's target with its reasons and caps, the band, prices, "
        "failures, and the trainers' waits. Begin here. Texts are never shown: `template` and `hash` tell whether two "
        "are alike, `cause` what they are about.",
        inputs.ReportInput,
        outputs.ReportOutput,
    ),
    _read(
        "fleet_nodes",
        "Nodes",
        "Nodes of a pool or of all, filtered and sorted: state, speed against their like, price, silence. "
        "Use it to find which nodes are slow, silent or failed before you plan to retire any.",
        inputs.NodesInput,
        outputs.NodesOutput,
    ),
    _read(
        "fleet_events",
        "Events",
        "What happened lately, newest first: changes, refusals, launches that failed, nodes that came and went.",
        inputs.EventsInput,
        outputs.EventsOutput,
    ),
    _read(
        "fleet_explain",
        "Explain a decision",
        "One decision of the journal: who, what in figures, and its pool as it is now.",
        inputs.ExplainInput,
        outputs.ExplainOutput,
    ),
    Tool(
        name="fleet_plan",
        kind=Kind.PROPOSE,
        description="What a change of one pool would do: victims, time, dollars, and what the guard says. Nothing "
        "happens. One plan for each pool in a wake: think first. Give either `target` or `retire`.",
        input=inputs.PlanInput,
        output=outputs.PlanOutput,
        title="Plan a change",
    ),
    Tool(
        name="fleet_apply",
        kind=Kind.MUTATE,
        description="Do what was planned, or put it before a person where that is needed. A plan is good for five "
        "minutes and for the pool as it was; `outcome` says what came of it. Never try again what was refused.",
        input=inputs.ApplyInput,
        output=outputs.ApplyOutput,
        title="Apply a plan",
    ),
    Tool(
        name="fleet_hold",
        kind=Kind.CAUTION,
        description="Have no node of a pool taken away for up to an hour, by anybody. Launches go on.",
        input=inputs.HoldInput,
        output=outputs.DoneOutput,
        title="Hold a pool",
    ),
    Tool(
        name="fleet_escalate",
        kind=Kind.CAUTION,
        description="Tell people what they have to know or do: quota that is gone, an image that does not start, a "
        "price that has risen. It changes nothing.",
        input=inputs.EscalateInput,
        output=outputs.DoneOutput,
        title="Tell people",
    ),
)

TOOLS: Mapping[str, Tool] = {tool.name: tool for tool in _ALL}
"""By name. There is no other way to act."""
