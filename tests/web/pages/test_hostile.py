"""Hostile strings, wherever a run or a person can put them, stay text."""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from astraflow.contract.ids import Version
from astraflow.contract.plugins import PlannedPlugins, Seam
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.world import World
from tests.web.feed.test_live import socket
from tests.web.feed.test_live import told as heard
from tests.web.walk import House, house

pytestmark = pytest.mark.anyio

HOSTILE = "<img src=x onerror=alert(1)>\"'{{7*7}}</script><script>alert(2)</script>"
TELLS = "&lt;img src=x onerror=alert(1)&gt;"


@pytest.mark.timeout(240)
async def test_hostile_strings_stay_text_on_every_page_in_every_part_and_file_and_in_the_live_feed(
    fake: FakeControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    planned = PlannedPlugins(
        seam=Seam.FILTERS,
        specs=({"kind": HOSTILE, "word": HOSTILE},),
        actor=HOSTILE,
        reason=HOSTILE,
        version=Version(5),
    )
    fake.world = _hostile_world(planned)
    fake.world.act(150, "node_lost", HOSTILE, HOSTILE)
    async with house(tmp_path, fake, text=HOSTILE) as walked:
        walked.fleet.troubles = (HOSTILE,)
        walked.admin.headers["user-agent"] = HOSTILE
        answers = await walked.answers()
        for name, path, params in (
            ("audit asked", "/audit", {"text": HOSTILE, "actor": HOSTILE}),
            ("decisions asked", "/decisions", {"text": HOSTILE, "pool": HOSTILE}),
            ("launch asked", "/runs/new", {"recipe": HOSTILE, "limit_s": HOSTILE}),
        ):
            answers[name] = await walked.admin.get(path, params=params)
        for path in ("/runs/new/preview", "/runs/new/rehearsal"):
            asked = {"recipe": "smoke", "set.stop.steps": HOSTILE, "reason": HOSTILE}
            answers[f"POST {path}"] = await walked.admin.post(path, data=asked)
        frames = await _frames(walked)
    markup = {address: one.text for address, one in answers.items() if "html" in one.headers.get("content-type", "")}
    files = {address: one for address, one in answers.items() if address not in markup and one.content}
    for frame in frames:
        markup |= {f"live feed, {name}": html for name, html in frame.get("html", {}).items()}
    for address, text in markup.items():
        assert not re.search(r"<img|alert\(2\)</script>", text), address
        assert not re.search(r'(?:href|src|action)="(?!/(?!/)|\?|#|https?://|")', text), f"{address} leads elsewhere"
        assert "49" not in text.partition("onerror")[2][:20], address
    told = {address for address, text in markup.items() if TELLS in text}
    assert {"/", "/nodes", "/dataflow", "/weights", "/decisions", "/pools/eu", "/audit", "/settings"} <= told
    missing = PARTS - told
    assert not missing, "they were not told it"
    assert {"live feed, events", "live feed, troubles"} <= told
    assert any(address.startswith("/pools/eu/plans/") for address in told)
    assert any(address.startswith("/decisions/") for address in told)
    _are_text(files)


JSON = ("application/json", "application/problem+json")

PARTS = {"/nodes/rows", "/dataflow/live", "/weights/tables", "/pools/table", "/pools/eu/now"}
"""Some of what pages take from the server while they are open."""


async def _frames(walked: House) -> list[dict[str, Any]]:
    """Everything, as the live feed says it first, and then the rows of the table of nodes."""
    cookie = "; ".join(f"{name}={value}" for name, value in walked.admin.cookies.items())
    async with socket(walked.web, after=0, cookie=cookie, rows="") as feed:
        frames = [await heard(feed) for _ in range(2)]
        await walked.fake.advance()
        return [*frames, await heard(feed)]


def _are_text(files: Mapping[str, httpx.Response]) -> None:
    """No browser takes a file for a page, and whoever reads it as what it is gets the very words."""
    words: set[str] = set()
    for address, file in files.items():
        kind = file.headers["content-type"].partition(";")[0]
        assert file.headers["x-content-type-options"] == "nosniff", address
        assert kind in (*JSON, "text/csv", "application/x-ndjson"), (address, kind)
        if kind == "text/csv":
            assert file.headers["content-disposition"].startswith("attachment"), address
            found = {cell for row in csv.reader(io.StringIO(file.text)) for cell in row}
        else:
            lines = file.text.splitlines() if kind == "application/x-ndjson" else [file.text]
            found = {word for line in lines for word in _words(json.loads(line))}
        if HOSTILE in found:
            words.add(address)
    assert {"/nodes.csv", "/events.csv", "/api/v1/report", "/audit.csv", "/audit.ndjson"} <= words


def _words(value: Any) -> Iterator[str]:
    """Every text in what JSON can say."""
    match value:
        case str():
            yield value
        case list():
            for one in value:
                yield from _words(one)
        case dict():
            for one in (*value, *value.values()):
                yield from _words(one)


def _hostile_world(planned: PlannedPlugins) -> World:
    class Hostile(World):
        def report(self, sequence: int, *, is_history: bool = False):  # type: ignore[no-untyped-def] # as World's
            found = super().report(sequence, is_history=is_history)
            flow = found.flows[0]
            dropped = {HOSTILE: 7, **flow.dropped}
            flows = (replace(flow, dropped=dropped, issued=flow.issued + 7, filters=planned.specs, planned=(planned,)),)
            return replace(found, flows=flows)

    return Hostile(
        nodes=(HOSTILE, "b"),
        simulated=(HOSTILE,),
        node_errors={"b": (HOSTILE,)},
        troubles=(HOSTILE,),
        prompt=HOSTILE,
    )
