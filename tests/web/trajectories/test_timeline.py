"""Timeline of one episode on the page of its trajectory, and the same spans by REST."""

import asyncio
from dataclasses import replace

import httpx
import pytest

from astraflow.contract.rollouts.timelines import Hop
from tests.fakes.synthetic_run import SyntheticRun
from tests.fakes.web import RunningWeb
from tests.web.page_elements import parsed
from tests.web.trajectories.test_trajectories import PAGE, link_to, recorded
from web.trajectories.hops import MIN_WIDTH, hop_rows

pytestmark = pytest.mark.anyio

SPANS = ["Lease", "Episode", "Generation", "Tool", "Generation", "Reward", "Push", "Admission of its group"]


async def first_trajectory(client: httpx.AsyncClient) -> str:
    """Returns the address of a listed trajectory; reports of a run reach its archive after the run is recorded."""
    for _ in range(200):
        listed = (await client.get(f"{PAGE}?max_reward=0&ending=whole")).text
        if "/runs/1/trajectories/" in listed:
            return link_to(listed, r"/runs/1/trajectories/\d+[^\"]*")
        await asyncio.sleep(0.05)
    raise AssertionError("no trajectory is listed")


async def test_the_page_and_the_endpoint_show_the_spans_from_lease_to_step(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        address = (await first_trajectory(client)).partition("?")[0]
        page = parsed((await client.get(address)).text)
        answer = (await client.get(f"/api/v1{address}/timeline")).json()
        missing = await client.get(f"/api/v1{PAGE}/999999999/timeline")
    rows = page.one("#timeline").all("rect")
    names = [item["name"] for item in answer["items"]]
    assert len(rows) == len(names) >= len(SPANS)
    assert (names[0], names[len(SPANS) - 1]) == ("rl.lease", "rl.admit")
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
