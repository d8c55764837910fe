"""`/charts/{name}`: one chart by itself, with the same numbers as a table."""

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from web.parts import PartsOf
from web.present import charts
from web.present.overview import overview, rows_of
from web.present.series import as_table
from web.present.shell import chosen, shell
from web.roles import Need, needs

router = APIRouter()


@router.get("/charts/{name}")
@needs(Need.READ)
async def show(request: Request, parts: PartsOf, name: str, policy: str = "", range: str = "") -> Response:  # noqa: A002 (the name in the address)
    """The chart, large, and its table."""
    report, choice = parts.state.report, chosen(parts.state, policy, range)
    spec = charts.CHARTS.get(name)
    if spec is None:
        raise HTTPException(404)
    frame = shell(parts.state, parts.settings, path=f"/charts/{name}", choice=choice)
    if report is None or choice.policy is None:
        return parts.pages.page(request, "overview/waiting.html", page="overview", shell=frame)
    view = overview(report, parts.state.series, choice)
    heads, rows = as_table(spec, rows_of(parts.state.series.window(choice.range_s), choice.policy))
    return parts.pages.page(
        request,
        "charts/page.html",
        page="overview",
        shell=frame,
        cells=parts.frames.cells,
        view=view,
        drawing=view.drawings[name],
        heads=heads,
        rows=rows,
    )
