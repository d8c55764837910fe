"""The dataflow page: content and drawing of the diagram, and changes to filters."""

import csv
import io
import json
from dataclasses import replace
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId, Version
from astraflow.contract.plugins import PlannedPlugins, PluginChange, PluginSlot
from astraflow.contract.reports.report import Pace, Report
from tests import make
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.synthetic_run import SyntheticRun
from tests.fakes.web import RunningWeb, shown_secret
from tests.web.page_elements import notice_after, parsed
from web.dataflow.plugin_form import changes_plugins, requested_filters
from web.dataflow.plugins import plugin_rows
from web.dataflow.sankey import WIDTH, StageLink, StagePosition, diagram_layout
from web.dataflow.stream_cards import pressure
from web.dataflow.views import dataflow_view, insight, owner_paths
from web.state.dataflow_graph import DataflowGraph, RecentCounts, build_graph

HOSTILE = "<img src=x onerror=alert(1)>"


def graph(report: Report, earlier: Report | None = None) -> DataflowGraph:
    recent = RecentCounts()
    for report_ in (earlier, report):
        if report_ is not None:
            recent.add(report_)
    return build_graph(report.flows, report.streams, recent.earliest, report.at)


def test_each_stage_has_as_many_groups_in_as_out_and_inside() -> None:
    stage_graph = graph(SyntheticRun(policies=("solver",)).report(150))
    for stage in stage_graph.stages:
        coming = stage_graph.groups_into(stage.key)
        going = sum(arrow.groups for arrow in stage_graph.edges if arrow.source == stage.key)
        if stage.kind in ("tasks", "trajectories", "filters", "buffer", "batch"):
            assert coming == going + (stage.current_groups or 0), stage.key


def test_rates_are_over_the_last_minute_and_unknown_with_one_report() -> None:
    synthetic_run, recent = SyntheticRun(), RecentCounts()
    for second in range(1, 151):
        recent.add(synthetic_run.report(second))
    report = synthetic_run.report(150)
    measured = build_graph(report.flows, report.streams, recent.earliest, report.at)
    assert measured.span_s == 60.0
    trained = next(arrow for arrow in measured.edges if arrow.target == "policy/solver/trainer")
    before = synthetic_run.report(90).streams[0].groups.trained
    assert trained.recent_groups == report.streams[0].groups.trained - before
    assert trained.per_s == pytest.approx(trained.recent_groups / 60)
    assert all(arrow.per_s is None for arrow in graph(report).edges)


def test_the_insight_names_the_largest_loss_of_groups() -> None:
    report = SyntheticRun().report(150)
    assert insight(graph(report), "run") == "20\u202f% of groups are dropped by the filter informative"
    flow = report.flows[0]
    balanced_report = replace(report, flows=(replace(flow, dropped={}, issued=flow.open + flow.admitted),))
    balanced_report = replace(balanced_report, streams=(make.changed_stream(report.streams[0], dropped={}),))
    assert insight(graph(balanced_report), "run") == "Nearly every group reaches its trainer"
    assert insight(graph(SyntheticRun().report(1)), "minute") == "No group has finished in the last minute"


def test_several_flows_join_in_one_stage_that_routes_groups_to_policies() -> None:
    report = SyntheticRun(policies=("solver", "judge")).report(150)
    other = replace(report.flows[0], id=FlowId("other"))
    stage_graph = graph(replace(report, flows=(*report.flows, other)))
    into = {(arrow.source, arrow.target) for arrow in stage_graph.edges}
    assert {("train/filters", "routes"), ("other/filters", "routes")} <= into
    assert {("routes", "policy/solver/buffer"), ("routes", "policy/judge/buffer")} <= into
    assert ("train/filters", "policy/solver/buffer") in {(a.source, a.target) for a in graph(report).edges}


def test_band_width_follows_the_count_and_boxes_of_a_column_do_not_overlap() -> None:
    places = [StagePosition(key=key, column=column) for key, column in (("a", 0), ("b", 1), ("c", 1))]
    drawn = diagram_layout(
        places, [StageLink(source="a", target="b", value=30), StageLink(source="a", target="c", value=10)]
    )
    assert drawn.boxes["b"].height == pytest.approx(3 * drawn.boxes["c"].height)
    assert drawn.boxes["a"].height == pytest.approx(4 * drawn.boxes["c"].height)
    assert drawn.boxes["c"].y > drawn.boxes["b"].y + drawn.boxes["b"].height
    assert max(box.x for box in drawn.boxes.values()) < WIDTH
    assert diagram_layout([], []).height > 0


def limited(*, paused: frozenset[str] = frozenset(), held_bytes: int = 0, **stream: Any) -> Report:
    """Returns a report with these limits on the issue of groups. stream: fields of its stream."""
    report = SyntheticRun(paused=set(paused)).report(150)
    changed = make.changed_stream(report.streams[0], **{"issue_headroom": 16, **stream})
    return replace(report, streams=(changed,), held_bytes=held_bytes, memory_bytes=1_000_000)


@pytest.mark.parametrize(
    ("report", "text", "tone"),
    [
        (limited(), "None: 16 more groups may be issued now.", "good"),
        (
            limited(pace=Pace(limit=14.2, outstanding=15.0, group_s=2.1, step_s=1.0)),
            "Pacing: 14 groups ahead supply the trainer, and more would only age (a group takes 2.1\u202fs, a step "
            "1.0\u202fs).",
            "good",
        ),
        (
            limited(issue_headroom=0),
            "No further group may be issued: those that are out already fill the trainer's next 3 versions.",
            "warn",
        ),
        (
            limited(issue_headroom=0, is_waiting=True, buffered=3),
            "No further group may be issued while the trainer waits: those that are out have yet to return, and more "
            "nodes would not speed that up.",
            "bad",
        ),
        (
            limited(is_waiting=True, buffered=3),
            "None: the trainer waits for rollouts. The buffer has 3 of 32 groups of a batch.",
            "bad",
        ),
        (limited(paused=frozenset({"train"})), "Nothing is issued: train is paused.", "warn"),
        (
            limited(held_bytes=2_000_000),
            "Nothing is issued: results have reached the memory limit (2.0\u202fMB of 1.0\u202fMB).",
            "bad",
        ),
    ],
)
def test_back_pressure_names_the_limit_in_effect(report: Report, text: str, tone: str) -> None:
    assert pressure(report, report.streams[0]) == (text, tone)


def test_a_planned_plugin_counts_as_active() -> None:
    informative, length = {"kind": "informative"}, {"kind": "length"}
    planned = [PlannedPlugins(slot=PluginSlot.FILTERS, specs=(length,), actor="bob", reason="r", version=Version(5))]
    assert not changes_plugins(PluginSlot.FILTERS, [informative], [informative], [])
    assert not changes_plugins(PluginSlot.FILTERS, [length], [informative], planned)
    assert changes_plugins(PluginSlot.FILTERS, [informative], [informative], planned), (
        "requesting the current plugin cancels the plan"
    )


def test_the_filter_form_takes_the_checked_filters_in_order() -> None:
    form = {
        "filters_on": ["0", "2"],
        "filters_kind": ["informative", "length", "replay"],
        "filters_options": ["", "{}", '{"ratio": 0.3}'],
    }
    assert requested_filters(form) == ({"kind": "informative"}, {"kind": "replay", "ratio": 0.3})
    for wrong in ("{", "[1]"):
        with pytest.raises(InvalidInput, check=lambda problem: problem.code == "plugins.invalid_options"):
            requested_filters({"filters_on": ["0"], "filters_kind": ["informative"], "filters_options": [wrong]})
    with pytest.raises(InvalidInput, check=lambda problem: problem.code == "plugins.kind_missing"):
        requested_filters({"filters_on": ["0"], "filters_kind": [" "], "filters_options": [""]})


def test_a_drop_reason_links_to_its_trajectories() -> None:
    view = dataflow_view(SyntheticRun().report(150), None, period="minute", run_id=7)
    assert view.period == "run", "no full minute is recorded yet"
    informative = next(stage for stage in view.stages if stage.title == "informative")
    assert informative.href == "/runs/7?outcome=informative#samples"


@pytest.mark.anyio
async def test_the_diagram_its_table_and_its_files_have_the_same_edges(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        page = parsed(await client.get("/dataflow?over=minute"))
        part = parsed(await client.get("/dataflow/live?over=minute"))
        sheet = list(csv.DictReader(io.StringIO((await client.get("/dataflow.csv")).text)))
        rows = json.loads((await client.get("/dataflow.json")).text)
    entry = page.one(".sidebar-links").one("[aria-current=page]")
    assert (entry["href"], entry["data-key"]) == ("/dataflow", "g d")
    assert page.one(".page-tools").one("a[aria-current]")["href"] == "/dataflow?over=minute"
    assert page.one("#flow-insight").numbers == [pytest.approx(20, abs=2)]
    assert len(page.all("path.band")) == len(sheet) == len(rows) == 10
    assert part.has("path.band")
    assert not part.has("html")
    summaries = {kind.kind: kind.summary for kind in SyntheticRun().report(150).plugin_kinds}
    assert summaries["informative"] in {row["reason"] for row in rows}
    assert rows[0]["from"] == "Prompts (train)"
    assert rows[0]["per_s"] > 0


def test_two_filters_of_a_kind_have_a_row_each_with_their_own_numbers() -> None:
    report = SyntheticRun().report(150)
    flow = replace(
        report.flows[0],
        filters=({"kind": "length", "max_tokens": 9}, {"kind": "informative"}, {"kind": "length"}),
        dropped={"length": 30, "length 2": 4},
        plugins={"length.truncated": 7.0, "length 2.truncated": 1.0},
    )
    report = replace(report, flows=(flow,))
    rows = [row for row in plugin_rows(report, owner_paths(report)) if row.slot == "filter"]
    assert [row.kind for row in rows] == ["length", "informative", "length"]
    assert [row.effect.split(" of ")[0] for row in rows] == ["dropped 30", "dropped 0", "dropped 4"]
    assert [row.figures for row in rows] == ["truncated 7", "", "truncated 1"]


@pytest.mark.anyio
async def test_filters_are_changed_with_a_reason_and_the_planned_ones_are_shown(
    web: RunningWeb, fake: FakeControlPlane
) -> None:
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        form = parsed(await client.get("/flows/train/plugins"))
        assert form.one("input[name=filters_kind][value=informative]")["list"] == "kinds-filters"
        reason = "most are solved"
        same = {
            "selector_kind": "greso",
            "selector_options": '{"start": 0.5}',
            "filters_kind": ["informative", "length", ""],
            "filters_options": ["", '{"max_share": 0.5}', ""],
            "reason": reason,
        }
        nothing = await client.post("/flows/train/plugins", data={**same, "filters_on": ["0", "1"]})
        assert (await notice_after(client, nothing))["data-code"] == "plugin.nothing_to_change"
        assert fake.changes == []
        done = await client.post("/flows/train/plugins", data={**same, "filters_on": ["0"]})
        assert done.headers["location"] == "/dataflow"
        assert fake.changes == [
            PluginChange(flow=FlowId("train"), filters=({"kind": "informative"},), actor="admin", reason=reason)
        ]
        wrong = await client.post("/policies/solver/sampler", data={"sampler_kind": "nope", "sampler_options": ""})
        assert (await notice_after(client, wrong))["data-code"] == "plugin.unknown_kind"
        fake.synthetic_run.planned = (
            PlannedPlugins(
                slot=PluginSlot.FILTERS, specs=({"kind": "length"},), actor=HOSTILE, reason=HOSTILE, version=Version(5)
            ),
        )
        await fake.advance()
        await web.until_live(client, sequence=151)
        answer = await client.get("/dataflow")
        (planned,) = (notice for notice in parsed(answer).all(".notice") if notice.has("code"))
        assert planned.texts("code") == ["length"]
        assert planned.one("strong").text.endswith("v5.")
        assert HOSTILE in planned.texts("bdi")
        assert HOSTILE not in answer.text
        assert (await client.get("/flows/nope/plugins")).status_code == 404


@pytest.mark.anyio
async def test_pausing_returns_to_the_page_and_viewers_see_the_required_role(
    web: RunningWeb, fake: FakeControlPlane
) -> None:
    async with web.logged_in() as admin, web.in_role(admin, "viewer") as viewer:
        await web.until_live(admin, sequence=150)
        confirmation = (await admin.get("/flows/train/pause?back=dataflow")).text
        assert 'action="/flows/train/pause?back=dataflow"' in confirmation
        paused = await admin.post("/flows/train/pause?back=dataflow")
        assert paused.headers["location"] == "/dataflow"
        page = await viewer.get("/dataflow")
        assert parsed(page).one(".needs-role")["data-role"] == "operator"
        assert "/flows/train/pause" not in page.text


@pytest.mark.anyio
async def test_the_api_returns_the_graph_and_applies_a_change_once_per_key(
    web: RunningWeb, fake: FakeControlPlane
) -> None:
    async with web.logged_in() as admin:
        await web.until_live(admin, sequence=150)
        token = shown_secret(await admin.post("/settings/tokens", data={"name": "t", "scope": "agent", "days": "1"}))
        headers = {"authorization": f"Bearer {token}", "idempotency-key": "k1"}
        flows_body = (await admin.get("/api/v1/flows")).json()
        assert flows_body["flows"][0]["filters"] == [{"kind": "informative"}, {"kind": "length", "max_share": 0.5}]
        assert flows_body["streams"][0]["back_pressure"]
        assert flows_body["arrows"][0]["groups"] == flows_body["flows"][0]["issued"]
        for _ in range(2):
            answer = await admin.post("/api/v1/flows/train/pause", headers=headers, json={"reason": "r"})
            assert (answer.status_code, answer.json().keys()) == (200, {"message"})
        assert [action for action in fake.actions if action[0] == "paused"] == [("paused", "train", "admin")]
        other = await admin.post("/api/v1/flows/train/resume", headers=headers, json={"reason": "r"})
        assert other.status_code == 409
        wrong = await admin.post(
            "/api/v1/policies/solver/sampler",
            headers={**headers, "idempotency-key": "k2"},
            json={"sampler": {"kind": "nope"}, "reason": "r"},
        )
        assert (wrong.status_code, wrong.json()["code"]) == (409, "plugin.unknown_kind")
