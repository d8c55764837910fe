"""Losing nodes on somebody's word: who may, what it does, and what is seen of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.reports import Report
from tests import make
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.fleet import running_fleet
from tests.fakes.web import flash_of, running_web, shown_secret
from tests.fakes.world import World

pytestmark = pytest.mark.anyio

SENTENCE = "eu: 3 to 4 nodes, because capacity is 0.70 of the demand."


class Advised(World):
    """The rule has something to say about the pool."""

    def report(self, sequence: int, **more: Any) -> Report:
        found = super().report(sequence, **more)
        return replace(found, advice=(make.pool_advice("eu", target=4, sentence=SENTENCE),))


async def test_an_admin_has_a_share_of_the_nodes_fail_and_reads_what_the_rule_makes_of_it(tmp_path: Path) -> None:
    fake = FakeControlPlane(Advised(), sequence=150)
    async with (
        fake.serving() as dataflow,
        running_fleet(tmp_path / "fleet", nodes=4) as fleet,
        running_web(tmp_path, dataflow, fleet=fleet.address) as web,
        web.logged_in() as admin,
        web.in_role(admin, "operator", name="otto") as otto,
    ):
        await web.until_live(admin, sequence=150)
        assert "Fault: lose 30 %" in (await admin.get("/pools/eu")).text
        assert "/pools/eu/lose?back=overview" in (await admin.get("/")).text
        for path in ("/pools/eu", "/"):
            assert "Fault:" not in (await otto.get(path)).text
        asked = (await admin.get("/pools/eu/lose")).text
        assert "simulated fault" in asked
        form = {"percent": "30", "reason": "a drill", "key": "k1", "back": "overview"}
        done = await admin.post("/pools/eu/lose", data=form)
        assert done.headers["location"] == "/"
        assert "simulated fault: 1 of 4 nodes end without notice" in await flash_of(admin, done)
        again = await admin.post("/pools/eu/lose", data=form)
        assert "1 of 4 nodes" in await flash_of(admin, again)
        await fleet.pass_time(5)
        assert fleet.parts.states()["ready"] == 3, "sent twice, lost once"
        assert SENTENCE.removeprefix("eu: ") in (await admin.get("/pools/eu")).text
        token = shown_secret(await admin.post("/settings/tokens", data={"name": "t", "scope": "admin", "days": "1"}))
        headers = {"authorization": f"Bearer {token}", "idempotency-key": "k2"}
        lost = await admin.post("/api/v1/pools/eu/lose", headers=headers, json={"share": 1.0, "reason": "all of it"})
        assert len(lost.json()["lost"]) == 3
        assert lost.json()["decision"]["kind"] == "fault"
