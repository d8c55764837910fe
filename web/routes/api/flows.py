"""`/api/v1/flows`, `/policies`: the path of groups, pausing flows, and changing plug-ins."""

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field, JsonValue
from starlette.exceptions import HTTPException

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.ids import FlowId, PolicyId
from astraflow.contract.plugins import PluginChange, PluginSpec
from astraflow.contract.reports import FlowReport, Report, StreamReport
from web.accounts.viewer import Viewer
from web.acts import flows as flow_acts
from web.door.roles import Need, On, needs
from web.feed.arrows import graph_of
from web.feed.report_json import plain
from web.parts import Parts, PartsOf, ViewerOf
from web.present.dataflow import finding
from web.present.stream_cards import pressure
from web.routes.api.fleet_bodies import ReasonOnly
from web.routes.api.terms import NAME, PREFIX, SENT, Body, Filled, Key, Reason, refusals

router = APIRouter(prefix=PREFIX, tags=["flows"])

FlowName = Annotated[str, Path(pattern=NAME, description="Name of the flow.", examples=["train"])]
PolicyName = Annotated[str, Path(pattern=NAME, description="Name of the policy.", examples=["solver"])]


class PluginAsked(BaseModel):
    """A plug-in: its `kind`, and that kind's options beside it."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [{"kind": "replay", "ratio": 0.3}]})

    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)
    kind: str = Field(min_length=1, max_length=100)

    @property
    def spec(self) -> PluginSpec:
        """As a recipe has it."""
        return self.model_dump()


class PlannedAnswer(Filled):
    """Plug-ins of one seam that take over with the next version."""

    seam: str
    specs: list[dict[str, Any]]
    actor: str
    reason: str
    version: int = Field(description="At which they were asked for.")


class FlowAnswer(Filled):
    """One flow. Counts are since the run began."""

    id: str
    is_paused: bool
    issued: int
    open: int = Field(description="Issued, not all members back yet.")
    admitted: int
    dropped: dict[str, int] = Field(description="By reason: a filter's kind, or `failed`.")
    tasks_queued: int
    tasks_leased: int
    selector: dict[str, Any] = Field(description="In force; empty when dataflow does not tell.")
    filters: list[dict[str, Any]] = Field(description="In force, in order.")
    planned: list[PlannedAnswer]


class StreamAnswer(Filled):
    """What one policy's trainer consumes."""

    policy: str
    version: int
    buffered: int
    in_batch: int
    trained: int
    dropped: dict[str, int]
    issue_room: int = Field(description="Groups that the staleness gate lets out now.")
    produced_per_s: float
    consumed_per_s: float
    staleness: dict[str, int] = Field(description="Rows of the last ten batches, by versions.")
    back_pressure: str = Field(description="What holds new groups back, in words.")
    sampler: dict[str, Any]
    planned: list[PlannedAnswer]


class ArrowAnswer(Filled):
    """Groups that went from one stage to the next."""

    source: str
    target: str
    groups: int
    per_s: float | None = Field(description="Over the last minute; null while there is one report only.")


class DataflowAnswer(Filled):
    """The path of groups."""

    finding: str
    flows: list[FlowAnswer]
    streams: list[StreamAnswer]
    arrows: list[ArrowAnswer]
    age_s: float | None = Field(description="Seconds since the report arrived.")


class FlowPluginsAsked(Body):
    """Other plug-ins of a flow; what is left out stays."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"filters": [{"kind": "informative"}], "reason": "most groups are solved"}]}
    )

    selector: PluginAsked | None = None
    filters: Annotated[list[PluginAsked], Field(max_length=16, description="All of them, in order.")] | None = None
    reason: Reason


class SamplerAsked(Body):
    """Another sampler for a policy's stream."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"sampler": {"kind": "replay", "ratio": 0.3}, "reason": "rollouts are dear"}]}
    )

    sampler: PluginAsked
    reason: Reason


class FlowSaid(Filled):
    """What came of it."""

    message: str


@router.get("/flows", response_model=DataflowAnswer, responses=refusals())
@needs(Need.READ)
async def flows(parts: PartsOf) -> dict[str, Any]:
    """Where every group is: flows, streams, and each arrow between stages with its count and rate."""
    report = _report(parts)
    graph = graph_of(report.flows, report.streams, parts.state.recent.earliest, report.at)
    return {
        "finding": finding(graph, "run"),
        "flows": [_named(FlowAnswer, flow) for flow in report.flows],
        "streams": [
            _named(StreamAnswer, stream) | {"back_pressure": pressure(report, stream)[0]} for stream in report.streams
        ],
        "arrows": [_named(ArrowAnswer, arrow) for arrow in graph.arrows],
        "age_s": parts.state.age_s,
    }


@router.post("/flows/{flow:path}/pause", response_model=FlowSaid, responses=refusals(404, *SENT))
@needs(Need.OPERATE, on=On.RUN)
async def pause(parts: PartsOf, viewer: ViewerOf, flow: FlowName, body: ReasonOnly, key: Key) -> dict[str, Any]:
    """Issue no new group of a flow. What is leased is finished and kept."""
    return await _set(parts, viewer, flow, is_paused=True, key=key, reason=body.reason)


@router.post("/flows/{flow:path}/resume", response_model=FlowSaid, responses=refusals(404, *SENT))
@needs(Need.OPERATE, on=On.RUN)
async def resume(parts: PartsOf, viewer: ViewerOf, flow: FlowName, body: ReasonOnly, key: Key) -> dict[str, Any]:
    """Go on issuing."""
    return await _set(parts, viewer, flow, is_paused=False, key=key, reason=body.reason)


@router.post("/flows/{flow:path}/plugins", response_model=FlowSaid, responses=refusals(404, *SENT))
@needs(Need.OPERATE, on=On.RUN)
async def flow_plugins(
    parts: PartsOf, viewer: ViewerOf, flow: FlowName, body: FlowPluginsAsked, key: Key
) -> dict[str, Any]:
    """Have another selector or other filters decide, from the next version on.

    Asking for what is in force takes back what is planned. 409 for a kind or option that is not known, and when
    nothing is asked for.
    """
    change = PluginChange(
        flow=_flow(_report(parts), flow).id,
        selector=None if body.selector is None else body.selector.spec,
        filters=None if body.filters is None else tuple(one.spec for one in body.filters),
        actor=viewer.name,
        reason=body.reason,
    )
    return await _change(parts, viewer, change, key)


@router.post("/policies/{policy:path}/sampler", response_model=FlowSaid, responses=refusals(404, *SENT))
@needs(Need.OPERATE, on=On.RUN)
async def sampler(parts: PartsOf, viewer: ViewerOf, policy: PolicyName, body: SamplerAsked, key: Key) -> dict[str, Any]:
    """Have another sampler make the batches of a policy, from the next version on. 409 as for a flow's."""
    found = _stream(_report(parts), policy).policy
    change = PluginChange(policy=found, sampler=body.sampler.spec, actor=viewer.name, reason=body.reason)
    return await _change(parts, viewer, change, key)


async def _set(parts: Parts, viewer: Viewer, name: str, *, is_paused: bool, key: str, reason: str) -> dict[str, Any]:
    flow = _flow(_report(parts), name).id
    said = await flow_acts.pause_flow(parts, viewer, FlowId(flow), is_paused=is_paused, key=key, reason=reason)
    return {"message": said}


async def _change(parts: Parts, viewer: Viewer, change: PluginChange, key: str) -> dict[str, Any]:
    if not change.wanted():
        raise HTTPException(409, "nothing is to change: name a selector or filters")
    try:
        return {"message": await flow_acts.change_plugins(parts, viewer, change, key=key)}
    except InvalidInput as problem:
        raise HTTPException(409, str(problem)) from problem


def _report(parts: Parts) -> Report:
    if parts.state.report is None:
        raise Unavailable("no report has arrived from dataflow yet")
    return parts.state.report


def _flow(report: Report, name: str) -> FlowReport:
    found = next((flow for flow in report.flows if flow.id == name), None)
    if found is None:
        raise HTTPException(404, f"no flow is called {name}; known: {', '.join(flow.id for flow in report.flows)}")
    return found


def _stream(report: Report, name: str) -> StreamReport:
    found = next((stream for stream in report.streams if stream.policy == PolicyId.known(name)), None)
    if found is None:
        known = ", ".join(stream.policy for stream in report.streams)
        raise HTTPException(404, f"no policy is called {name}; known: {known}")
    return found


def _named(kind: type[Filled], value: Any) -> dict[str, Any]:
    """Of a report's table, the fields that the answer has."""
    found = {name: getattr(value, name) for name in kind.model_fields if hasattr(value, name)}
    if "planned" in found:
        found["planned"] = [_named(PlannedAnswer, one) for one in found["planned"]]
    return dict(plain({name: dict(item) if hasattr(item, "keys") else item for name, item in found.items()}))
