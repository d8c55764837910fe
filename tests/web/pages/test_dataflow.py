"""The path of groups: what the diagram says, how it is drawn, and changing what filters it."""

import csv
import io
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId, Version
from astraflow.contract.plugins import PlannedPlugins, PluginChange, Seam
from astraflow.contract.reports import Report
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.web import RunningWeb, flash_of, shown_secret
from tests.fakes.world import World
from web.acts.plugin_form import differs, wanted_filters
from web.feed.arrows import Graph, RecentCounts, graph_of
from web.present.dataflow import dataflow_view, finding
from web.present.sankey import WIDTH, Place, Stream, laid_out
from web.present.stream_cards import pressure

HOSTILE = "<img src=x onerror=alert(1)>"


def graph(report: Report, earlier: Report | None = None) -> Graph:
    recent = RecentCounts()
    for one in (earlier, report):
        if one is not None:
            recent.see(one)
    return graph_of(report.flows, report.streams, recent.earliest, report.at)


def test_every_group_that_comes_to_a_stage_leaves_it_or_is_there() -> None:
    found = graph(World(policies=("solver",)).report(150))
    for stage in found.stages:
        coming = found.into(stage.key)
        going = sum(arrow.groups for arrow in found.arrows if arrow.source == stage.key)
        if stage.kind in ("tasks", "trajectories", "filters", "buffer", "batch"):
            assert coming == going + (stage.held or 0), stage.key


def test_rates_are_over_the_last_minute_and_unknown_with_one_report() -> None:
    world, recent = World(), RecentCounts()
    for second in range(1, 151):
        recent.see(world.report(second))
    report = world.report(150)
    measured = graph_of(report.flows, report.streams, recent.earliest, report.at)
    assert measured.span_s == 60.0
    trained = next(arrow for arrow in measured.arrows if arrow.target == "policy/solver/trainer")
    before = world.report(90).streams[0].trained
    assert trained.lately == report.streams[0].trained - before
    assert trained.per_s == pytest.approx(trained.lately / 60)
    assert all(arrow.per_s is None for arrow in graph(report).arrows)


def test_the_title_states_what_most_groups_are_lost_to() -> None:
    report = World().report(150)
    assert re.fullmatch(r"20.% of groups are filtered as uninformative", finding(graph(report), "run"))
    flow = report.flows[0]
    kept = replace(report, flows=(replace(flow, dropped={}, issued=flow.open + flow.admitted),))
    kept = replace(kept, streams=(replace(report.streams[0], dropped={}),))
    assert finding(graph(kept), "run") == "Nearly every group reaches its trainer"
    assert finding(graph(World().report(1)), "minute") == "No group has finished in the last minute"


def test_flows_of_a_run_with_several_meet_before_they_are_routed_to_policies() -> None:
    report = World(policies=("solver", "judge")).report(150)
    other = replace(report.flows[0], id=FlowId("other"))
    found = graph(replace(report, flows=(*report.flows, other)))
    into = {(arrow.source, arrow.target) for arrow in found.arrows}
    assert {("train/filters", "routes"), ("other/filters", "routes")} <= into
    assert {("routes", "policy/solver/buffer"), ("routes", "policy/judge/buffer")} <= into
    assert ("train/filters", "policy/solver/buffer") in {(a.source, a.target) for a in graph(report).arrows}


def test_bands_are_as_wide_as_what_goes_along_and_boxes_of_a_column_do_not_overlap() -> None:
    places = [Place(key=key, column=column) for key, column in (("a", 0), ("b", 1), ("c", 1))]
    drawn = laid_out(places, [Stream(source="a", target="b", value=30), Stream(source="a", target="c", value=10)])
    assert drawn.boxes["b"].height == pytest.approx(3 * drawn.boxes["c"].height)
    assert drawn.boxes["a"].height == pytest.approx(4 * drawn.boxes["c"].height)
    assert drawn.boxes["c"].y > drawn.boxes["b"].y + drawn.boxes["b"].height
    assert max(box.x for box in drawn.boxes.values()) < WIDTH
    assert laid_out([], []).height > 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "None: the staleness gate lets"),
        ({"issue_room": 0}, "The staleness gate is closed: what is out already fills the next 3 versions"),
        ({"issue_room": 0, "is_waiting": True, "buffered": 3}, "closed although the trainer waits"),
        ({"is_waiting": True, "buffered": 3}, "the trainer waits for rollouts. The buffer has 3 of the 32 groups"),
    ],
)
def test_back_pressure_is_said_in_words(changes: dict[str, Any], words: str) -> None:
    report = World().report(150)
    stream = replace(report.streams[0], **{"issue_room": 16, **changes})
    assert words in pressure(report, stream)[0]


def test_a_paused_flow_and_full_memory_hold_everything_back() -> None:
    report = World(paused={"train"}).report(150)
    assert pressure(report, report.streams[0])[0].startswith("Nothing is issued: train is paused")
    full = replace(World().report(150), held_bytes=2_000_000, memory_bytes=1_000_000)
    assert "results in memory have reached their bound" in pressure(full, full.streams[0])[0]


def test_what_is_planned_counts_as_what_is_to_come() -> None:
    informative, length = {"kind": "informative"}, {"kind": "length"}
    planned = [PlannedPlugins(seam=Seam.FILTERS, specs=(length,), actor="bob", reason="r", version=Version(5))]
    assert not differs(Seam.FILTERS, [informative], [informative], [])
    assert not differs(Seam.FILTERS, [length], [informative], planned)
    assert differs(Seam.FILTERS, [informative], [informative], planned), "asking for what is in force takes it back"


def test_a_form_of_filters_takes_those_that_are_on_in_order() -> None:
    form = {
        "filters_on": ["0", "2"],
        "filters_kind": ["informative", "length", "replay"],
        "filters_options": ["", "{}", '{"ratio": 0.3}'],
    }
    assert wanted_filters(form) == ({"kind": "informative"}, {"kind": "replay", "ratio": 0.3})
    for wrong in ("{", "[1]"):
        with pytest.raises(InvalidInput, match="the options of informative are"):
            wanted_filters({"filters_on": ["0"], "filters_kind": ["informative"], "filters_options": [wrong]})
    with pytest.raises(InvalidInput, match="needs a kind"):
        wanted_filters({"filters_on": ["0"], "filters_kind": [" "], "filters_options": [""]})


def test_drops_lead_to_their_trajectories() -> None:
    view = dataflow_view(World().report(150), None, over="minute", run_id=7)
    assert view.over == "run", "there is no minute yet"
    informative = next(stage for stage in view.stages if stage.title == "informative")
    assert informative.href == "/runs/7?fate=informative#samples"


@pytest.mark.anyio
async def test_the_page_says_its_finding_draws_it_and_has_it_as_a_table_and_as_files(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        page = (await client.get("/dataflow?over=minute")).text
        part = (await client.get("/dataflow/live?over=minute")).text
        sheet = list(csv.DictReader(io.StringIO((await client.get("/dataflow.csv")).text)))
        rows = json.loads((await client.get("/dataflow.json")).text)
    assert 'href="/dataflow" data-key="g d" aria-current="page"' in page
    assert "of groups are filtered as uninformative in the last minute" in page
    assert page.count('class="band"') == len(sheet) == len(rows) == 10
    assert "<path" in part
    assert "<html" not in part
    assert {row["reason"] for row in rows} >= {"all members scored alike: nothing to learn"}
    assert rows[0]["from"] == "Prompts (train)"
    assert rows[0]["per_s"] > 0


@pytest.mark.anyio
async def test_filters_are_changed_with_a_reason_and_what_is_planned_is_shown(
    web: RunningWeb, fake: FakeControlPlane
) -> None:
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        form = (await client.get("/flows/train/plugins")).text
        assert 'name="filters_kind" list="kinds-filters" value="informative"' in form
        same = {
            "selector_kind": "greso",
            "selector_options": '{"start": 0.5}',
            "filters_kind": ["informative", "length", ""],
            "filters_options": ["", '{"max_share": 0.5}', ""],
            "reason": "most are solved",
        }
        nothing = await client.post("/flows/train/plugins", data={**same, "filters_on": ["0", "1"]})
        assert "already" in await flash_of(client, nothing)
        assert fake.changes == []
        done = await client.post("/flows/train/plugins", data={**same, "filters_on": ["0"]})
        assert done.headers["location"] == "/dataflow"
        assert fake.changes == [
            PluginChange(
                flow=FlowId("train"), filters=({"kind": "informative"},), actor="admin", reason="most are solved"
            )
        ]
        wrong = await client.post("/policies/solver/sampler", data={"sampler_kind": "nope", "sampler_options": ""})
        assert "no kind 'nope'; known:" in await flash_of(client, wrong)
        fake.world.planned = (
            PlannedPlugins(
                seam=Seam.FILTERS, specs=({"kind": "length"},), actor=HOSTILE, reason=HOSTILE, version=Version(5)
            ),
        )
        await fake.advance()
        await web.until_live(client, sequence=151)
        page = (await client.get("/dataflow")).text
        assert "<code>length</code> takes over after v" in page
        assert HOSTILE not in page
        assert (await client.get("/flows/nope/plugins")).status_code == 404


@pytest.mark.anyio
async def test_pausing_from_here_comes_back_here_and_viewers_are_told_who_may(
    web: RunningWeb, fake: FakeControlPlane
) -> None:
    async with web.logged_in() as admin, web.in_role(admin, "viewer") as viewer:
        await web.until_live(admin, sequence=150)
        asked = (await admin.get("/flows/train/pause?back=dataflow")).text
        assert 'action="/flows/train/pause?back=dataflow"' in asked
        paused = await admin.post("/flows/train/pause?back=dataflow")
        assert paused.headers["location"] == "/dataflow"
        page = (await viewer.get("/dataflow")).text
        assert "needs role operator; you are viewer" in page
        assert "/flows/train/pause" not in page


@pytest.mark.anyio
async def test_the_api_tells_the_path_and_changes_it_once_for_each_key(web: RunningWeb, fake: FakeControlPlane) -> None:
    async with web.logged_in() as admin:
        await web.until_live(admin, sequence=150)
        token = shown_secret(await admin.post("/settings/tokens", data={"name": "t", "scope": "agent", "days": "1"}))
        headers = {"authorization": f"Bearer {token}", "idempotency-key": "k1"}
        found = (await admin.get("/api/v1/flows")).json()
        assert found["flows"][0]["filters"] == [{"kind": "informative"}, {"kind": "length", "max_share": 0.5}]
        assert found["streams"][0]["back_pressure"]
        assert found["arrows"][0]["groups"] == found["flows"][0]["issued"]
        for _ in range(2):
            answer = await admin.post("/api/v1/flows/train/pause", headers=headers, json={"reason": "r"})
            assert answer.json() == {"message": "flow train is paused"}
        assert [action for action in fake.actions if action[0] == "paused"] == [("paused", "train", "admin")]
        other = await admin.post("/api/v1/flows/train/resume", headers=headers, json={"reason": "r"})
        assert other.status_code == 409
        wrong = await admin.post(
            "/api/v1/policies/solver/sampler",
            headers={**headers, "idempotency-key": "k2"},
            json={"sampler": {"kind": "nope"}, "reason": "r"},
        )
        assert (wrong.status_code, "known:" in wrong.json()["detail"]) == (409, True)
