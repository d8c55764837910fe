"""`/api/v1/flows`, `/policies`: flow and stream state, pausing flows, and changing plugins."""

from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field, JsonValue
from starlette.exceptions import HTTPException

from astraflow.contract.ids import FlowId, PolicyId
from astraflow.contract.plugins import PluginChange, PluginSpec
from astraflow.contract.reports.report import FlowReport, Report, StreamReport
from web.dataflow import commands as flow_commands
from web.dataflow.stream_cards import pressure
from web.dataflow.views import insight
from web.requests.commands import Commands
from web.requests.dependencies import CommandsDep, ReportDep, StateDep, ViewerDep
from web.rest.common import (
    NAME,
    WITHOUT_NUL,
    ApiRouter,
    Key,
    MessageResponse,
    Reason,
    ReasonRequest,
    RequestBody,
    ResponseModel,
)
from web.rest.contract_models import fields_of
from web.security.roles import Permission, ResourceKind, needs
from web.state.dataflow_graph import StageEdge, build_graph

router = ApiRouter(tags=["flows"])

FlowName = Annotated[str, Path(pattern=NAME, description="Name of the flow.", examples=["train"])]
PolicyName = Annotated[str, Path(pattern=NAME, description="Name of the policy.", examples=["solver"])]


class PluginRequest(BaseModel):
    """Plugin: its `kind` and the options of that kind."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [{"kind": "replay", "ratio": 0.3}]})

    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)
    kind: str = Field(min_length=1, max_length=100, pattern=WITHOUT_NUL, description="Kind of plugin.")

    @property
    def spec(self) -> PluginSpec:
        """Plugin table as in a recipe."""
        return self.model_dump()


@fields_of(StreamReport)
class StreamResponse(ResponseModel):
    """Stream: the groups that one policy's trainer consumes."""

    back_pressure: str = Field(description="Current limit on issuing groups, in one sentence.")


@fields_of(StageEdge)
class ArrowResponse(ResponseModel):
    """Edge of the dataflow graph: groups passed from one stage to the next."""


class DataflowResponse(ResponseModel):
    """Dataflow graph, flows and streams."""

    insight: str = Field(description="State of the dataflow, in one sentence.")
    flows: list[FlowReport] = Field(description="All flows.")
    streams: list[StreamResponse] = Field(description="Streams, one for each policy that is trained.")
    arrows: list[ArrowResponse] = Field(description="Edges of the graph.")
    age_s: float | None = Field(description="Seconds since the report arrived.")


class FlowPluginsRequest(RequestBody):
    """New plugins of a flow; omitted slots are unchanged."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"filters": [{"kind": "informative"}], "reason": "most groups are solved"}]}
    )

    selector: PluginRequest | None = Field(None, description="New selector; null for no change.")
    filters: Annotated[list[PluginRequest], Field(max_length=16)] | None = Field(
        None, description="New filters: the complete list, in order; null for no change."
    )
    reason: Reason


class SamplerRequest(RequestBody):
    """New sampler of a policy's stream."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"sampler": {"kind": "replay", "ratio": 0.3}, "reason": "rollouts are expensive"}]
        }
    )

    sampler: PluginRequest = Field(description="New sampler with all its options.")
    reason: Reason


@router.get("/flows", response_model=DataflowResponse)
@needs(Permission.READ)
async def flows(report: ReportDep, state: StateDep) -> dict[str, Any]:
    """Returns flows, streams, and the graph's edges with counts and rates."""
    graph = build_graph(report.flows, report.streams, state.recent_counts.earliest, report.at)
    return {
        "insight": insight(graph, "run"),
        "flows": report.flows,
        "streams": [
            StreamResponse.values_of(stream, back_pressure=pressure(report, stream)[0]) for stream in report.streams
        ],
        "arrows": graph.edges,
        "age_s": state.age_s,
    }


@router.post("/flows/{flow:path}/pause", response_model=MessageResponse)
@needs(Permission.OPERATE, on=ResourceKind.RUN)
async def pause(
    commands: CommandsDep, report: ReportDep, flow: FlowName, body: ReasonRequest, key: Key
) -> dict[str, Any]:
    """Pauses a flow: no new group is issued; leased tasks finish and their results are kept."""
    return await _set(commands, report, flow, is_paused=True, key=key, reason=body.reason)


@router.post("/flows/{flow:path}/resume", response_model=MessageResponse)
@needs(Permission.OPERATE, on=ResourceKind.RUN)
async def resume(
    commands: CommandsDep, report: ReportDep, flow: FlowName, body: ReasonRequest, key: Key
) -> dict[str, Any]:
    """Resumes a paused flow."""
    return await _set(commands, report, flow, is_paused=False, key=key, reason=body.reason)


@router.post("/flows/{flow:path}/plugins", response_model=MessageResponse)
@needs(Permission.OPERATE, on=ResourceKind.RUN)
async def flow_plugins(
    commands: CommandsDep, report: ReportDep, viewer: ViewerDep, flow: FlowName, body: FlowPluginsRequest, key: Key
) -> dict[str, Any]:
    """Replaces a flow's selector or filters from the next version on.

    Requesting the active plugins cancels a planned change. Returns 409 for an unknown kind or option, and for an
    empty change.
    """
    change = PluginChange(
        flow=_flow(report, flow).id,
        selector=None if body.selector is None else body.selector.spec,
        filters=None if body.filters is None else tuple(filter_.spec for filter_ in body.filters),
        actor=viewer.name,
        reason=body.reason,
    )
    return await _change(commands, change, key)


@router.post("/policies/{policy:path}/sampler", response_model=MessageResponse)
@needs(Permission.OPERATE, on=ResourceKind.RUN)
async def sampler(
    commands: CommandsDep, report: ReportDep, viewer: ViewerDep, policy: PolicyName, body: SamplerRequest, key: Key
) -> dict[str, Any]:
    """Replaces a policy's sampler from the next version on. Returns 409 as for a flow's plugins."""
    policy_id = _stream(report, policy).policy
    change = PluginChange(policy=policy_id, sampler=body.sampler.spec, actor=viewer.name, reason=body.reason)
    return await _change(commands, change, key)


async def _set(
    commands: Commands, report: Report, name: str, *, is_paused: bool, key: str, reason: str
) -> dict[str, Any]:
    flow = _flow(report, name).id
    message = await flow_commands.pause_flow(commands, FlowId(flow), is_paused=is_paused, key=key, reason=reason)
    return {"message": message}


async def _change(commands: Commands, change: PluginChange, key: str) -> dict[str, Any]:
    if not change.specs_by_slot():
        raise HTTPException(409, "cannot change plugins: the request names none; send a selector or filters")
    return {"message": await flow_commands.change_plugins(commands, change, key=key)}


def _flow(report: Report, name: str) -> FlowReport:
    flow_report = next((flow for flow in report.flows if flow.id == name), None)
    if flow_report is None:
        raise HTTPException(
            404,
            f"cannot find flow {name!r}: it does not exist; use one of {', '.join(flow.id for flow in report.flows)}",
        )
    return flow_report


def _stream(report: Report, name: str) -> StreamReport:
    stream_report = next((stream for stream in report.streams if stream.policy == PolicyId.unchecked(name)), None)
    if stream_report is None:
        policy_names = ", ".join(stream.policy for stream in report.streams)
        raise HTTPException(404, f"cannot find policy {name!r}: it does not exist; use one of {policy_names}")
    return stream_report
