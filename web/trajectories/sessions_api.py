"""`/api/v1/agent-sessions`, `/api/v1/runs/N/agent-sessions`: live and sampled sessions of agent programs."""

from typing import Annotated, Any

from fastapi import Path, Query
from fastapi.responses import Response
from pydantic import Field
from starlette.exceptions import HTTPException

from astraflow.contract.ids import FlowId, GroupId, PolicyId, TaskId
from astraflow.contract.rollouts.agent_calls import AgentCall, LiveSession
from astraflow.contract.rollouts.failures import Failure
from web.components.live_sessions import live_sessions, sessions_of
from web.requests.dependencies import ShownRunDep, StateDep
from web.rest.common import NAME, ApiRouter, ItemList, ResponseModel
from web.rest.contract_models import fields_of
from web.security.roles import Permission, needs
from web.trajectories.agent_calls import session_calls
from web.trajectories.queries import members_of_episode, samples_of_run

router = ApiRouter(tags=["agents"])


@fields_of(LiveSession)
class LiveSessionResponse(ResponseModel):
    """Session of an agent program that runs now."""

    node: str = Field(description="Id of the node.")
    node_name: str = Field(description="Name of the node.")


class LiveSessionList(ItemList[LiveSessionResponse]):
    """Live sessions, the oldest first."""

    total: int = Field(description="Running sessions; `items` has the oldest of them.")
    age_s: float | None = Field(description="Seconds since the report arrived; null without a report.")


class SessionTrajectoryResponse(ResponseModel):
    """Trajectory of a session: one branch of its conversation with one policy."""

    ordinal: int = Field(description="Ordinal of the sampled trajectory.")
    index: int = Field(description="Index in the session.")
    role: str = Field(description="Role of the policy; empty without roles.")
    policy: PolicyId
    reward: float = Field(description="Reward of the trajectory.")
    parent: int | None = Field(description="Index of the trajectory that it branches from.")
    parent_turn: int | None = Field(description="Turn of the parent, from 0, in which it began.")
    tokens: int = Field(description="All tokens. Count.")
    model_tokens: int = Field(description="Tokens that are trained in this trajectory.")
    call_outcomes: dict[str, int] = Field(description="Recorded model calls by outcome.")


@fields_of(AgentCall)
class AgentCallResponse(ResponseModel):
    """Recorded model call of an agent. Secrets are removed."""

    number: int = Field(description="Position in the session, from 1.")
    trajectory: int = Field(description="Ordinal of the trajectory or failure with which it was recorded.")


class SessionResponse(ResponseModel):
    """Sampled session of an agent: its trajectories or its failure, and its model calls."""

    task: TaskId
    flow: FlowId
    group: GroupId
    node: str = Field(description="Id of the node.")
    node_name: str = Field(description="Name of the node.")
    failure: Failure | None = Field(description="Null unless the session failed.")
    trajectories: list[SessionTrajectoryResponse] = Field(description="Empty when the session failed.")
    calls: list[AgentCallResponse] = Field(description="In order of time; at most 256.")


@router.get("/agent-sessions", response_model=LiveSessionList)
@needs(Permission.READ)
async def agent_sessions(
    state: StateDep,
    flow: Annotated[str | None, Query(pattern=NAME)] = None,
    node: Annotated[str | None, Query(pattern=NAME, description="Id of a node.")] = None,
) -> dict[str, Any]:
    """Lists the sessions of agent programs that run now, the oldest first."""
    report = state.report
    nodes = [candidate for candidate in report.nodes if node in (None, candidate.id)] if report else []
    return {
        "items": [
            LiveSessionResponse.values_of(session, node=owner.id, node_name=owner.facts.name)
            for owner, session in sessions_of(nodes)
            if flow in (None, session.flow)
        ],
        "total": live_sessions(nodes).total,
        "age_s": state.age_s,
    }


@router.get("/runs/{run_id}/agent-sessions/{task:path}", response_model=SessionResponse)
@needs(Permission.READ)
async def agent_session(
    shown: ShownRunDep,
    response: Response,
    task: Annotated[str, Path(min_length=1, max_length=200, examples=["train:42/0"])],
) -> dict[str, Any]:
    """Returns the sampled session of a task as a JSON file: its trajectories, and the model calls of the agent."""
    samples = await samples_of_run(shown)
    members = await members_of_episode(samples, task)
    if not members:
        raise HTTPException(
            404, f"cannot find the session of task {task[:80]!r}: it is not stored; only the latest samples are kept"
        )
    first = members[0]
    response.headers["content-disposition"] = f'attachment; filename="session-{first.ordinal}.json"'
    return SessionResponse.values_of(
        first,
        node_name=samples.node_names.get(first.node, first.node),
        trajectories=[member for member in members if member.failure is None],
        calls=[
            AgentCallResponse.values_of(call.call, number=call.number, trajectory=call.owner.ordinal)
            for call in session_calls(members)
        ],
    )
