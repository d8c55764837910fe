"""The weights page: nodes that lag, transfer times of a region, and downloads."""

import csv
import io
from dataclasses import replace

import pytest

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.reports.report import Report
from tests.fakes.synthetic_run import SyntheticRun
from tests.fakes.web import RunningWeb
from web.weights.tables import laggards, region_rows
from web.weights.views import weight_page


def behind(*lags: int) -> Report:
    """Returns a report with one node per lag. Lags are in versions."""
    report = SyntheticRun(nodes=tuple(f"node-{number}" for number in range(len(lags)))).report(150)
    newest = report.streams[0].version
    nodes = [
        replace(node, versions={PolicyId("solver"): Version(newest - lag)})
        for node, lag in zip(report.nodes, lags, strict=True)
    ]
    return replace(report, nodes=tuple(nodes))


@pytest.mark.parametrize(
    ("lags", "insight", "tone"),
    [
        ((0, 0), "Every node serves the newest version", "good"),
        ((0, 2), "1 of 2 nodes behind, none beyond the bound", "good"),
        ((3, 0), "1 node is beyond the staleness bound: node-0", "bad"),
        ((5, 4, 4, 4, 0), "4 nodes are beyond the staleness bound: node-0, node-1, node-2 and 1 more", "bad"),
        ((), "No node serves a version yet", ""),
    ],
)
def test_the_insight_names_the_nodes_beyond_the_bound(lags: tuple[int, ...], insight: str, tone: str) -> None:
    page = weight_page(behind(*lags))
    assert (page.insight, page.tone) == (insight, tone)


def test_the_node_furthest_beyond_its_bound_comes_first() -> None:
    late = laggards(behind(1, 4, 0, 3))
    assert [(laggard.node, laggard.behind, laggard.is_beyond) for laggard in late] == [
        ("node-1", 4, True),
        ("node-3", 3, True),
        ("node-0", 1, False),
    ]


def test_a_region_sums_its_links_and_has_the_slowest_fetch() -> None:
    report = behind(0, 0, 0)
    slow = replace(report.nodes[2].links[0], latest_fetch_s=7.5, failures=2)
    nodes = (*report.nodes[:2], replace(report.nodes[2], links=(slow,)))
    here = next(row for row in region_rows(replace(report, nodes=nodes)) if row.region == "here")
    link = report.nodes[0].links[0]
    assert (here.nodes, here.versions, here.breaks) == (2, 2 * link.versions, 2)
    assert here.fetch_s == pytest.approx(link.fetch_s / link.versions)
    assert here.slowest_s == 7.5
    assert here.bytes_per_s == pytest.approx((link.full_bytes + link.delta_bytes) / link.fetch_s)


@pytest.mark.anyio
async def test_every_table_is_a_file_too(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        for table, column in (("versions", "sent_bytes"), ("regions", "fetch_s"), ("links", "pause_s")):
            rows = list(csv.DictReader(io.StringIO((await client.get(f"/weights/{table}.csv")).text)))
            assert rows, table
            assert float(rows[0][column]) >= 0
            assert len((await client.get(f"/weights/{table}.json")).json()) == len(rows)
        assert (await client.get("/weights/laggards.csv")).text.startswith("node,region,policy,serves,newest,behind")
        assert (await client.get("/weights/nothing.csv")).status_code == 422
