"""Fault injection: permitted roles, effect on the nodes, and the result on the page."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.records import render
from astraflow.contract.reports.report import Report
from tests import make
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.fleet import running_fleet
from tests.fakes.synthetic_run import SyntheticRun
from tests.fakes.web import running_web, shown_secret
from tests.web.page_elements import notice_after, parsed
from web.state.annotations import capitalized

pytestmark = pytest.mark.anyio

ADVICE = make.pool_advice("eu", target=4, before=3)


class RunWithRecommendation(SyntheticRun):
    """Run whose reports have a recommendation for the pool."""

    def report(self, sequence: int, **more: Any) -> Report:
        report = super().report(sequence, **more)
        return replace(report, recommendations=(ADVICE,))


async def test_an_admin_injects_a_fault_once_and_sees_the_recommendation_of_the_rule(tmp_path: Path) -> None:
    fake = FakeControlPlane(RunWithRecommendation(), sequence=150)
    async with (
        fake.serving() as dataflow,
        running_fleet(tmp_path / "fleet", nodes=4) as fleet,
        running_web(tmp_path, dataflow, fleet=fleet.address) as web,
        web.logged_in() as admin,
        web.in_role(admin, "operator", name="otto") as otto,
    ):
        await web.until_live(admin, sequence=150)
        assert "/pools/eu/inject-fault" in parsed(await admin.get("/pools/eu")).links()
        assert "/pools/eu/inject-fault?back=overview" in parsed(await admin.get("/")).links()
        for path in ("/pools/eu", "/"):
            assert not any("inject-fault" in link for link in parsed(await otto.get(path)).links())
        assert parsed(await admin.get("/pools/eu/inject-fault")).one("#confirm").has(".chip.simulated")
        form = {"percent": "30", "reason": "a drill", "key": "k1", "back": "overview"}
        done = await admin.post("/pools/eu/inject-fault", data=form)
        assert done.headers["location"] == "/"
        notice = await notice_after(admin, done)
        assert (notice.tone, notice.numbers[:2]) == ("good", [1, 4])
        again = await notice_after(admin, await admin.post("/pools/eu/inject-fault", data=form))
        assert (again.tone, again.numbers[:2]) == ("good", [1, 4])
        await fleet.pass_time(5)
        assert fleet.parts.states()["ready"] == 3, "the repeated request injects no second fault"
        pool = parsed(await admin.get("/pools/eu"))
        assert pool.one("p[data-live-text=pool/eu/recommendation]").text == capitalized(render(ADVICE.change))
        token = shown_secret(await admin.post("/settings/tokens", data={"name": "t", "scope": "admin", "days": "1"}))
        headers = {"authorization": f"Bearer {token}", "idempotency-key": "k2"}
        lost = await admin.post(
            "/api/v1/pools/eu/inject-fault", headers=headers, json={"share": 1.0, "reason": "all of it"}
        )
        assert len(lost.json()["lost"]) == 3
        assert lost.json()["decision"]["kind"] == "fault"
