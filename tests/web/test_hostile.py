"""Hostile strings stay text in every place that a run or a user can fill."""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from astraflow.contract.ids import Version
from astraflow.contract.plugins import PlannedPlugins, PluginSlot
from astraflow.contract.records import problem_record
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.synthetic_run import SyntheticRun, hostile_record
from tests.web.all_pages import ServedSite, served_site
from tests.web.launches.test_launching import until
from tests.web.live.test_live import next_message, socket

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("ready_cli")]

HOSTILE = "<img src=x onerror=alert(1)>\"'{{7*7}}</script><script>alert(2)</script>"
TELLS = "&lt;img src=x onerror=alert(1)&gt;"


@pytest.mark.timeout(240)
async def test_hostile_strings_stay_text_in_pages_parts_files_and_the_live_feed(
    fake: FakeControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    planned = PlannedPlugins(
        slot=PluginSlot.FILTERS,
        specs=({"kind": HOSTILE, "word": HOSTILE},),
        actor=HOSTILE,
        reason=HOSTILE,
        version=Version(5),
    )
    fake.synthetic_run = _hostile_world(planned)
    fake.synthetic_run.act(150, hostile_record(HOSTILE))
    async with served_site(tmp_path, fake, text=HOSTILE) as walked:
        walked.fleet.problems = (problem_record("provider_unreadable", "", provider="p", error=HOSTILE),)
        walked.admin.headers["user-agent"] = HOSTILE
        answers = await walked.answers()
        for address in SHOWN:  # problems come with the next status, and a busy machine may have lost a connection
            shown = partial(_showing, walked.admin, address)
            answers[address] = await until(shown, what=f"the hostile text at {address}")
        for name, path, params in (
            ("audit asked", "/audit", {"text": HOSTILE, "actor": HOSTILE}),
            ("decisions asked", "/decisions", {"text": HOSTILE, "pool": HOSTILE}),
            ("launch asked", "/runs/new", {"recipe": HOSTILE, "limit_s": HOSTILE}),
        ):
            answers[name] = await walked.admin.get(path, params=params)
        for path in ("/runs/new/preview", "/runs/new/preflight"):
            form = {"recipe": "smoke", "set.stop.steps": HOSTILE, "reason": HOSTILE}
            answers[f"POST {path}"] = await walked.admin.post(path, data=form)
        frames = await _frames(walked)
    markup = {
        address: response.text
        for address, response in answers.items()
        if "html" in response.headers.get("content-type", "")
    }
    files = {address: response for address, response in answers.items() if address not in markup and response.content}
    for frame in frames:
        markup |= {f"{FEED}{name}": html for name, html in frame.get("html", {}).items()}
    for address, text in markup.items():
        assert not re.search(r"<img|alert\(2\)</script>", text), address
        assert not re.search(r'(?:href|src|action)="(?!/(?!/)|\?|#|https?://|")', text), f"{address} leads elsewhere"
        assert "49" not in text.partition("onerror")[2][:20], address
    escaped_at = {address for address, text in markup.items() if TELLS in text}
    assert escaped_at >= SHOWN
    assert {f"{FEED}{name}" for name in ("events", "problems")} <= escaped_at
    assert any(address.startswith("/pools/eu/plans/") for address in escaped_at)
    assert any(address.startswith("/decisions/") for address in escaped_at)
    _are_text(files)


FEED = "live feed, "
"""Prefix of the name of a region that the live feed sends."""

JSON = ("application/json", "application/problem+json")

CALL = "/runs/1/trajectories/385/calls/1"
PAGES = {"/", "/nodes", "/dataflow", "/weights", "/decisions", "/pools/eu", "/audit", "/settings"}
PARTS = {CALL, "/nodes/rows", "/dataflow/live", "/weights/tables", "/pools/table", "/pools/eu/now"}
SHOWN = PAGES | PARTS
"""Pages, and page parts that open pages request, that show the text."""


async def _showing(admin: httpx.AsyncClient, address: str) -> httpx.Response | None:
    answer = await admin.get(address)
    return answer if TELLS in answer.text else None


async def _frames(walked: ServedSite) -> list[dict[str, Any]]:
    """Returns the first three frames of the live feed, with the snapshot and the rows of the node table."""
    cookie = "; ".join(f"{name}={value}" for name, value in walked.admin.cookies.items())
    async with socket(walked.web, after=0, cookie=cookie, rows="") as feed:
        frames = [await next_message(feed) for _ in range(2)]
        await walked.fake.advance()
        return [*frames, await next_message(feed)]


def _are_text(files: Mapping[str, httpx.Response]) -> None:
    """Asserts that browsers render no file as a page, and that parsed files contain the hostile text unchanged."""
    words: set[str] = set()
    for address, file in files.items():
        kind = file.headers["content-type"].partition(";")[0]
        assert file.headers["x-content-type-options"] == "nosniff", address
        assert kind in (*JSON, "text/csv", "application/x-ndjson"), (address, kind)
        if kind == "text/csv":
            assert file.headers["content-disposition"].startswith("attachment"), address
            cells = {cell for row in csv.reader(io.StringIO(file.text)) for cell in row}
        else:
            lines = file.text.splitlines() if kind == "application/x-ndjson" else [file.text]
            cells = {word for line in lines for word in _words(json.loads(line))}
        if HOSTILE in cells:
            words.add(address)
    assert {"/nodes.csv", "/events.csv", "/api/v1/report", "/audit.csv", "/audit.ndjson"} <= words


def _words(value: Any) -> Iterator[str]:
    """Yields every string in a JSON value."""
    match value:
        case str():
            yield value
        case list():
            for inner_value in value:
                yield from _words(inner_value)
        case dict():
            for inner_value in (*value, *value.values()):
                yield from _words(inner_value)


def _hostile_world(planned: PlannedPlugins) -> SyntheticRun:
    class Hostile(SyntheticRun):
        def report(self, sequence: int, *, is_history: bool = False):  # type: ignore[no-untyped-def] # as in SyntheticRun
            report = super().report(sequence, is_history=is_history)
            flow = report.flows[0]
            dropped = {HOSTILE: 7, **flow.dropped}
            flows = (replace(flow, dropped=dropped, issued=flow.issued + 7, filters=planned.specs, planned=(planned,)),)
            return replace(report, flows=flows)

    return Hostile(
        nodes=(HOSTILE, "b"),
        simulated=(HOSTILE,),
        node_errors={"b": (HOSTILE,)},
        problems=(problem_record(HOSTILE, HOSTILE, outcome=HOSTILE),),
        prompt=HOSTILE,
    )
