"""Metadata of a run (title, note, tags, group, star), its configuration, and the columns of the list."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from astraflow.runtime.folders.run_metadata import tags_from
from web.database.preferences import set_preferred_names
from web.requests.commands import Commands
from web.requests.dependencies import CommandsDep, DatabaseDep, PagesDep, RunIndexDep, ShownRunDep, ViewerDep
from web.requests.responses import redirect_with_flash, redirect_with_result
from web.requests.run_lookup import ShownRun, state_of
from web.runs.columns import MAX_COLUMNS, PREFERENCE, available_columns, shown_columns
from web.runs.details import annotate, configuration, record_metadata
from web.runs.list_queries import entries
from web.runs.views import TONES
from web.security.addresses import local_path
from web.security.flash import Flash
from web.security.roles import Permission, ResourceKind, needs

router = APIRouter()

LIST = "/runs"


@router.get("/runs/{run_id}/configuration")
@needs(Permission.READ)
async def show_configuration(request: Request, shown: ShownRunDep) -> Response:
    """Shows the resolved recipe of a run, its difference from its recipe, and the command that repeats it."""
    record = await shown.record()
    run = await shown.local(record)
    return shown.run.pages.page(
        request,
        "runs/configuration.html",
        page="runs",
        row=record,
        state=state_of(run, folder=record.folder, is_heard=shown.is_live),
        tones=TONES,
        local=run,
        metadata=record_metadata(record, run),
        configuration=await asyncio.to_thread(configuration, run) if run is not None else None,
    )


@router.get("/runs/{run_id}/metadata")
@needs(Permission.OPERATE, on=ResourceKind.RECORD)
async def show_metadata(request: Request, shown: ShownRunDep) -> Response:
    """Shows the form of a run's metadata."""
    record = await shown.record()
    metadata = record_metadata(record, await shown.local(record))
    return shown.run.pages.page(request, "runs/metadata.html", page="runs", record=record, metadata=metadata)


@router.post("/runs/{run_id}/metadata")
@needs(Permission.OPERATE, on=ResourceKind.RECORD)
async def set_metadata(
    shown: ShownRunDep,
    commands: CommandsDep,
    title: Annotated[str, Form()] = "",
    note: Annotated[str, Form()] = "",
    tags: Annotated[str, Form()] = "",
    group: Annotated[str, Form()] = "",
) -> Response:
    """Changes title, note, tags and group of a run, and redirects to its page."""
    note = note.replace("\r\n", "\n")
    changes: dict[str, object] = {"title": title, "note": note, "tags": tags_from(tags), "group": group}
    return await _changed(shown, commands, changes, page=f"{LIST}/{shown.id}")


@router.post("/runs/{run_id}/star")
@needs(Permission.OPERATE, on=ResourceKind.RECORD)
async def set_star(
    shown: ShownRunDep,
    commands: CommandsDep,
    is_starred: Annotated[bool, Form(alias="star")] = False,
    next_path: Annotated[str, Form(alias="next")] = LIST,
) -> Response:
    """Sets or removes the star of a run, and redirects to `next`."""
    return await _changed(shown, commands, {"is_starred": is_starred}, page=local_path(next_path))


async def _changed(shown: ShownRun, commands: Commands, changes: dict[str, object], *, page: str) -> Response:
    async def saved() -> str:
        await annotate(shown, commands, changes)
        return "Saved"

    return await redirect_with_result(saved(), failed="The run was not changed", page=page)


@router.get("/runs/columns")
@needs(Permission.READ)
async def show_columns(request: Request, pages: PagesDep, index: RunIndexDep, viewer: ViewerDep) -> Response:
    """Shows the settings and metrics that the list can have as columns."""
    return pages.page(
        request,
        "runs/columns.html",
        page="runs",
        groups=available_columns(await entries(index)),
        chosen=await shown_columns(index.database, viewer.user_id),
        most=MAX_COLUMNS,
    )


@router.post("/runs/columns")
@needs(Permission.OWN)
async def set_columns(
    viewer: ViewerDep, database: DatabaseDep, column: Annotated[list[str] | None, Form(max_length=200)] = None
) -> Response:
    """Sets the further columns of the list for the user, and redirects to it."""
    columns = [key for key in column or () if len(key) <= 200][:MAX_COLUMNS]
    await database.write(lambda session: set_preferred_names(session, viewer.user_id, PREFERENCE, columns))
    return redirect_with_flash(Flash(text="Columns saved", tone="good"), page=LIST)
