"""Timeline of one episode on the page of its trajectory, and the same spans by REST."""

from dataclasses import replace

import pytest

from astraflow.contract.timelines import Hop
from tests.fakes.synthetic_run import SyntheticRun
from tests.fakes.web import RunningWeb
from tests.web.page_elements import parsed
from tests.web.trajectories.test_trajectories import PAGE, link_to, recorded
from web.trajectories.hops import MIN_WIDTH, hop_rows

pytestmark = pytest.mark.anyio

SPANS = ["Lease", "Episode", "Generation", "Tool", "Generation", "Reward", "Push", "Admission of its group"]


async def test_the_page_and_the_endpoint_show_the_spans_from_lease_to_step(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        listed = (await client.get(f"{PAGE}?outcome=trained")).text
        address = link_to(listed, r"/runs/1/trajectories/\d+[^\"]*").partition("?")[0]
        page = parsed((await client.get(address)).text)
        answer = (await client.get(f"/api/v1{address}/timeline")).json()
        missing = await client.get(f"/api/v1{PAGE}/999999999/timeline")
    rows = page.one("#timeline").all("rect")
    assert len(rows) == len(answer["items"]) == len(SPANS) + 2
    assert [item["name"] for item in answer["items"]][-3:] == ["rl.admit", "rl.batch", "rl.step"]
    assert answer["items"][3]["detail"] == "tool calculator"
    assert page.one("#timeline").one(".table-scroll")["tabindex"] == "0"
    assert missing.status_code == 404


def test_bars_cover_the_whole_time_and_short_spans_are_visible() -> None:
    sample = SyntheticRun().make_samples(1)[0]
    rows = hop_rows(sample)
    assert [row.label for row in rows][: len(SPANS)] == SPANS
    assert rows[0].x == 0
    assert max(row.x + row.width for row in rows) == pytest.approx(100, abs=0.01)
    assert min(row.width for row in rows) == MIN_WIDTH
    assert {row.label for row in rows if row.is_inside} == {"Generation", "Tool", "Reward"}


def test_a_trajectory_without_spans_has_no_timeline_and_a_plugin_span_has_its_name() -> None:
    sample = SyntheticRun().make_samples(1)[0]
    hop = Hop(name="mine.search", began_at=1.0, duration_s=0.0)
    assert hop_rows(replace(sample, hops=())) == ()
    assert hop_rows(replace(sample, hops=(hop,)))[0].label == "mine.search"
