"""`/api/v1/runs/N/trajectories`, `/rewards`, `/groups`: what was sampled of a run, also of one that ended."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from fastapi.responses import JSONResponse, Response
from pydantic import Field
from starlette.exceptions import HTTPException

from astraflow.contract.reports import SampledTrajectory
from web.door.roles import Need, needs
from web.feed.report_json import plain
from web.parts import PartsOf
from web.present.conversations import staleness_of, why_of
from web.present.sample_filter import Ending, SampleFilter
from web.reading.kept_runs import Told, told_of
from web.reading.sampled import members_of, reward_spread
from web.routes.api.terms import LARGEST, PREFIX, Filled, refusals

router = APIRouter(prefix=PREFIX, tags=["runs"])

MOST = 200

RunId = Annotated[int, Path(ge=1, le=LARGEST, description="As the list of runs has it.")]
Whole = Annotated[int | None, Query(ge=0, le=LARGEST)]
Reward = Annotated[float | None, Query(allow_inf_nan=False, description="Included.")]


class SpanAnswer(Filled):
    """Tokens with one author."""

    author: Literal["context", "model"]
    length: int
    version: int | None


class TrajectoryAnswer(Filled):
    """One sampled trajectory."""

    ordinal: int
    group: str
    task: str
    flow: str
    policy: str
    node: str = Field(description="Id of the node.")
    node_name: str
    at: float = Field(description="Unix seconds.")
    step: int | None
    fate: str
    why: str = Field(description="What became of it, in a sentence.")
    staleness: int | None = Field(description="Versions between its first token and its step; null before that.")
    reward: float
    prompt_text: str
    completion_text: str
    reference_text: str
    text_ends: list[int] = Field(
        description="Where in prompt and completion, one after the other, each span ends, in code points."
    )
    span_s: list[float | None] = Field(description="Seconds of each span, 0 where they are not known.")
    tokens: int
    model_tokens: int
    spans: list[SpanAnswer]
    is_truncated: bool
    member: int
    attempt: int
    duration_s: float
    metrics: dict[str, float | None]
    failure: dict[str, str] | None = Field(description="`boundary` and `message` of a member that failed.")


class TrajectoryList(Filled):
    """A page, newest first."""

    items: list[TrajectoryAnswer]
    has_older: bool
    has_newer: bool


class GroupAnswer(Filled):
    """All that was sampled of one group."""

    group: str
    members: list[TrajectoryAnswer]


class BinAnswer(Filled):
    """Trajectories whose rewards lie close together."""

    begin: float
    end: float = Field(description="Not included.")
    lowest: float
    highest: float
    trajectories: int
    groups: int


class SpreadAnswer(Filled):
    """How rewards are spread."""

    bins: list[BinAnswer]
    failed: int


@router.get("/runs/{run_id}/trajectories", response_model=TrajectoryList, responses=refusals(404))
@needs(Need.READ)
async def trajectories(
    parts: PartsOf,
    run_id: RunId,
    policy: Annotated[str, Query(max_length=200)] = "",
    group: Annotated[str, Query(max_length=200)] = "",
    fate: Annotated[str, Query(max_length=200)] = "",
    text: Annotated[str, Query(max_length=1000, description="Part of the prompt or the completion.")] = "",
    ending: Annotated[Ending, Query(description="How it ended; empty for any.")] = Ending.ANY,
    step: Whole = None,
    min_reward: Reward = None,
    max_reward: Reward = None,
    before: Annotated[int | None, Query(ge=0, le=LARGEST, description="Older than this ordinal: for paging.")] = None,
    limit: Annotated[int, Query(ge=1, le=MOST)] = 50,
) -> dict[str, Any]:
    """Sampled trajectories with their texts, newest first; fewer than asked for when texts are long."""
    told = await told_of(parts, run_id)
    asked = SampleFilter(
        policy=policy,
        group=group,
        fate=fate,
        text=text,
        ending=ending,
        step=step,
        min_reward=min_reward,
        max_reward=max_reward,
        before=before,
    )
    page = await told.source.trajectories(asked.query(limit=limit))
    items = [_answer(told, one) for one in page.trajectories]
    return {"items": items, "has_older": page.has_older, "has_newer": page.has_newer}


@router.get("/runs/{run_id}/rewards", response_model=SpreadAnswer, responses=refusals(404))
@needs(Need.READ)
async def rewards(
    parts: PartsOf,
    run_id: RunId,
    policy: Annotated[str, Query(max_length=200)] = "",
    fate: Annotated[str, Query(max_length=200)] = "",
    step: Whole = None,
) -> dict[str, Any]:
    """How the rewards of sampled trajectories are spread."""
    told = await told_of(parts, run_id)
    return asdict(await reward_spread(told, SampleFilter(policy=policy, fate=fate, step=step)))


@router.get("/runs/{run_id}/groups/{group:path}", response_model=GroupAnswer, responses=refusals(404))
@needs(Need.READ)
async def one_group(
    parts: PartsOf,
    run_id: RunId,
    group: Annotated[str, Path(min_length=1, max_length=200, examples=["train:42"])],
    policy: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """All that was sampled of one group, as a file to keep."""
    told = await told_of(parts, run_id)
    members = await members_of(told, group, policy)
    if not members:
        raise HTTPException(404, f"nothing of a group {group[:80]!r} is kept (any more)")
    body = {"group": group, "members": [_answer(told, one) for one in members]}
    headers = {"content-disposition": f'attachment; filename="group-{members[0].ordinal}.json"'}
    return JSONResponse(body, headers=headers)


def _answer(told: Told, sample: SampledTrajectory) -> dict[str, Any]:
    name = told.names.get(sample.node, sample.node)
    return dict(plain(asdict(sample))) | {"node_name": name, "why": why_of(sample), "staleness": staleness_of(sample)}
