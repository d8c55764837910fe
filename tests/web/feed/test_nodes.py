"""The pages of nodes: thousands of them stay a small page, and what is slow says why."""

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

from astraflow.contract.causes import Cause
from astraflow.contract.fleet import Instance, InstanceState, LaunchId
from astraflow.contract.ids import NodeId, PolicyId, PoolId, Version
from astraflow.contract.reports import NodeReport, NodeState, Report
from tests import make
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.web import RunningWeb, flash_of, running_web
from tests.fakes.world import World
from web.feed.node_table import AT_ONCE, PAGE_ROWS, SORTS, NodeQuery, NodeTable
from web.history.samples import NODES_AT_ONCE, NodeBuckets, Shares
from web.present.draining import drain_effect
from web.present.heat import SIDE, heat_map
from web.present.node import node_page, rate_chart, rate_sheet
from web.present.node_cells import row_cells
from web.present.nodes import nodes_sheet, nodes_view
from web.present.slowness import slowness

pytestmark = pytest.mark.anyio

MANY = 10_000
EVERYBODY_READY = 20_000


def world_of(number: int) -> Report:
    return World(nodes=tuple(f"node-{place:05}" for place in range(number))).report(EVERYBODY_READY)


def machine(name: str, **more: object) -> Instance:
    facts: dict[str, object] = {
        "id": LaunchId(name), "pool": PoolId("local"), "state": InstanceState.READY, "provider": "ec2", "type": "g5",
        "is_spot": True, "usd_per_hour": 1.5, "actor": "rule", "reason": "too few", "intended_at": 100.0,
        "expires_at": 1e9, "launched_at": 110.0, "ready_at": 190.0,
    }  # fmt: skip
    return Instance(**facts | more)  # type: ignore[arg-type] # fields by name


def node(name: str, **more: object) -> NodeReport:
    return dataclasses.replace(make.node_report(name), **more)  # type: ignore[arg-type] # fields by name


def test_a_page_too_far_is_the_last_and_no_report_is_an_empty_page() -> None:
    report = world_of(PAGE_ROWS + 5)
    view = nodes_view(NodeTable(report), report, NodeQuery(page=99))

    assert (view.page, view.pages, len(view.rows)) == (2, 2, 5)
    assert nodes_view(None, None, NodeQuery()).rows == []


@given(
    st.dictionaries(
        st.sampled_from(["state", "pool", "kind", "region", "spot", "text", "sort", "order", "page", "other"]),
        st.one_of(st.text(max_size=12), st.sampled_from([*SORTS, "down", "ready", "7", "²"])),
    )
)
def test_any_address_is_a_query_that_its_own_address_says_again(asked: dict[str, str]) -> None:
    query = NodeQuery.of(asked)

    assert NodeQuery.of(dict(parse_qsl(query.address()))) == query
    assert NodeTable(World().report(100)).page(query).page >= 1


def test_rows_are_filtered_by_what_the_ledger_knows_too() -> None:
    table = NodeTable(World(nodes=("a", "b")).report(100), machines={"b": machine("b")})

    found = table.matching(NodeQuery(spot="yes"))
    assert [(row.name, row.kind, row.usd_per_hour) for row in found] == [("b", "g5", 1.5)]
    assert [row.name for row in table.matching(NodeQuery(text="G5"))] == ["b"]
    assert table.matching(NodeQuery(spot="no")) == [], "of a node that nobody launched it is not known"


def test_every_column_sorts_both_ways() -> None:
    table = NodeTable(world_of(30))
    for sort in SORTS:
        up, down = (table.matching(NodeQuery(sort=sort, order=order)) for order in ("", "down"))
        assert [SORTS[sort](row) for row in up] == [SORTS[sort](row) for row in down][::-1]


def test_a_nodes_rate_is_compared_with_ready_nodes_of_its_type() -> None:
    rates = {"a.1": 4.0, "b.1": 2.0, "c.1": 6.0}
    ready = [node(name, episodes_per_s=rate) for name, rate in rates.items()]
    report = make.report(nodes=(*ready, node("d.1", state=NodeState.LOST, episodes_per_s=0.0)))
    shares = {row.node.id: row.rate_share for row in NodeTable(report).rows}

    assert shares == {"a.1": 1.0, "b.1": 0.5, "c.1": 1.5, "d.1": 0.0}


def test_no_version_loaded_is_said_in_words() -> None:
    report = World().report(100)
    of_other = dataclasses.replace(report.nodes[0], versions={PolicyId("other"): Version(3)})
    report = dataclasses.replace(report, nodes=(of_other,))

    assert nodes_view(NodeTable(report), report, NodeQuery()).cells["node/n0/lag"].text == "none loaded"


def test_the_map_of_ten_thousand_nodes_has_each_once_in_few_bytes() -> None:
    rows = NodeTable(world_of(MANY)).rows
    heat = heat_map(rows)
    cells = sum(int(width) // SIDE for one in heat.classes for width in re.findall(r"h(\d+)", one.path))

    assert cells == heat.count == MANY
    assert sum(len(one.path) for one in heat.classes) < 200_000


@given(st.lists(st.sampled_from(NodeState), max_size=300))
def test_every_cell_of_the_map_is_in_the_place_of_its_row(states: list[NodeState]) -> None:
    nodes = tuple(node(f"n{place}.1", state=state) for place, state in enumerate(states))
    rows = NodeTable(make.report(nodes=nodes)).rows
    heat = heat_map(rows)
    painted: dict[int, str] = {}
    for one in heat.classes:
        for x, y, width in re.findall(r"M(\d+) (\d+)h(\d+)", one.path):
            first = int(y) // SIDE * heat.across + int(x) // SIDE
            for place in range(first, first + int(width) // SIDE):
                assert painted.setdefault(place, one.look) == one.look
    assert sorted(painted) == list(range(len(rows)))


BEHIND = dataclasses.replace(make.link_report(), latest_bytes=10**6, latest_fetch_s=2.0)

SLOW: dict[str, tuple[dict[str, object], dict[str, object], str]] = {
    "blocked": ({"shares": Shares(busy=0.4, blocked=0.5, refresh=0.0)}, {}, "finds no task in 50"),
    "refresh": ({"shares": Shares(busy=0.5, blocked=0.0, refresh=0.3)}, {}, "stands still for new weights"),
    "lag": ({"is_beyond": True, "lag": 9}, {"links": (BEHIND,)}, "9 versions behind. Its link brings 500"),
    "failed": ({}, {"counters": {"episodes_done": 10.0, "episodes_failed": 5.0}}, "of its episodes fail"),
    "leases": ({}, {"leased": 1}, "of the episodes that it could run at once"),
    "tokens": ({}, {}, "Its engine is slow"),
}


@pytest.mark.parametrize("cause", SLOW)
def test_a_slow_node_says_why_with_figures(cause: str) -> None:
    row_facts, node_facts, sentence = SLOW[cause]
    peers = [node(f"p{place}.1", episodes_per_s=10.0, leased=8) for place in range(3)]
    usual: dict[str, object] = {"episodes_per_s": 2.0, "leased": 8}
    slow = node("s.1", **usual | node_facts)
    table = NodeTable(make.report(nodes=(*peers, slow)))
    row = table.get("s.1")
    assert row is not None
    found = slowness(row._replace(**row_facts), table.rows)  # type: ignore[arg-type] # fields by name

    assert sentence in found.sentence
    assert "20\u202f% of the median 10.0 of the 3 other ready nodes" in found.sentence
    assert [figure.label for figure in found.figures if figure.is_cause] or cause == "lag"


def test_a_node_that_is_not_slow_and_one_that_is_lost_say_so() -> None:
    table = NodeTable(make.report(nodes=tuple(node(f"p{place}.1", episodes_per_s=10.0) for place in range(3))))

    assert slowness(table.rows[0], table.rows).sentence.startswith("It is not slow: 10.0 episodes/s are 100")
    lost = table.rows[0]._replace(node=node("p0.1", state=NodeState.LOST, beat_age_s=42.0))
    assert "last heard 42\u202fs ago" in slowness(lost, table.rows).sentence
    assert "Nothing to compare" in slowness(table.rows[0], table.rows[:1]).sentence


def test_stages_come_from_the_ledger_and_without_one_from_reports() -> None:
    report = World(nodes=("a",), began_at=150.0).report(100)
    table = NodeTable(report)
    known = node_page(table.rows[0], table, machine("a"), [])
    told = node_page(table.rows[0], table, None, [])

    assert [(stage.label, stage.at, stage.took) for stage in known.stages[:3]] == [
        ("Requested", 100.0, "10\u202fs"),
        ("Provisioning, booting", 110.0, "40\u202fs"),
        ("Warming", 150.0, "40\u202fs"),
    ]
    assert [stage.label for stage in known.stages if stage.is_now] == ["Ready"]
    assert [stage.label for stage in told.stages] == ["Joined", "Ready"]


def test_a_node_that_is_taken_away_says_so_by_its_own_word_and_by_the_ledgers() -> None:
    drained = node("a.1", state=NodeState.DRAINING, cause=Cause.TAKEN)
    report = dataclasses.replace(make.report(nodes=(drained,)), at=300.0)
    taken = machine("a", state=InstanceState.DRAINING, draining_at=250.0, cause=Cause.TAKEN)
    own, known = NodeTable(report).rows[0], NodeTable(report, machines={"a": taken}).rows[0]

    for row in (own, known):
        assert row_cells(row, 300.0)["node/a.1/state"] == ("draining: taken away by its provider", "warn")
    assert node_page(own, NodeTable(report), None, []).stages[-1].label == "Draining: taken away by its provider"
    assert node_page(known, NodeTable(report), taken, []).stages[-1].label == "Draining: taken away by its provider"


def test_what_the_ledger_knows_of_a_cause_goes_before_the_nodes_own_word_and_an_order_is_no_news() -> None:
    drained = node("a.1", state=NodeState.DRAINING, cause=Cause.ORDERED)
    report = dataclasses.replace(make.report(nodes=(drained,)), at=300.0)
    taken = machine("a", state=InstanceState.DRAINING, draining_at=250.0, cause=Cause.TAKEN)
    (row,) = NodeTable(report, machines={"a": taken}).rows
    (ordered,) = NodeTable(report).rows

    assert row_cells(row, 300.0)["node/a.1/state"][0] == "draining: taken away by its provider"
    assert row_cells(ordered, 300.0)["node/a.1/state"][0] == "draining"


def test_the_rate_chart_leaves_a_hole_where_the_node_was_away() -> None:
    ats = [*range(0, 300, 10), *range(900, 1200, 10)]
    chart = rate_chart([(float(at), {"episodes": 2.0, "tokens": 1.0, "busy": 0.5, "lag": 0.0}) for at in ats])

    assert chart is not None
    assert chart.path.count("M") == 2
    assert rate_chart([]) is None


def test_draining_says_what_is_left_and_who_cannot_go() -> None:
    nodes = (node("a.1", leased=3, episodes_per_s=1.0), node("b.1", leased=2, episodes_per_s=3.0),
             node("c.1", state=NodeState.LOST, episodes_per_s=0.0))  # fmt: skip
    rows = NodeTable(make.report(nodes=nodes)).rows
    effect = drain_effect(rows, rows, [])

    assert list(effect.ids) == ["a.1", "b.1"]
    assert "the 5 episodes under way" in effect.sentence
    assert "1 other of those chosen can not be drained" in effect.sentence
    assert (effect.pools[0].left, effect.pools[0].tone) == (0, "bad")


def test_of_a_large_fleet_nodes_take_turns_in_what_is_kept() -> None:
    world = World(nodes=tuple(f"node-{place:05}" for place in range(3 * NODES_AT_ONCE)))
    buckets, found = NodeBuckets(), []
    for second in range(20_000, 20_031, 10):
        found += buckets.add(world.report(second))
    by_time = {sample.at: {one.subject for one in found if one.at == sample.at} for sample in found}

    assert len(by_time) == 3
    assert sum(map(len, by_time.values())) == len(set().union(*by_time.values())) == 3 * NODES_AT_ONCE


@pytest.fixture
async def thirty(tmp_path: Path) -> AsyncIterator[tuple[RunningWeb, FakeControlPlane]]:
    fake = FakeControlPlane(World(nodes=tuple(f"node-{place:03}" for place in range(30))), sequence=40)
    async with fake.serving() as dataflow, running_web(tmp_path, dataflow) as running:
        await running.until_fed()
        yield running, fake


async def test_the_page_shows_exports_and_maps_what_its_address_says(
    thirty: tuple[RunningWeb, FakeControlPlane],
) -> None:
    web, _ = thirty
    async with web.logged_in() as client:
        page = (await client.get("/nodes?text=node-01&sort=name&order=down&page=1")).text
        files = [await client.get(f"/nodes.{ending}?text=node-01&sort=name&order=down") for ending in ("csv", "json")]
        heat = await client.get("/nodes/map?text=node-01")
        at = (await client.get("/nodes/at?text=node-01&place=3")).json()
        beyond = await client.get("/nodes/at?text=node-01&place=300")

    assert re.findall(r'<tr id="row-(\w+)"', page)[:2] == ["n19", "n18"]
    assert 'aria-sort="descending"' in page
    assert "10 nodes" in page
    rows = list(csv.DictReader(io.StringIO(files[0].text)))
    assert [row["name"] for row in rows] == [row["name"] for row in files[1].json()] != []
    assert (len(rows), rows[0]["name"]) == (10, "node-019")
    assert "Map of 10 nodes" in heat.text
    assert at["href"] == "/nodes/n13"
    assert at["words"].startswith("node-013 in local: ready")
    assert beyond.status_code == 404


async def test_several_nodes_are_drained_after_a_look_at_what_it_does(
    thirty: tuple[RunningWeb, FakeControlPlane],
) -> None:
    web, fake = thirty
    async with web.logged_in() as client:
        preview = (await client.get("/nodes/drain?node=n1&node=n2&node=away")).text
        answer = await client.post("/nodes/drain", data={"node": ["n1", "n2", "away"], "reason": "old disks"})
        said = await flash_of(client, answer)
        nothing = await flash_of(client, await client.post("/nodes/drain", data={"reason": "x"}))
        audit = (await client.get("/audit?action=node.drain")).text

    assert "Drain 2 nodes?" in preview
    assert "nobody replaces them" in preview
    assert "away" in preview
    assert sorted(subject for _, subject, _ in fake.actions) == ["n1", "n2"]
    assert "1 of 3 nodes were not drained" in said
    assert nothing == "No node was chosen"
    assert audit.count("old disks") == 3


async def test_a_nodes_page_has_its_errors_as_text_and_an_unknown_one_is_not_found(
    thirty: tuple[RunningWeb, FakeControlPlane],
) -> None:
    web, fake = thirty
    fake.world.node_errors = {"node-007": ("<b>boom</b>",)}
    await fake.advance()
    async with web.logged_in() as client:
        await web.until_live(client, sequence=41)
        page = await client.get("/nodes/n7")
        now = await client.get("/nodes/n7/now")
        unknown = await client.get("/nodes/n999")

    assert "&lt;b&gt;boom&lt;/b&gt;" in page.text
    assert "It is not slow" in now.text
    assert "<html" not in now.text
    assert unknown.status_code == 404


def test_the_file_has_what_the_table_has() -> None:
    table = NodeTable(World().report(100), shares={"node-a": Shares(busy=0.5, blocked=0.25, refresh=0.0)})
    sheet = nodes_sheet(table.matching(NodeQuery(sort="name")))
    first = dict(zip(sheet.columns, sheet.rows[0], strict=True))

    assert (first["name"], first["busy"], first["spot"]) == ("node-a", 0.5, None)
    assert NodeId("n0") == first["id"]


def test_the_rate_of_a_node_is_taken_away_as_it_is_drawn() -> None:
    known: dict[str, float | None] = {"episodes": 2.0, "tokens": 100.0, "busy": 0.5, "lag": 1.0}
    history: list[tuple[float, dict[str, float | None]]] = [
        (10.0, known),
        (20.0, {**known, "episodes": None}),
        (30.0, {**known, "episodes": 3.0}),
    ]

    found = rate_sheet('a"b/c', history)

    assert found.columns == ("time", "unix_s", "episodes", "tokens", "busy", "lag")
    assert [row[1:3] for row in found.rows] == [(10.0, 2.0), (30.0, 3.0)]
    assert found.name == "astraflow-node-a_b_c"


async def test_the_file_of_a_rate_is_of_a_node_that_there_is(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        there, away = await client.get("/nodes/n0/rate.csv"), await client.get("/nodes/n77/rate.csv")
    assert there.status_code == 200
    assert there.text.startswith("time,unix_s,episodes,tokens,busy,lag")
    assert away.status_code == 404


async def test_others_have_their_turn_while_the_table_of_a_large_fleet_is_made() -> None:
    report = world_of(4 * AT_ONCE)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    table = await NodeTable.made(report, machines={}, shares={})
    counting.cancel()

    assert turns >= 4
    assert table.rows == NodeTable(report).rows
