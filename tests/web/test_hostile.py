"""Hostile strings, wherever a run or a person can put them, stay text on every page."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.contract.ids import Version
from astraflow.contract.plugins import PlannedPlugins, Seam
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.world import World
from tests.web.walk import house

pytestmark = pytest.mark.anyio

HOSTILE = "<img src=x onerror=alert(1)>\"'{{7*7}}</script><script>alert(2)</script>"
TELLS = "&lt;img src=x onerror=alert(1)&gt;"


@pytest.mark.timeout(240)
async def test_hostile_strings_stay_text_on_every_page(
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
        pages = await walked.pages()
        asked = await walked.admin.get("/audit", params={"text": HOSTILE, "actor": HOSTILE})
        decisions = await walked.admin.get("/decisions", params={"text": HOSTILE, "pool": HOSTILE})
        launch = await walked.admin.get("/runs/new", params={"recipe": HOSTILE, "limit_s": HOSTILE})
        pages |= {"audit asked": asked.text, "decisions asked": decisions.text, "launch asked": launch.text}
    for address, page in pages.items():
        assert not re.search(r"<img|alert\(2\)</script>", page), address
        assert "49" not in page.partition("onerror")[2][:20], address
    told = {address for address, page in pages.items() if TELLS in page}
    assert {"/", "/nodes", "/dataflow", "/weights", "/decisions", "/pools/eu", "/audit", "/settings"} <= told
    assert any(address.startswith("/pools/eu/plans/") for address in told)
    assert any(address.startswith("/decisions/") for address in told)


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
