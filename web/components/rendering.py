"""Templates: one environment with autoescaping and the globals of every page."""

import hashlib
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import BaseLoader, ChoiceLoader, Environment, FileSystemLoader, PrefixLoader, StrictUndefined
from markupsafe import Markup, escape

from astraflow.contract.records import render, render_summary
from astraflow.runtime.clock import SystemClock
from web.accounts.viewer import Viewer
from web.components import formats
from web.components.diagnosis_texts import SHOWN_STAGES, STAGE_LABELS, STAGE_PATHS
from web.components.layout import NAVIGATION, PageLayout, PageSelection, header_view, layout
from web.components.live_sessions import is_idle
from web.components.live_texts import LiveText
from web.components.texts import may_scroll, visible
from web.process_settings import Settings
from web.security.flash import read_flash
from web.security.path_prefix import with_prefix
from web.security.roles import Permission, Resource
from web.state.annotations import capitalized
from web.state.fleet_state import FleetState
from web.state.run_state import RunState

WEB_FOLDER = Path(__file__).parents[1]
STATIC = WEB_FOLDER / "static"
SHARED_TEMPLATES = Path(__file__).parent / "templates"

THEMES = ("system", "light", "dark")
THEME_COOKIE = "astraflow_theme"


class PageRenderer:
    """Renders the templates of one run.

    name: returns the name of the run, on which roles apply. alerts: returns the number of alerts that fire.
    """

    def __init__(
        self,
        settings: Settings,
        state: RunState,
        fleet: FleetState,
        *,
        name: Callable[[], str],
        alerts: Callable[[], int],
    ) -> None:
        self.build = build_stamp()
        self._settings = settings
        self._state = state
        self._fleet = fleet
        self._name = name
        self._alerts = alerts
        self._environment = _environment()

    @property
    def follows_run(self) -> bool:
        """Whether there is a dataflow service to wait for."""
        return bool(self._settings.dataflow)

    def fragment(self, template: str, **context: Any) -> str:
        """Renders a fragment of a page."""
        prefix = self._settings.path_prefix
        context |= {"dataflow_address": self._settings.dataflow, "prefix": prefix}
        return with_prefix(self._environment.get_template(template).render(context), prefix)

    def layout(self, *, path: str = "", choice: PageSelection | None = None) -> PageLayout:
        """Builds the frame of a page; with `path` and `choice` also links to its other ranges and policies."""
        return layout(self._state, self._settings, path=path, choice=choice)

    def page(
        self,
        request: Request,
        template: str,
        *,
        live_texts: Mapping[str, LiveText] | None = None,
        status: int = 200,
        **context: Any,
    ) -> HTMLResponse:
        """Renders a page, or the answer to a request for a fragment. Its `layout` is that without links by default."""
        flash = read_flash(request)
        theme = request.cookies.get(THEME_COOKIE, "system")
        viewer: Viewer | None = getattr(request.state, "viewer", None)
        run = self._name()

        def may(need: Permission, *, pool: str = "") -> bool:
            """True if the viewer has the permission on the shown run or one of its pools."""
            return viewer is not None and viewer.may(need, run=run, pool=pool)

        def role_on(pool: str = "") -> str:
            """Role of the viewer on the shown run or one of its pools."""
            return viewer.effective_role(Resource(run=run, pool=pool)).value if viewer is not None else ""

        text = self.fragment(
            template,
            request=request,
            live_texts=live_texts or {},
            viewer=viewer,
            may=may,
            role_on=role_on,
            may_operate=may(Permission.OPERATE),
            may_operate_some=viewer is not None and viewer.may_somewhere(Permission.OPERATE, run=run),
            theme=theme if theme in THEMES else "system",
            next_theme=THEMES[(THEMES.index(theme if theme in THEMES else "system") + 1) % len(THEMES)],
            flash=flash,
            status=status,
            top=header_view(self._state.report, self._fleet, alerts=self._alerts()),
            **{"layout": self.layout(), **context},
        )
        response = HTMLResponse(text, status)
        if flash is not None:
            flash.clear(response)
        return response

    def confirm(
        self, request: Request, *, page: str, title: str, sentence: str, button: str, back: str, tone: str = "bad"
    ) -> HTMLResponse:
        """Renders the question before an action, whose form is posted to the address of the request."""
        return self.page(
            request,
            "confirm.html",
            page=page,
            title=title,
            sentence=sentence,
            action=f"{request.url.path}{f'?{request.url.query}' if request.url.query else ''}",
            button=button,
            back=back,
            tone=tone,
        )


def rendered(template: str, **context: Any) -> str:
    """Renders a template that is no page: without a viewer, a run and static files."""
    return _environment().get_template(template).render(context)


def compile_templates() -> None:
    """Compiles every template, so that the first request does not wait for it."""
    environment = _environment()
    for name in environment.list_templates(extensions=("html",)):
        environment.get_template(name)


def template_files() -> list[Path]:
    """Templates of all features."""
    return list(WEB_FOLDER.glob("*/templates/*.html"))


@cache
def build_stamp() -> str:
    """Hash of the static files and templates; part of their URLs, so that browsers cache them indefinitely."""
    digest = hashlib.sha256()
    for path in sorted((*STATIC.rglob("*"), *template_files())):
        if path.is_file():
            digest.update(path.relative_to(WEB_FOLDER).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _with_inline_code(text: str) -> Markup:
    """Escaped text with backtick spans as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 (the text is escaped; only our tags are added)


def _feature_templates() -> dict[str, BaseLoader]:
    """Loaders by package: `pools/page.html` is `web/pools/templates/page.html`."""
    folders = (folder for folder in WEB_FOLDER.glob("*/templates") if folder != SHARED_TEMPLATES)
    return {folder.parent.name: FileSystemLoader(folder) for folder in folders}


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=ChoiceLoader([FileSystemLoader(SHARED_TEMPLATES), PrefixLoader(_feature_templates())]),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,  # otherwise every `include` checks the file on disk
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"sort_keys": True, "separators": (",", ":")}
    build, clock = build_stamp(), SystemClock()
    environment.globals |= {
        "build": build,
        "navigation": NAVIGATION,
        "themes": THEMES,
        "needed": Permission,
        "stages": [
            {"name": stage.value, "label": STAGE_LABELS[stage], "path": STAGE_PATHS[stage]} for stage in SHOWN_STAGES
        ],
        "static": lambda path: f"/static/{build}/{path}",
    }
    environment.tests["idle_session"] = is_idle
    environment.filters |= {
        "part": lambda text: quote(str(text), safe=""),
        "several": formats.several,
        "number": formats.count,
        "size": formats.size,
        "usd": formats.usd,
        "exact": formats.exact,
        "dollars": formats.dollars,
        "percent": formats.percent,
        "rate": formats.rate,
        "reward": formats.reward,
        "shortened": formats.shortened,
        "capitalized": capitalized,
        "utc": lambda at, seconds=False: f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M{':%S' if seconds else ''}}",
        "duration": formats.duration,
        "node_name": formats.node_name,
        "visible": visible,
        "may_scroll": may_scroll,
        "short_names": formats.with_short_names,
        "ticked": _with_inline_code,
        "plain_text": render,
        "summary": render_summary,
        "sentence": lambda record: capitalized(render(record)),
        "since": lambda at: formats.since(clock.wall() - at),
        "ahead": lambda at: formats.duration(max(0.1, at - clock.wall())),
    }
    return environment
