"""`/api/v1/runs/N/trajectories`, `/rewards`, `/groups`: sampled trajectories of a live or ended run."""

from dataclasses import replace
from typing import Annotated, Any

from fastapi import Path, Query
from fastapi.responses import Response
from pydantic import Field
from starlette.exceptions import HTTPException

from astraflow.contract.reports.queries import RewardHistogram
from astraflow.contract.reports.report import SampledTrajectory
from astraflow.contract.rollouts.agent_calls import CallOutcome
from astraflow.contract.rollouts.timelines import Hop
from web.requests.dependencies import ShownRunDep
from web.rest.common import MAX_EXACT_INTEGER, ApiRouter, ItemList, ResponseModel, as_tool
from web.rest.contract_models import fields_of
from web.security.roles import Permission, needs
from web.trajectories.conversations import outcome_sentence, staleness_of
from web.trajectories.filters import EndFilter, SampleFilter
from web.trajectories.queries import RunSamples, find_sample, members_of_group, reward_spread, samples_of_run

router = ApiRouter(tags=["runs"])

ROLLOUT_TEXTS = (
    "prompt_text",
    "completion_text",
    "reference_text",
    "prompt_fields",
    "failure_message",
    "labels",
    "task",
)
"""Fields of a rollout that data sets, policies and environments write."""

MAX_TRAJECTORIES = 200

WholeNumber = Annotated[int | None, Query(ge=0, le=MAX_EXACT_INTEGER)]
Term = Annotated[str, Query(max_length=200, description="Name of a reward term that the trajectory has.")]
Reward = Annotated[float | None, Query(allow_inf_nan=False, description="Bound, inclusive.")]


@fields_of(SampledTrajectory, without=("calls", "hops", "batched_at", "trained_at"))
class TrajectoryResponse(ResponseModel):
    """Sampled trajectory."""

    node_name: str = Field(description="Name of the node.")
    why: str = Field(description="Outcome in one sentence.")
    staleness: int | None = Field(
        description="Versions between its first token and its training step; null before the step."
    )


class TimelineResponse(ItemList[Hop]):
    """Spans of one episode in order of their begin."""


class TrajectoryList(ItemList[TrajectoryResponse]):
    """Page of trajectories, newest first."""

    has_older: bool = Field(description="Whether older trajectories match.")
    has_newer: bool = Field(description="Whether newer trajectories match.")


class TrajectoryGroupResponse(ResponseModel):
    """All sampled trajectories of one group."""

    group: str = Field(description="Id of the group.")
    members: list[TrajectoryResponse] = Field(description="Trajectories of the group.")


@fields_of(RewardHistogram)
class RewardHistogramResponse(ResponseModel):
    """Histogram of rewards."""


@router.get(
    "/runs/{run_id}/trajectories",
    response_model=TrajectoryList,
    openapi_extra=as_tool("run_rollouts", texts=ROLLOUT_TEXTS),
)
@needs(Permission.READ)
async def trajectories(
    shown: ShownRunDep,
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
    samples = await samples_of_run(shown)
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


@router.get("/runs/{run_id}/trajectories/{ordinal}/timeline", response_model=TimelineResponse)
@needs(Permission.READ)
async def timeline(shown: ShownRunDep, ordinal: Annotated[int, Path(ge=0, le=MAX_EXACT_INTEGER)]) -> dict[str, Any]:
    """Returns the spans of a sampled trajectory's episode, from lease to step."""
    sample = await find_sample(await samples_of_run(shown), ordinal)
    if sample is None:
        raise HTTPException(404, f"cannot find trajectory {ordinal}: only the latest samples are stored")
    return {"items": sample.timeline}


@router.get("/runs/{run_id}/rewards", response_model=RewardHistogramResponse)
@needs(Permission.READ)
async def rewards(
    shown: ShownRunDep,
    policy: Annotated[str, Query(max_length=200)] = "",
    outcome: Annotated[str, Query(max_length=200)] = "",
    ending: Annotated[EndFilter, Query(description="How the trajectory ended; empty for any.")] = EndFilter.ANY,
    role: Annotated[str, Query(max_length=200)] = "",
    term: Annotated[str, Query(max_length=200, description="Reward term to count; empty for the reward.")] = "",
    step: WholeNumber = None,
) -> RewardHistogram:
    """Returns the histogram of sampled rewards or of a reward term, with the endings, roles and terms."""
    samples = await samples_of_run(shown)
    sample_filter = SampleFilter(policy=policy, outcome=outcome, ending=ending, role=role, term=term, step=step)
    return await reward_spread(samples, sample_filter, of_term=bool(term))


@router.get("/runs/{run_id}/groups/{group:path}", response_model=TrajectoryGroupResponse)
@needs(Permission.READ)
async def get_group(
    shown: ShownRunDep,
    response: Response,
    group: Annotated[str, Path(min_length=1, max_length=200, examples=["train:42"])],
    policy: Annotated[str, Query(max_length=200)] = "",
) -> dict[str, Any]:
    """Returns all sampled trajectories of one group as a JSON file."""
    samples = await samples_of_run(shown)
    members = await members_of_group(samples, group, policy)
    if not members:
        raise HTTPException(
            404, f"cannot find group {group[:80]!r}: no samples are stored; only the latest samples are kept"
        )
    response.headers["content-disposition"] = f'attachment; filename="group-{members[0].ordinal}.json"'
    return {"group": group, "members": [_to_response(samples, sample) for sample in members]}


def _to_response(samples: RunSamples, sample: SampledTrajectory) -> dict[str, Any]:
    return TrajectoryResponse.values_of(
        sample,
        node_name=samples.node_names.get(sample.node, sample.node),
        why=outcome_sentence(sample, samples.plugin_kinds),
        staleness=staleness_of(sample),
    )
