"""`/api/v1/runs/N/trajectories`, `/rewards`, `/groups`: sampled trajectories of a live or ended run."""

from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import JSONResponse, Response
from pydantic import Field
from starlette.exceptions import HTTPException

from astraflow.contract.agent_calls import CallOutcome
from astraflow.contract.reports import SampledTrajectory
from astraflow.contract.spans import Author
from web.history.report_json import json_value
from web.requests.context import RequestContextDep
from web.rest.common import MAX_EXACT_INTEGER, PREFIX, ResponseModel, error_responses
from web.security.roles import Permission, needs
from web.trajectories.conversations import outcome_sentence, staleness_of
from web.trajectories.filters import EndFilter, SampleFilter
from web.trajectories.queries import RunSamples, find_sample, members_of_group, reward_spread, samples_of_run

router = APIRouter(prefix=PREFIX, tags=["runs"])

MAX_TRAJECTORIES = 200

RunId = Annotated[int, Path(ge=1, le=MAX_EXACT_INTEGER, description="Id of the run, from the list of runs.")]
WholeNumber = Annotated[int | None, Query(ge=0, le=MAX_EXACT_INTEGER)]
Term = Annotated[str, Query(max_length=200, description="Name of a reward term that the trajectory has.")]
Reward = Annotated[float | None, Query(allow_inf_nan=False, description="Bound, inclusive.")]


class SpanResponse(ResponseModel):
    """Span of tokens with one author."""

    author: Author
    length: int
    version: int | None
    speaker: str = Field(
        description="Origin of context after the first turn: `environment`, `tool` or a role; empty for the prompt."
    )


class TrajectoryResponse(ResponseModel):
    """Sampled trajectory."""

    ordinal: int
    group: str
    task: str
    flow: str
    policy: str
    node: str = Field(description="Id of the node.")
    node_name: str
    at: float = Field(description="Unix seconds.")
    step: int | None
    outcome: str
    why: str = Field(description="Outcome in one sentence.")
    staleness: int | None = Field(
        description="Versions between its first token and its training step; null before the step."
    )
    reward: float
    prompt_text: str
    completion_text: str
    reference_text: str
    text_ends: list[int] = Field(
        description="End of each span in the concatenation of prompt and completion. Code points."
    )
    span_s: list[float | None] = Field(description="Seconds of each span; 0 if unknown.")
    tokens: int
    model_tokens: int
    spans: list[SpanResponse]
    is_truncated: bool
    member: int
    attempt: int
    duration_s: float
    metrics: dict[str, float | None]
    index: int = Field(description="Index in its episode, the trajectories with the same `task`.")
    role: str
    parent: int | None = Field(description="Index in the episode of the trajectory that started this one.")
    parent_turn: int | None = Field(description="Turn of the parent, from 0, that started this one.")
    turn_rewards: list[float | None] = Field(description="Reward of each turn; empty if only the whole is scored.")
    reward_terms: dict[str, float | None]
    labels: dict[str, str]
    ending: str | None = Field(description="Reason for the end of an interaction; null for a single answer.")
    token_ends: list[int] = Field(
        description="End of each model-written token in the concatenation of prompt and completion, in code points; "
        "empty without `tokens=true`."
    )
    logprobs: list[float | None] = Field(description="Log-probability of each model-written token; as `token_ends`.")
    call_outcomes: dict[str, int] = Field(
        description="Recorded model calls of an agent by outcome: `answered`, `replayed`, `refused`, `aborted`."
    )
    failure: dict[str, str] | None = Field(description="`boundary` and `message` of a member that failed.")


class HopResponse(ResponseModel):
    """Span of an episode's way from lease to step."""

    name: str = Field(description="Name of the span, as in exported traces.")
    began_at: float = Field(description="Unix seconds, by the clock of the machine that recorded it.")
    duration_s: float
    detail: str = Field(description="Attributes of the span.")
    error: str = Field(description="Exception that was raised; empty without one.")


class TimelineResponse(ResponseModel):
    """Spans of one episode in order of their begin."""

    items: list[HopResponse] = Field(description="Empty when its node recorded none.")


class TrajectoryList(ResponseModel):
    """Page of trajectories, newest first."""

    items: list[TrajectoryResponse]
    has_older: bool
    has_newer: bool


class TrajectoryGroupResponse(ResponseModel):
    """All sampled trajectories of one group."""

    group: str
    members: list[TrajectoryResponse]


class HistogramBinResponse(ResponseModel):
    """Bin of the reward histogram."""

    begin: float
    end: float = Field(description="Exclusive.")
    lowest: float
    highest: float
    trajectories: int
    groups: int


class RewardHistogramResponse(ResponseModel):
    """Histogram of rewards."""

    bins: list[HistogramBinResponse]
    failed: int
    endings: dict[str, int] = Field(description="Trajectories by ending.")
    roles: dict[str, int] = Field(description="Trajectories by role; the most frequent ones.")
    terms: dict[str, int] = Field(description="Trajectories by reward term that they have; the most frequent ones.")
    calls: dict[str, int] = Field(description="Trajectories by outcome of recorded model calls that they have.")


@router.get("/runs/{run_id}/trajectories", response_model=TrajectoryList, responses=error_responses(404))
@needs(Permission.READ)
async def trajectories(
    context: RequestContextDep,
    run_id: RunId,
    policy: Annotated[str, Query(max_length=200)] = "",
    group: Annotated[str, Query(max_length=200)] = "",
    outcome: Annotated[str, Query(max_length=200)] = "",
    text: Annotated[str, Query(max_length=1000, description="Part of the prompt or the completion.")] = "",
    ending: Annotated[EndFilter, Query(description="How the trajectory ended; empty for any.")] = EndFilter.ANY,
    call: Annotated[
        CallOutcome | None, Query(description="Outcome of a recorded model call that the trajectory has.")
    ] = None,
    task: Annotated[str, Query(max_length=200, description="Task: all trajectories of its episode.")] = "",
    role: Annotated[str, Query(max_length=200)] = "",
    term: Term = "",
    min_term: Reward = None,
    max_term: Reward = None,
    step: WholeNumber = None,
    min_reward: Reward = None,
    max_reward: Reward = None,
    before: Annotated[
        int | None, Query(ge=0, le=MAX_EXACT_INTEGER, description="Only older than this ordinal, for paging.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_TRAJECTORIES)] = 50,
    tokens: Annotated[bool, Query(description="Include ends and log-probabilities of tokens.")] = False,
) -> dict[str, Any]:
    """Lists sampled trajectories with texts, newest first; fewer than `limit` if texts are long."""
    samples = await samples_of_run(context, run_id)
    sample_filter = SampleFilter(
        policy=policy,
        group=group,
        outcome=outcome,
        text=text,
        ending=ending,
        call=call,
        task=task,
        role=role,
        term=term,
        min_term=min_term,
        max_term=max_term,
        step=step,
        min_reward=min_reward,
        max_reward=max_reward,
        before=before,
    )
    page = await samples.source.trajectories(replace(sample_filter.query(limit=limit), with_tokens=tokens))
    items = [_to_response(samples, sample) for sample in page.trajectories]
    return {"items": items, "has_older": page.has_older, "has_newer": page.has_newer}


@router.get(
    "/runs/{run_id}/trajectories/{ordinal}/timeline", response_model=TimelineResponse, responses=error_responses(404)
)
@needs(Permission.READ)
async def timeline(
    context: RequestContextDep, run_id: RunId, ordinal: Annotated[int, Path(ge=0, le=MAX_EXACT_INTEGER)]
) -> dict[str, Any]:
    """Returns the spans of a sampled trajectory's episode, from lease to step."""
    sample = await find_sample(await samples_of_run(context, run_id), ordinal)
    if sample is None:
        raise HTTPException(404, f"cannot find trajectory {ordinal}: only the latest samples are stored")
    return {"items": [asdict(hop) for hop in sample.timeline]}


@router.get("/runs/{run_id}/rewards", response_model=RewardHistogramResponse, responses=error_responses(404))
@needs(Permission.READ)
async def rewards(
    context: RequestContextDep,
    run_id: RunId,
    policy: Annotated[str, Query(max_length=200)] = "",
    outcome: Annotated[str, Query(max_length=200)] = "",
    ending: Annotated[EndFilter, Query(description="How the trajectory ended; empty for any.")] = EndFilter.ANY,
    role: Annotated[str, Query(max_length=200)] = "",
    term: Annotated[str, Query(max_length=200, description="Reward term to count; empty for the reward.")] = "",
    step: WholeNumber = None,
) -> dict[str, Any]:
    """Returns the histogram of sampled rewards or of a reward term, with the endings, roles and terms."""
    samples = await samples_of_run(context, run_id)
    sample_filter = SampleFilter(policy=policy, outcome=outcome, ending=ending, role=role, term=term, step=step)
    return asdict(await reward_spread(samples, sample_filter, of_term=bool(term)))


@router.get(
    "/runs/{run_id}/groups/{group:path}", response_model=TrajectoryGroupResponse, responses=error_responses(404)
)
@needs(Permission.READ)
async def get_group(
    context: RequestContextDep,
    run_id: RunId,
    group: Annotated[str, Path(min_length=1, max_length=200, examples=["train:42"])],
    policy: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Returns all sampled trajectories of one group as a JSON file."""
    samples = await samples_of_run(context, run_id)
    members = await members_of_group(samples, group, policy)
    if not members:
        raise HTTPException(
            404, f"cannot find group {group[:80]!r}: no samples are stored; only the latest samples are kept"
        )
    body = {"group": group, "members": [_to_response(samples, sample) for sample in members]}
    headers = {"content-disposition": f'attachment; filename="group-{members[0].ordinal}.json"'}
    return JSONResponse(body, headers=headers)


def _to_response(samples: RunSamples, sample: SampledTrajectory) -> dict[str, Any]:
    name = samples.node_names.get(sample.node, sample.node)
    fields = {name: value for name, value in asdict(sample).items() if name != "calls"}
    return dict(json_value(fields)) | {
        "node_name": name,
        "why": outcome_sentence(sample),
        "staleness": staleness_of(sample),
    }
