"""The node pages: thousands of nodes stay a small page, and slow nodes have a stated cause."""

import asyncio
import csv
import dataclasses
import io
import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.fleet.instances import Cause, Instance, InstanceState, LaunchId
from astraflow.contract.ids import NodeId, PolicyId, PoolId, Version
from astraflow.contract.reports.report import NodeReport, NodeState, Report
from tests import make
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.synthetic_run import SyntheticRun
from tests.fakes.web import RunningWeb, running_web
from tests.web.page_elements import notice_after, parsed
from web.history.samples import NODES_PER_BUCKET, NodeBuckets, TimeShares
from web.live.node_texts import build_node_texts, engine_text
from web.nodes.draining import drain_effect
from web.nodes.heat_map import CELL_SIDE, heat_map
from web.nodes.node_view import node_page, rate_chart, rate_sheet
from web.nodes.slowness import slowness
from web.nodes.views import nodes_sheet, nodes_view
from web.state.node_table import LOST_SHOWN_S, PAGE_ROWS, ROWS_BETWEEN_YIELDS, SORTS, NodeQuery, NodeTable

pytestmark = pytest.mark.anyio

MANY = 10_000
ALL_READY_NODES = 20_000


def report_of_nodes(number: int) -> Report:
    return SyntheticRun(nodes=tuple(f"node-{index:05}" for index in range(number))).report(ALL_READY_NODES)


def machine(name: str, **more: object) -> Instance:
    facts: dict[str, object] = {
        "id": LaunchId(name), "pool": PoolId("local"), "state": InstanceState.READY, "provider": "ec2", "type": "g5",
        "is_spot": True, "usd_per_hour": 1.5, "actor": "rule", "reason": "too few", "intended_at": 100.0,
        "expires_at": 1e9, "launched_at": 110.0, "ready_at": 190.0,
    }  # fmt: skip
    return Instance(**facts | more)  # type: ignore[arg-type] # fields by name


def node(name: str, **more: object) -> NodeReport:
    return dataclasses.replace(make.node_report(name), **more)  # type: ignore[arg-type] # fields by name


def test_a_page_number_beyond_the_end_is_the_last_page() -> None:
    report = report_of_nodes(PAGE_ROWS + 5)
    view = nodes_view(NodeTable(report), report, NodeQuery(page=99))

    assert (view.page, view.pages, len(view.rows)) == (2, 2, 5)
    assert nodes_view(None, None, NodeQuery()).rows == []


@given(
    st.dictionaries(
        st.sampled_from(["state", "pool", "kind", "region", "spot", "text", "sort", "order", "page", "other"]),
        st.one_of(st.text(max_size=12), st.sampled_from([*SORTS, "down", "ready", "7", "²"])),
    )
)
def test_any_address_is_a_query_with_a_stable_address(parameters: dict[str, str]) -> None:
    query = NodeQuery.from_params(parameters)

    assert NodeQuery.from_params(dict(parse_qsl(query.address()))) == query
    assert NodeTable(SyntheticRun().report(100)).page(query).page >= 1


def test_rows_are_filtered_by_facts_of_the_ledger_too() -> None:
    table = NodeTable(SyntheticRun(nodes=("a", "b")).report(100), instances={"b": machine("b")})

    matching_rows = table.matching(NodeQuery(spot="yes"))
    assert [(row.name, row.kind, row.usd_per_hour) for row in matching_rows] == [("b", "g5", 1.5)]
    assert [row.name for row in table.matching(NodeQuery(text="G5"))] == ["b"]
    assert table.matching(NodeQuery(spot="no")) == [], "unknown for a node without an instance"


def test_every_column_sorts_both_ways() -> None:
    table = NodeTable(report_of_nodes(30))
    for sort in SORTS:
        up, down = (table.matching(NodeQuery(sort=sort, order=order)) for order in ("", "down"))
        assert [SORTS[sort](row) for row in up] == [SORTS[sort](row) for row in down][::-1]


def test_a_nodes_rate_is_compared_with_ready_nodes_of_its_type() -> None:
    rates = {"a.1": 4.0, "b.1": 2.0, "c.1": 6.0}
    ready = [node(name, episodes_per_s=rate) for name, rate in rates.items()]
    report = make.report(nodes=(*ready, node("d.1", state=NodeState.LOST, episodes_per_s=0.0)))
    shares = {row.node.id: row.rate_share for row in NodeTable(report).rows}

    assert shares == {"a.1": 1.0, "b.1": 0.5, "c.1": 1.5, "d.1": 0.0}


@pytest.mark.parametrize(
    ("gauges", "shown"),
    [
        ({"speculation_gain": 1.3}, "75% of drafted tokens accepted (1.30 times the rate without)"),
        ({"speculation_gain": 1.0}, "75% of drafted tokens accepted (does not pay, so off but for short trials)"),
        ({}, "75% of drafted tokens accepted"),  # a server, which measures no rate without
    ],
)
def test_accepted_drafts_stand_beside_the_hit_rate_of_prompts(gauges: dict[str, float], shown: str) -> None:
    counters = {"prompt_tokens": 10.0, "prompt_tokens_cached": 9.0, "tokens_drafted": 8.0, "tokens_drafted_accepted": 6}
    text, _ = engine_text(node("a.1", gauges={"engine_running": 1.0, **gauges}, counters=counters))

    assert text.replace("\u202f", "").endswith(f"90% of prompt tokens cached, {shown}")
    assert "drafted" not in engine_text(node("a.1", gauges={"engine_running": 1.0, **gauges}))[0]


def test_a_node_without_a_version_has_a_text_instead_of_a_number() -> None:
    report = SyntheticRun().report(100)
    of_other = dataclasses.replace(report.nodes[0], versions={PolicyId("other"): Version(3)})
    report = dataclasses.replace(report, nodes=(of_other,))

    assert nodes_view(NodeTable(report), report, NodeQuery()).live_texts["node/n0/lag"].text == "none loaded"


@pytest.mark.long
def test_the_map_of_ten_thousand_nodes_is_small_and_has_each_node_once() -> None:
    rows = NodeTable(report_of_nodes(MANY)).rows
    heat = heat_map(rows)
    cells = sum(
        int(width) // CELL_SIDE for cell_class in heat.classes for width in re.findall(r"h(\d+)", cell_class.path)
    )

    assert cells == heat.count == MANY
    assert sum(len(cell_class.path) for cell_class in heat.classes) < 200_000


@pytest.mark.long
@given(st.lists(st.sampled_from(NodeState), max_size=300))
def test_every_cell_of_the_map_is_at_the_position_of_its_row(states: list[NodeState]) -> None:
    nodes = tuple(node(f"n{index}.1", state=state) for index, state in enumerate(states))
    rows = NodeTable(make.report(nodes=nodes)).rows
    heat = heat_map(rows)
    painted: dict[int, str] = {}
    for cell_class in heat.classes:
        for x, y, width in re.findall(r"M(\d+) (\d+)h(\d+)", cell_class.path):
            first = int(y) // CELL_SIDE * heat.columns + int(x) // CELL_SIDE
            for index in range(first, first + int(width) // CELL_SIDE):
                assert painted.setdefault(index, cell_class.style) == cell_class.style
    assert sorted(painted) == list(range(len(rows)))


BEHIND = dataclasses.replace(make.link_report(), latest_bytes=10**6, latest_fetch_s=2.0)

SLOW: dict[str, tuple[dict[str, object], dict[str, object], str]] = {
    "blocked": ({"shares": TimeShares(busy=0.4, blocked=0.5, refresh=0.0)}, {}, "waits for tasks 50"),
    "refresh": ({"shares": TimeShares(busy=0.5, blocked=0.0, refresh=0.3)}, {}, "pauses for new weights"),
    "lag": ({"is_beyond": True, "lag": 9}, {"links": (BEHIND,)}, "9 versions behind. Its link runs at 500"),
    "failed": ({}, {"counters": {"episodes_done": 10.0, "episodes_failed": 5.0}}, "of its episodes fail"),
    "leases": ({}, {"leased": 1}, "of its capacity"),
    "tokens": ({}, {}, "Its engine is slow"),
}


@pytest.mark.parametrize("cause", SLOW)
def test_a_slow_node_has_a_cause_with_figures(cause: str) -> None:
    row_facts, node_facts, sentence = SLOW[cause]
    peers = [node(f"p{index}.1", episodes_per_s=10.0, leased=8) for index in range(3)]
    usual: dict[str, object] = {"episodes_per_s": 2.0, "leased": 8}
    slow = node("s.1", **usual | node_facts)
    table = NodeTable(make.report(nodes=(*peers, slow)))
    row = table.get("s.1")
    assert row is not None
    slowness_cause = slowness(row._replace(**row_facts), table.rows)  # type: ignore[arg-type] # fields by name

    assert sentence in slowness_cause.sentence
    assert "20\u202f% of the median 10.0 of 3 other ready nodes" in slowness_cause.sentence
    assert [figure.label for figure in slowness_cause.figures if figure.is_cause] or cause == "lag"


def test_normal_and_lost_nodes_are_described() -> None:
    table = NodeTable(make.report(nodes=tuple(node(f"p{index}.1", episodes_per_s=10.0) for index in range(3))))

    assert slowness(table.rows[0], table.rows).sentence.startswith("Normal speed: 10.0 episodes/s, 100")
    lost = table.rows[0]._replace(node=node("p0.1", state=NodeState.LOST, heartbeat_age_s=42.0))
    assert "last heartbeat was 42\u202fs ago" in slowness(lost, table.rows).sentence
    assert "No comparison" in slowness(table.rows[0], table.rows[:1]).sentence


def test_stages_come_from_the_ledger_and_without_one_from_reports() -> None:
    report = SyntheticRun(nodes=("a",), began_at=150.0).report(100)
    table = NodeTable(report)
    known = node_page(table.rows[0], table, machine("a"), [])
    page = node_page(table.rows[0], table, None, [])

    assert [(stage.label, stage.at, stage.duration) for stage in known.stages[:3]] == [
        ("Requested", 100.0, "10\u202fs"),
        ("Provisioning, booting", 110.0, "40\u202fs"),
        ("Warming", 150.0, "40\u202fs"),
    ]
    assert [stage.label for stage in known.stages if stage.is_now] == ["Ready"]
    assert [stage.label for stage in page.stages] == ["Joined", "Ready"]


def test_a_preempted_node_is_shown_from_its_report_and_from_the_ledger() -> None:
    drained = node("a.1", state=NodeState.DRAINING, cause=Cause.PREEMPTED)
    report = dataclasses.replace(make.report(nodes=(drained,)), at=300.0)
    preempted_instance = machine("a", state=InstanceState.DRAINING, draining_at=250.0, cause=Cause.PREEMPTED)
    own, known = NodeTable(report).rows[0], NodeTable(report, instances={"a": preempted_instance}).rows[0]

    for row in (own, known):
        assert build_node_texts(row, 300.0)["node/a.1/state"] == ("draining: preempted", "warn")
    assert node_page(own, NodeTable(report), None, []).stages[-1].label == "Draining: preempted"
    assert node_page(known, NodeTable(report), preempted_instance, []).stages[-1].label == "Draining: preempted"


def test_the_cause_of_the_ledger_precedes_the_report_of_the_node() -> None:
    drained = node("a.1", state=NodeState.DRAINING, cause=Cause.REQUESTED)
    report = dataclasses.replace(make.report(nodes=(drained,)), at=300.0)
    preempted_instance = machine("a", state=InstanceState.DRAINING, draining_at=250.0, cause=Cause.PREEMPTED)
    (row,) = NodeTable(report, instances={"a": preempted_instance}).rows
    (ordered,) = NodeTable(report).rows

    assert build_node_texts(row, 300.0)["node/a.1/state"][0] == "draining: preempted"
    assert build_node_texts(ordered, 300.0)["node/a.1/state"][0] == "draining"


def test_the_rate_chart_has_the_recorded_points_and_the_reason_of_gaps() -> None:
    ats = range(0, 300, 10)
    chart = rate_chart([(float(at), {"episodes": 2.0, "tokens": 1.0, "busy": 0.5, "lag": 0.0}) for at in ats])

    assert chart is not None
    assert chart.table["columns"] == {"episodes": [[2, 30]]}
    assert "absent" in chart.view.panel.reason
    assert rate_chart([]) is None


def test_the_effect_of_draining_has_remaining_nodes_and_excluded_ones() -> None:
    nodes = (node("a.1", leased=3, episodes_per_s=1.0), node("b.1", leased=2, episodes_per_s=3.0),
             node("c.1", state=NodeState.LOST, episodes_per_s=0.0))  # fmt: skip
    rows = NodeTable(make.report(nodes=nodes)).rows
    effect = drain_effect(rows, rows, [])

    assert list(effect.ids) == ["a.1", "b.1"]
    figures = [float(figure) for figure in re.findall(r"\d+(?:\.\d+)?", effect.sentence)]
    assert figures[:2] == [2, 5], "nodes, and their episodes in progress"
    assert figures[-1] == 1, "another node that cannot be drained"
    assert (effect.pools[0].remaining, effect.pools[0].tone) == (0, "bad")


@pytest.mark.long
def test_nodes_of_a_large_fleet_are_recorded_in_turns() -> None:
    synthetic_run = SyntheticRun(nodes=tuple(f"node-{index:05}" for index in range(3 * NODES_PER_BUCKET)))
    buckets, recorded = NodeBuckets(), []
    for second in range(20_000, 20_031, 10):
        recorded += buckets.add(synthetic_run.report(second))
    by_time = {
        sample.at: {node_sample.subject for node_sample in recorded if node_sample.at == sample.at}
        for sample in recorded
    }

    assert len(by_time) == 3
    assert sum(map(len, by_time.values())) == len(set().union(*by_time.values())) == 3 * NODES_PER_BUCKET


@pytest.fixture
async def thirty(tmp_path: Path) -> AsyncIterator[tuple[RunningWeb, FakeControlPlane]]:
    fake = FakeControlPlane(SyntheticRun(nodes=tuple(f"node-{index:03}" for index in range(30))), sequence=40)
    async with fake.serving() as dataflow, running_web(tmp_path, dataflow) as running:
        await running.until_connected()
        yield running, fake


async def test_the_page_its_exports_and_its_map_follow_the_address(
    thirty: tuple[RunningWeb, FakeControlPlane],
) -> None:
    web, _ = thirty
    async with web.logged_in() as client:
        page = (await client.get("/nodes?text=node-01&sort=name&order=down&page=1")).text
        files = [await client.get(f"/nodes.{ending}?text=node-01&sort=name&order=down") for ending in ("csv", "json")]
        heat = await client.get("/nodes/map?text=node-01")
        at = (await client.get("/nodes/map/cell?text=node-01&index=3")).json()
        beyond = await client.get("/nodes/map/cell?text=node-01&index=300")

    table = parsed(page)
    assert [row["id"] for row in table.all("tr[id]")][:2] == ["row-n19", "row-n18"]
    assert table.has("[aria-sort=descending]")
    assert len(table.all("tr[id]")) == 10
    rows = list(csv.DictReader(io.StringIO(files[0].text)))
    assert [row["name"] for row in rows] == [row["name"] for row in files[1].json()] != []
    assert (len(rows), rows[0]["name"]) == (10, "node-019")
    assert parsed(heat).one(".heatmap-plot")["data-count"] == "10"
    assert at["href"] == "/nodes/n13"
    assert at["words"].split()[:4] == ["node-013", "in", "local:", "ready,"]
    assert beyond.status_code == 404


async def test_several_nodes_are_drained_after_a_preview(
    thirty: tuple[RunningWeb, FakeControlPlane],
) -> None:
    web, fake = thirty
    async with web.logged_in() as client:
        preview = parsed(await client.get("/nodes/drain?node=n1&node=n2&node=away")).one("#confirm")
        answer = await client.post("/nodes/drain", data={"node": ["n1", "n2", "away"], "reason": "old disks"})
        notice = await notice_after(client, answer)
        nothing = await notice_after(client, await client.post("/nodes/drain", data={"reason": "x"}))
        audit = (await client.get("/audit?action=node.drain")).text

    assert preview.one("h1").numbers == [2]
    assert [field["value"] for field in preview.all("input[name=node]")] == ["n1", "n2"]
    assert "not replaced" in preview.rows()[0][0]
    assert "away" in preview.texts("bdi")
    assert sorted(subject for _, subject, _ in fake.actions) == ["n1", "n2"]
    assert (notice.tone, notice["data-code"], notice.numbers[:2]) == ("bad", "unknown_node", [1, 3])
    assert (nothing.tone, nothing.numbers) == ("bad", [])
    assert audit.count("<bdi>old disks</bdi></td>") == 3


async def test_the_page_of_a_node_escapes_its_errors_and_an_unknown_node_is_not_found(
    thirty: tuple[RunningWeb, FakeControlPlane],
) -> None:
    web, fake = thirty
    fake.synthetic_run.node_errors = {"node-007": ("<b>boom</b>",)}
    await fake.advance()
    async with web.logged_in() as client:
        await web.until_live(client, sequence=41)
        page = await client.get("/nodes/n7")
        now = await client.get("/nodes/n7/now")
        unknown = await client.get("/nodes/n999")

    assert "&lt;b&gt;boom&lt;/b&gt;" in page.text
    assert "Normal speed" in now.text
    assert "<html" not in now.text
    assert unknown.status_code == 404


def test_the_export_has_the_rows_of_the_table() -> None:
    table = NodeTable(SyntheticRun().report(100), shares={"node-a": TimeShares(busy=0.5, blocked=0.25, refresh=0.0)})
    sheet = nodes_sheet(table.matching(NodeQuery(sort="name")))
    first = dict(zip(sheet.columns, sheet.rows[0], strict=True))

    assert (first["name"], first["busy"], first["spot"]) == ("node-a", 0.5, None)
    assert NodeId("n0") == first["id"]


def test_the_export_of_a_rate_has_the_points_of_its_chart() -> None:
    known: dict[str, float | None] = {"episodes": 2.0, "tokens": 100.0, "busy": 0.5, "lag": 1.0}
    history: list[tuple[float, dict[str, float | None]]] = [
        (10.0, known),
        (20.0, {**known, "episodes": None}),
        (30.0, {**known, "episodes": 3.0}),
    ]

    sheet = rate_sheet('a"b/c', history)

    assert sheet.columns == ("time", "unix_s", "episodes", "tokens", "busy", "lag")
    assert [row[1:3] for row in sheet.rows] == [(10.0, 2.0), (30.0, 3.0)]
    assert sheet.name == "astraflow-node-a_b_c"


async def test_the_rate_of_an_unknown_node_is_not_found(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        there, away = await client.get("/nodes/n0/rate.csv"), await client.get("/nodes/n77/rate.csv")
    assert there.status_code == 200
    assert there.text.startswith("time,unix_s,episodes,tokens,busy,lag")
    assert away.status_code == 404


async def test_building_a_large_table_yields_to_other_tasks() -> None:
    report = report_of_nodes(4 * ROWS_BETWEEN_YIELDS)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    table = await NodeTable.build(report, instances={}, shares={})
    counting.cancel()

    assert turns >= 4
    assert table.rows == NodeTable(report).rows


def test_ready_nodes_come_first_and_lost_ones_are_one_line_without_a_price() -> None:
    def lost(name: str, silent_s: float) -> NodeReport:
        return node(name, state=NodeState.LOST, heartbeat_age_s=silent_s, joined_at=90.0)

    old, new = node("old.1", joined_at=10.0), node("new.1", joined_at=20.0)
    report = make.report(nodes=(lost("gone.1", 60.0), lost("long.1", LOST_SHOWN_S + 1), old, new))
    table = NodeTable(report, instances={"gone": machine("gone")})

    assert [row.name for row in table.matching(NodeQuery())] == ["new", "old"]
    (row,) = table.matching(NodeQuery(state="lost"))
    assert (row.name, row.usd_per_hour, row.lag, row.shares) == ("gone", None, None, None)
    assert nodes_view(table, report, NodeQuery()).lost == "1 node lost in the last hour"
    assert nodes_view(table, report, NodeQuery(state="lost")).lost == ""
