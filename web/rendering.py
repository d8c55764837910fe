"""Templates: one environment, always escaping, with what every page needs at hand."""

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from astraflow.runtime.clock import SystemClock
from web.accounts.viewer import Viewer
from web.door.flash import taken_flash
from web.door.places import Place
from web.door.roles import Need
from web.present import formats
from web.present.cells import Cell
from web.present.navigation import NAVIGATION
from web.present.sentences import bare_event
from web.present.top import TopBar

ROOM = Path(__file__).parent
STATIC = ROOM / "static"
TEMPLATES = ROOM / "templates"

THEMES = ("system", "light", "dark")
THEME_COOKIE = "astraflow_theme"


class Pages:
    """Renders templates. dataflow: its address, for the commands that pages show. top: the bar of every page.

    run: name of the run that they show, on which the viewer has a role.
    """

    def __init__(self, *, dataflow: str, top: Callable[[], TopBar], run: Callable[[], str]) -> None:
        self.build = build_stamp()
        self._dataflow = dataflow
        self._top = top
        self._run = run
        self._environment = _environment()

    def warm(self) -> None:
        """Compile every template, so that the first visitor does not wait for it."""
        for name in self._environment.list_templates(extensions=("html",)):
            self._environment.get_template(name)

    def fragment(self, template: str, **context: Any) -> str:
        """A part of a page as text."""
        return self._environment.get_template(template).render(dataflow_address=self._dataflow, **context)

    def page(
        self,
        request: Request,
        template: str,
        *,
        cells: Mapping[str, Cell] | None = None,
        status: int = 200,
        **context: Any,
    ) -> HTMLResponse:
        """A whole page, or the answer to a request of one of its parts."""
        flash = taken_flash(request)
        theme = request.cookies.get(THEME_COOKIE, "system")
        viewer: Viewer | None = getattr(request.state, "viewer", None)
        run = self._run()

        def may(need: Need, *, pool: str = "") -> bool:
            """Whether the viewer has it on the run that is shown, or on one of its pools."""
            return viewer is not None and viewer.may(need, run=run, pool=pool)

        def role_on(pool: str = "") -> str:
            """The viewer's role there."""
            return viewer.role_at(Place(run=run, pool=pool)).value if viewer is not None else ""

        text = self.fragment(
            template,
            request=request,
            cells=cells or {},
            viewer=viewer,
            may=may,
            role_on=role_on,
            may_operate=may(Need.OPERATE),
            may_operate_some=viewer is not None and viewer.may_somewhere(Need.OPERATE, run=run),
            theme=theme if theme in THEMES else "system",
            next_theme=THEMES[(THEMES.index(theme if theme in THEMES else "system") + 1) % len(THEMES)],
            flash=flash,
            status=status,
            top=self._top(),
            **context,
        )
        response = HTMLResponse(text, status)
        if flash is not None:
            flash.clear(response)
        return response


@cache
def build_stamp() -> str:
    """Names the files of this release: part of their addresses, so that browsers may keep them for ever."""
    digest = hashlib.sha256()
    for path in sorted((*STATIC.rglob("*"), *TEMPLATES.rglob("*.html"))):
        if path.is_file():
            digest.update(path.relative_to(ROOM).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _ticked(text: str) -> Markup:
    """Escaped, with what stands between backticks as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 (what was not escaped are our tags)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,  # else each `include`, of a row even, asks the disk whether the file is another one
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"sort_keys": True, "separators": (",", ":")}
    build, clock = build_stamp(), SystemClock()
    environment.globals |= {
        "build": build,
        "navigation": NAVIGATION,
        "themes": THEMES,
        "needed": Need,
        "static": lambda path: f"/static/{build}/{path}",
    }
    environment.filters |= {
        "part": lambda text: quote(str(text), safe=""),
        "several": formats.several,
        "number": formats.count,
        "size": formats.size,
        "duration": formats.duration,
        "node_name": formats.node_name,
        "short_names": formats.with_short_names,
        "bare": bare_event,
        "ticked": _ticked,
        "since": lambda at: formats.since(clock.wall() - at),
        "ahead": lambda at: formats.duration(max(0.1, at - clock.wall())),
    }
    return environment
