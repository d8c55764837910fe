"""REST API and page parts of agents' sessions."""

import pytest

from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.synthetic_run import AGENT_MEMBER
from tests.fakes.web import RunningWeb
from tests.web.page_elements import parsed
from tests.web.trajectories.test_trajectories import PAGE, recorded

pytestmark = pytest.mark.anyio

API = "/api/v1/runs/1"


async def test_the_api_returns_sessions_with_their_calls(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        (item, *_) = (await client.get(f"{API}/trajectories?call=answered&limit=3")).json()["items"]
        whole = await client.get(f"{API}/agent-sessions/{item['task']}")
        refused = (await client.get(f"{API}/trajectories?call=refused")).json()["items"]
        invalid = await client.get(f"{API}/trajectories?call=unknown")
        missing = await client.get(f"{API}/agent-sessions/train:48/9999")
        counts = (await client.get(f"{API}/rewards")).json()["calls"]

    session = whole.json()
    (call,), (trajectory,) = session["calls"], session["trajectories"]
    assert whole.headers["content-disposition"].startswith("attachment")
    assert (session["task"], session["flow"], session["node_name"]) == (item["task"], "train", "node-b")
    assert (call["number"], call["trajectory"], call["turn"]) == (1, item["ordinal"], 0)
    assert (call["outcome"], call["dialect"]) == ("answered", "chat")
    assert trajectory["call_outcomes"] == item["call_outcomes"] == {"answered": 1}
    assert "calls" not in item
    assert refused == []
    assert counts["answered"] > 1
    assert (invalid.status_code, missing.status_code) == (422, 404)


async def test_a_failed_session_has_its_calls_on_its_page_and_in_the_api(
    web: RunningWeb, fake: FakeControlPlane
) -> None:
    fake.synthetic_run.failing_member = AGENT_MEMBER
    async with web.logged_in() as client:
        await recorded(web, client)
        (item, *_) = (await client.get(f"{API}/trajectories?call=answered&limit=1")).json()["items"]
        session = (await client.get(f"{API}/agent-sessions/{item['task']}")).json()
        page = parsed(await client.get(f"{PAGE}/{item['ordinal']}?open_call=1"))
        of_group = parsed(await client.get(f"/runs/1/groups/{item['group']}")).rows()

    assert session["failure"] == {"boundary": "engine", "message": "out of memory"}
    assert session["trajectories"] == []
    assert [(call["number"], call["outcome"], call["turn"]) for call in session["calls"]] == [(1, "answered", None)]
    assert len(page.all(".call-body")) == 2
    assert page.has(".empty")
    assert not page.has("#episode-title"), "a tree of no trajectories says nothing"
    assert any("out of memory" in row[1] and "1 call" in " ".join(row) for row in of_group)


@pytest.mark.long
async def test_the_api_lists_live_sessions(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        everything = (await client.get("/api/v1/agent-sessions")).json()
        of_node = (await client.get("/api/v1/agent-sessions?node=n1&flow=train")).json()
        of_other = (await client.get("/api/v1/agent-sessions?flow=other")).json()
        node = (await client.get("/api/v1/nodes/n1")).json()

    assert [(item["node_name"], item["age_s"]) for item in everything["items"]] == [("node-b", 62.0), ("node-a", 61.0)]
    assert (everything["total"], of_node["total"]) == (2, 1)
    assert [item["node"] for item in of_node["items"]] == ["n1"]
    assert of_other["items"] == []
    assert node["sessions"][0]["task"] == of_node["items"][0]["task"]


async def test_a_call_is_opened_as_a_part_and_without_script(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        (item, *_) = (await client.get(f"{API}/trajectories?call=answered&limit=1")).json()["items"]
        address = f"{PAGE}/{item['ordinal']}"
        closed = parsed(await client.get(address))
        part = await client.get(f"{address}/calls/1")
        opened = parsed(await client.get(f"{address}?open_call=1"))
        missing = await client.get(f"{address}/calls/2")
        unknown = await client.get(f"{PAGE}/99999999/calls/1")
        invalid = await client.get(f"{address}?calls=unknown")
        outcomes = parsed(await client.get(f"{PAGE}?call=answered")).one("select[name=call]").all("option")

    assert closed.one("#call-1")["hx-get"].endswith(f"{item['ordinal']}/calls/1")
    assert not closed.has(".call-body")
    assert closed.one("a.turn-call")["href"] == "#call-1"
    assert "<html" not in part.text
    assert "&#34;messages&#34;: [" in part.text
    assert len(opened.all(".call-body")) == 2
    assert "open" in opened.one("#call-1").attributes
    assert (missing.status_code, unknown.status_code, invalid.status_code) == (404, 404, 200)
    assert [option.attributes.get("value") for option in outcomes if "selected" in option.attributes] == ["answered"]


@pytest.mark.long
async def test_live_sessions_are_on_the_pages_of_dataflow_and_of_their_node(
    web: RunningWeb, fake: FakeControlPlane
) -> None:
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        pages = [
            parsed(await client.get(path)) for path in ("/dataflow", "/dataflow/live", "/nodes/n0", "/nodes/n0/now")
        ]
    assert all(page.has("#live-sessions") for page in pages)
    tables = [page.one("#live-sessions-table") for page in pages]
    assert [len(table.all("th[scope=row]")) for table in tables] == [2, 2, 1, 1]
