"""`/api/v1/agent-sessions`, `/api/v1/runs/N/agent-sessions`: live and sampled sessions of agent programs."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import JSONResponse, Response
from pydantic import Field
from starlette.exceptions import HTTPException

from astraflow.contract.agent_calls import CallOutcome
from astraflow.contract.reports import SampledTrajectory
from web.components.live_sessions import live_sessions, sessions_of
from web.history.report_json import json_value
from web.requests.context import RequestContextDep
from web.rest.common import NAME, PREFIX, ResponseModel, error_responses
from web.security.roles import Permission, needs
from web.trajectories.agent_calls import SessionCall, session_calls
from web.trajectories.api import RunId
from web.trajectories.queries import members_of_episode, samples_of_run

router = APIRouter(prefix=PREFIX, tags=["agents"])


class LiveSessionResponse(ResponseModel):
    """Session of an agent program that runs now."""

    task: str
    flow: str
    node: str = Field(description="Id of the node.")
    node_name: str
    age_s: float
    calls: int = Field(description="Model calls answered so far.")
    waiting_calls: int = Field(description="Model calls in progress.")
    tokens: int = Field(description="Tokens that policies wrote so far.")
    idle_s: float = Field(description="Seconds since the last call began or ended.")


class LiveSessionList(ResponseModel):
    """Live sessions, the oldest first."""

    items: list[LiveSessionResponse]
    total: int = Field(description="Running sessions; `items` has the oldest of them.")
    age_s: float | None = Field(description="Seconds since the report arrived; null without a report.")


class SessionTrajectoryResponse(ResponseModel):
    """Trajectory of a session: one branch of its conversation with one policy."""

    ordinal: int = Field(description="Ordinal of the sampled trajectory.")
    index: int = Field(description="Index in the session.")
    role: str
    policy: str
    reward: float
    parent: int | None = Field(description="Index of the trajectory that it branches from.")
    parent_turn: int | None = Field(description="Turn of the parent, from 0, in which it began.")
    tokens: int
    model_tokens: int = Field(description="Tokens that are trained in this trajectory.")
    call_outcomes: dict[str, int] = Field(description="Recorded model calls by outcome.")


class AgentCallResponse(ResponseModel):
    """Recorded model call of an agent. Secrets are removed."""

    number: int = Field(description="Position in the session, from 1.")
    began_s: float | None = Field(description="Seconds since the session began.")
    duration_s: float | None
    dialect: str = Field(description="API of the call: `chat`, `responses`, `messages` or `tokens`.")
    model: str = Field(description="Model name as the agent sent it.")
    request: str = Field(description="Body, as JSON; long ones are cut.")
    reply: str = Field(description="Body of the reply as JSON, or the error message; long ones are cut.")
    outcome: CallOutcome
    trajectory: int = Field(description="Ordinal of the trajectory or failure with which it was recorded.")
    turn: int | None = Field(description="Turn of the trajectory that the reply became, from 0; null for none.")


class SessionFailureResponse(ResponseModel):
    """Cause why a session failed."""

    boundary: str = Field(description="`engine`, `environment`, `workflow` or `reward`.")
    message: str


class SessionResponse(ResponseModel):
    """Sampled session of an agent: its trajectories or its failure, and its model calls."""

    task: str
    flow: str
    group: str
    node: str = Field(description="Id of the node.")
    node_name: str
    failure: SessionFailureResponse | None = Field(description="Null unless the session failed.")
    trajectories: list[SessionTrajectoryResponse] = Field(description="Empty when the session failed.")
    calls: list[AgentCallResponse] = Field(description="In order of time; at most 256.")


@router.get("/agent-sessions", response_model=LiveSessionList, responses=error_responses())
@needs(Permission.READ)
async def agent_sessions(
    context: RequestContextDep,
    flow: Annotated[str | None, Query(pattern=NAME)] = None,
    node: Annotated[str | None, Query(pattern=NAME, description="Id of a node.")] = None,
) -> dict[str, Any]:
    """Lists the sessions of agent programs that run now, the oldest first."""
    report = context.state.report
    nodes = [candidate for candidate in report.nodes if node in (None, candidate.id)] if report else []
    return {
        "items": [
            dict(json_value(asdict(session))) | {"node": owner.id, "node_name": owner.facts.name}
            for owner, session in sessions_of(nodes)
            if flow in (None, session.flow)
        ],
        "total": live_sessions(nodes).total,
        "age_s": context.state.age_s,
    }


@router.get("/runs/{run_id}/agent-sessions/{task:path}", response_model=SessionResponse, responses=error_responses(404))
@needs(Permission.READ)
async def agent_session(
    context: RequestContextDep,
    run_id: RunId,
    task: Annotated[str, Path(min_length=1, max_length=200, examples=["train:42/0"])],
) -> Response:
    """Returns the sampled session of a task as a JSON file: its trajectories, and the model calls of the agent."""
    samples = await samples_of_run(context, run_id)
    members = await members_of_episode(samples, task)
    if not members:
        raise HTTPException(
            404, f"cannot find the session of task {task[:80]!r}: it is not stored; only the latest samples are kept"
        )
    first = members[0]
    body = {
        "task": first.task,
        "flow": first.flow,
        "group": first.group,
        "node": first.node,
        "node_name": samples.node_names.get(first.node, first.node),
        "failure": _failure(first),
        "trajectories": [_trajectory(member) for member in members if member.failure is None],
        "calls": [_call(call) for call in session_calls(members)],
    }
    headers = {"content-disposition": f'attachment; filename="session-{first.ordinal}.json"'}
    return JSONResponse(body, headers=headers)


def _trajectory(sample: SampledTrajectory) -> dict[str, Any]:
    names = SessionTrajectoryResponse.model_fields
    return dict(json_value({name: getattr(sample, name) for name in names}))


def _failure(sample: SampledTrajectory) -> dict[str, Any] | None:
    failure = sample.failure
    return None if failure is None else {"boundary": failure.boundary.value, "message": failure.message}


def _call(call: SessionCall) -> dict[str, Any]:
    fields = dict(json_value(asdict(call.call)))
    return {"number": call.number, "trajectory": call.owner.ordinal, **fields}
