"""`/api/v1/runs/N/labels`, `/api/v1/runs/N/data-sets`: labels of sampled trajectories, and data sets of them."""

from typing import Annotated, Any

from fastapi import Path, Query
from fastapi.responses import Response
from pydantic import ConfigDict, Field
from starlette.exceptions import HTTPException

from web.database.tables import MAX_ID, TrajectoryLabel
from web.requests.dependencies import ClockDep, CommandsDep, DatabaseDep, ShownRunDep
from web.rest.common import (
    MAX_EXACT_INTEGER,
    WITHOUT_NUL,
    ApiRouter,
    ItemList,
    MessageResponse,
    RequestBody,
    ResponseModel,
)
from web.security.roles import Permission, needs
from web.trajectories.data_sets import DataSetKind
from web.trajectories.filters import EndFilter, SampleFilter
from web.trajectories.label_routes import data_set_response, requested_data_set
from web.trajectories.labels import (
    MAX_LABEL_CHARS,
    MAX_NOTE_CHARS,
    label_request,
    labels_of_run,
    put_label,
    remove_label,
)
from web.trajectories.queries import find_sample, samples_of_run

router = ApiRouter(tags=["runs"])


class LabelBody(RequestBody):
    """Label for a trajectory; the same label again replaces its note and expected reward."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"label": "wrong reward", "note": "another unit", "expected_reward": 1.0}]}
    )

    label: str = Field(
        min_length=1,
        max_length=MAX_LABEL_CHARS,
        pattern=r"^[^\x00]*\w[^\x00]*$",
        description="`good`, `bad`, `wrong reward`, or own words.",
        examples=["wrong reward"],
    )
    note: str = Field("", max_length=MAX_NOTE_CHARS, pattern=WITHOUT_NUL, description="Note.")
    expected_reward: float | None = Field(
        None, allow_inf_nan=False, description="Reward that the trajectory should have; null for none.", examples=[1.0]
    )


class LabelResponse(ResponseModel):
    """Label of a trajectory."""

    id: int = Field(description="Id of the label.")
    ordinal: int = Field(description="Ordinal of the trajectory.")
    label: str = Field(description="`good`, `bad`, `wrong reward`, or own words.", examples=["wrong reward"])
    expected_reward: float | None = Field(description="Reward that the trajectory should have; null without one.")
    note: str = Field(description="Note; empty without one.", examples=["the answer has another unit"])
    author: str = Field(description="User who gave the label.", examples=["ada"])
    at: float = Field(description="Unix seconds.")


class LabelList(ItemList[LabelResponse]):
    """Labels, newest first."""


@router.get("/runs/{run_id}/labels", response_model=LabelList)
@needs(Permission.READ)
async def labels(
    shown: ShownRunDep,
    database: DatabaseDep,
    label: Annotated[str, Query(max_length=200, description="Only these labels; empty for all.")] = "",
) -> dict[str, Any]:
    """Lists the labels of a run's trajectories, newest first."""
    await shown.record()
    return {"items": [_response(row) for row in await labels_of_run(database, shown.id, label=label)]}


@router.put("/runs/{run_id}/trajectories/{ordinal}/labels", response_model=MessageResponse)
@needs(Permission.OPERATE)
async def add_label(
    shown: ShownRunDep,
    database: DatabaseDep,
    clock: ClockDep,
    commands: CommandsDep,
    ordinal: Annotated[int, Path(ge=0, le=MAX_EXACT_INTEGER)],
    body: LabelBody,
) -> dict[str, Any]:
    """Labels a sampled trajectory."""
    run = await shown.record()
    sample = await find_sample(await samples_of_run(shown), ordinal)
    if sample is None:
        raise HTTPException(404, f"cannot find trajectory {ordinal}: its sample is not stored")
    request = label_request(body.label, body.note, body.expected_reward)
    return {"message": await put_label(commands, database, run, sample, request, clock.wall())}


@router.delete("/runs/{run_id}/labels/{label_id}", response_model=MessageResponse)
@needs(Permission.OPERATE)
async def delete_label(
    shown: ShownRunDep,
    database: DatabaseDep,
    commands: CommandsDep,
    label_id: Annotated[int, Path(ge=1, le=MAX_ID, description="Id of the label.")],
) -> dict[str, Any]:
    """Removes a label."""
    return {"message": await remove_label(commands, database, await shown.record(), label_id)}


@router.get(
    "/runs/{run_id}/data-sets/{kind}",
    responses={
        200: {"description": "JSON lines.", "content": {"application/x-ndjson": {"schema": {"type": "string"}}}}
    },
    response_class=Response,
)
@needs(Permission.READ)
async def saved_data_set(
    shown: ShownRunDep,
    database: DatabaseDep,
    kind: DataSetKind,
    label: Annotated[str, Query(max_length=200, description="Only trajectories with this label.")] = "",
    is_filtered: Annotated[
        bool, Query(description="Sampled trajectories that match the filter, labelled or not.")
    ] = False,
    policy: Annotated[str, Query(max_length=200)] = "",
    step: Annotated[int | None, Query(ge=0, le=MAX_EXACT_INTEGER)] = None,
    ending: Annotated[EndFilter, Query(description="How the trajectory ended; empty for any.")] = EndFilter.ANY,
    min_reward: Annotated[float | None, Query(allow_inf_nan=False, description="Bound, inclusive.")] = None,
    max_reward: Annotated[float | None, Query(allow_inf_nan=False, description="Bound, inclusive.")] = None,
) -> Response:
    """Returns labelled or filtered trajectories as JSON lines, which recipes and `astraflow calibrate` read."""
    await shown.record()
    filters = SampleFilter(policy=policy, step=step, ending=ending, min_reward=min_reward, max_reward=max_reward)
    return data_set_response(
        shown.id, await requested_data_set(shown, database, kind, filters if is_filtered else label)
    )


def _response(row: TrajectoryLabel) -> dict[str, Any]:
    return {name: getattr(row, name) for name in LabelResponse.model_fields}
