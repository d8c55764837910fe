"""`/runs/N/labels`: labels of trajectories and data sets of them. `/runs/N/data-sets/KIND.jsonl`: one data set."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from fastapi import APIRouter, Form, Path, Query, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from astraflow.contract.errors import InvalidInput
from web.database.tables import MAX_ID
from web.requests.dependencies import ClockDep, CommandsDep, DatabaseDep, ShownRunDep
from web.requests.responses import redirect_with_result
from web.security.roles import Permission, needs
from web.trajectories.data_sets import DataSet, DataSetKind, data_set
from web.trajectories.filters import SampleFilter, filter_from
from web.trajectories.labels import (
    MAX_LABEL_CHARS,
    MAX_NOTE_CHARS,
    LabelRequest,
    label_request,
    labelled_rollouts,
    labels_of_run,
    put_label,
    remove_label,
)
from web.trajectories.queries import find_sample, rollouts_of, samples_of_run

router = APIRouter()

Ordinal = Annotated[int, Path(ge=0, le=2**53)]
LabelId = Annotated[int, Path(ge=1, le=MAX_ID)]
Back = Annotated[str, Form(max_length=2000)]
"""Address of the page with the form."""


@router.get("/runs/{run_id}/labels")
@needs(Permission.READ)
async def show(
    request: Request, shown: ShownRunDep, database: DatabaseDep, label: Annotated[str, Query(max_length=200)] = ""
) -> Response:
    """Shows the labels of a run, newest first, with the data sets that they make. label: only these."""
    head, labels = await shown.header(), await labels_of_run(database, shown.id)
    listed = [row for row in labels if label in ("", row.label)]
    rollouts = labelled_rollouts(listed)
    return shown.run.pages.page(
        request,
        "trajectories/labels.html",
        page="runs",
        head=head,
        chosen=label,
        names=sorted({row.label for row in labels}),
        rows=[(row, rollouts_by_ordinal[row.ordinal]) for row in listed]
        if (rollouts_by_ordinal := {labelled.rollout.ordinal: labelled.rollout for labelled in rollouts})
        else [],
        data_sets=[data_set(kind, rollouts) for kind in DataSetKind],
    )


@router.post("/runs/{run_id}/trajectories/{ordinal}/labels")
@needs(Permission.OPERATE)
async def add(
    shown: ShownRunDep,
    database: DatabaseDep,
    clock: ClockDep,
    commands: CommandsDep,
    ordinal: Ordinal,
    label: Annotated[str, Form(max_length=MAX_LABEL_CHARS)] = "",
    own: Annotated[str, Form(max_length=MAX_LABEL_CHARS)] = "",
    note: Annotated[str, Form(max_length=MAX_NOTE_CHARS)] = "",
    expected_reward: Annotated[str, Form(max_length=40)] = "",
    back: Back = "",
) -> Response:
    """Labels a trajectory. label: that of the pressed button; own: the person's own words, without one."""
    run = await shown.record()

    async def put() -> str:
        sample = await find_sample(await samples_of_run(shown), ordinal)
        if sample is None:
            raise HTTPException(404, f"No trajectory {ordinal}. Its sample is no longer stored.")
        request = _request(label or own, note, expected_reward)
        return await put_label(commands, database, run, sample, request, clock.wall())

    return await redirect_with_result(put(), failed="Not labelled", page=_own_page(back, shown.id))


@router.post("/runs/{run_id}/labels/{label_id}/remove")
@needs(Permission.OPERATE)
async def remove(
    shown: ShownRunDep, database: DatabaseDep, commands: CommandsDep, label_id: LabelId, back: Back = ""
) -> Response:
    """Removes a label."""
    removal = remove_label(commands, database, await shown.record(), label_id)
    return await redirect_with_result(removal, failed="Not removed", page=_own_page(back, shown.id))


@router.get("/runs/{run_id}/data-sets/{kind}.jsonl")
@needs(Permission.READ)
async def download(
    request: Request,
    shown: ShownRunDep,
    database: DatabaseDep,
    kind: DataSetKind,
    of: Literal["labels", "trajectories"] = "labels",
) -> Response:
    """Returns a data set of the labelled trajectories (`?label=good` for these only), or, with `?of=trajectories`, of
    those that match the filter in the address."""
    filters = filter_from(request.query_params, policies=(await shown.header()).policies)
    label = request.query_params.get("label", "")
    return data_set_response(
        shown.id, await requested_data_set(shown, database, kind, filters if of == "trajectories" else label)
    )


async def requested_data_set(
    shown: ShownRunDep, database: DatabaseDep, kind: DataSetKind, chosen: SampleFilter | str
) -> DataSet:
    """Returns a data set. chosen: a filter of sampled trajectories, or a label (empty for all labels)."""
    labels = await labels_of_run(database, shown.id, label=chosen if isinstance(chosen, str) else "")
    if isinstance(chosen, str):
        return data_set(kind, labelled_rollouts(labels))
    return data_set(kind, await rollouts_of(await samples_of_run(shown), chosen, labelled_rollouts(labels)))


def data_set_response(run_id: int, chosen: DataSet) -> Response:
    """Returns the file of a data set; the header `x-left-out` counts the trajectories that it cannot have."""
    headers = {
        "content-disposition": f'attachment; filename="run-{run_id}-{chosen.kind.value}.jsonl"',
        "x-left-out": str(sum(chosen.left_out.values())),
    }
    return Response(chosen.text, media_type="application/x-ndjson", headers=headers)


def _request(label: str, note: str, expected_reward: str) -> LabelRequest:
    try:
        expected = float(expected_reward) if expected_reward.strip() else None
    except ValueError:
        raise InvalidInput(
            f"cannot label the trajectory: {expected_reward!r} is no number; write the expected reward as a number",
            code="label.invalid",
        ) from None
    return label_request(label, note, expected)


def _own_page(back: str, run_id: int) -> str:
    """Returns an address of the run's pages to return to; the list of labels for any other one."""
    address = urlsplit(back)
    is_own = not address.scheme and not address.netloc and address.path.startswith(f"/runs/{run_id}/")
    return back if is_own else f"/runs/{run_id}/labels"
