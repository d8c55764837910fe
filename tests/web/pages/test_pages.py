"""Pages as a browser without scripts gets them."""

import asyncio
import re

import httpx
import pytest

from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.web import RunningWeb, running_web
from tests.fakes.world import STEPS_PER_S, World, learned
from web.routes import runs

pytestmark = pytest.mark.anyio

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>'\"&{{7*7}}"


async def test_first_paint_of_the_overview_has_the_real_numbers_and_shapes(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        page = (await client.get("/")).text

    assert "The trainer is" in page
    assert re.search(r'data-cell="policy/solver/steps"[^>]*>131<', page)
    assert re.search(r'data-cell="policy/solver/version"[^>]*>v131<', page)
    assert re.search(r'class="line main" d="M[\d.]+ [\d.]+L', page), "the reward line is drawn by the server"
    assert len(re.findall(r'<rect class="(current|behind|beyond)"', page)) >= 2, "so is the version ladder"
    assert "node-a" in page


async def test_pages_before_the_first_report_say_what_they_wait_for(tmp_path_factory: pytest.TempPathFactory) -> None:
    async with (
        running_web(tmp_path_factory.mktemp("web"), "127.0.0.1:9") as web,
        web.logged_in() as client,
    ):
        overview, nodes, runs = [(await client.get(path)).text for path in ("/", "/nodes", "/runs")]
        report = await client.get("/api/v1/report")

    assert "Waiting for dataflow at <code>127.0.0.1:9</code>" in overview
    assert "No report yet" in nodes
    assert "No run was recorded yet" in runs
    assert report.status_code == 503
    assert "no report" in report.json()["detail"]


async def test_nodes_page_says_how_large_each_pool_should_be_and_why(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        page = (await client.get("/nodes")).text

    assert re.search(r'data-cell="pool/local/advice"[^>]*>2 to 3 nodes, because capacity', page)


async def test_nodes_page_has_a_row_for_each_node_and_filters_by_state(web: RunningWeb, fake: FakeControlPlane) -> None:
    fake.world.draining.add("n1")
    await fake.advance()
    async with web.logged_in() as client:
        await web.until_live(client, sequence=151)
        everyone = (await client.get("/nodes")).text
        draining = (await client.get("/nodes?state=draining")).text

    assert re.findall(r'<tr id="row-(\w+)"', everyone) == ["n1", "n0"]
    assert re.findall(r'<tr id="row-(\w+)"', draining) == ["n1"]


async def test_an_empty_pool_shows_the_command_that_fills_it(web: RunningWeb, fake: FakeControlPlane) -> None:
    fake.world.nodes = ()
    await fake.advance()
    async with web.logged_in() as client:
        await web.until_live(client, sequence=151)
        page = (await client.get("/nodes")).text

    assert "No node has joined yet" in page
    assert "astraflow join 127.0.0.1:" in page


async def test_run_page_has_config_ledger_charts_and_the_spread_of_rewards(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        page = await _run_page(web, client)

    assert "The counts balance" in page
    assert "dropped: informative" in page
    assert "2 versions" in page
    assert re.search(r'class="line main" d="M', page)
    assert re.search(r"\d+\u202f% scored 1\.00", page), "how rewards are spread"


async def test_run_page_lists_evaluations_by_version_with_their_error(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        page = await _run_page(web, client)
        older = re.search(r'href="(/runs/1\?rounds_before=\d+#evaluations)"', page)
        fragment = (await client.get("/runs/1/evaluations")).text

    section = _section(page, "evaluations")
    assert "<caption>held-out</caption>" in section
    assert re.findall(r'<th scope="col" class="num">((?:avg|pass|maj)@\d)</th>', section) == [
        "avg@4",
        "pass@1",
        "pass@4",
        "maj@4",
    ]
    assert re.findall(r'<th scope="row">(\d+)</th>', section) == [str(number) for number in range(13, 0, -1)]
    assert re.search(r'<td class="num">v120</td>\s*<td><span class="state" data-tone="good">done</span>', section)
    assert f"{learned(round(120 / STEPS_PER_S) + 4):.2f} ± 0.03" in section
    assert "37 of 128" in section
    assert "1 sample masked" in section
    assert older is None, "everything fits on one page"
    assert "<caption>held-out</caption>" in fragment
    assert "<html" not in fragment


async def test_older_rounds_are_on_a_page_of_their_own(
    web: RunningWeb, fake: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "PAGE_ROUNDS", 5)
    async with web.logged_in() as client:
        seen: list[str] = []
        page = await _run_page(web, client)
        while True:
            section = _section(page, "evaluations")
            seen += re.findall(r'<th scope="row">(\d+)</th>', section)
            older = re.search(r'rel="next" href="(/runs/1\?rounds_before=\d+)#evaluations"', section)
            if older is None:
                break
            page = (await client.get(older[1])).text
        assert 'href="/runs/1#evaluations">Newest' in section

    assert seen == [str(number) for number in range(13, 0, -1)]


async def test_a_run_without_evaluations_says_how_to_have_some(web: RunningWeb, fake: FakeControlPlane) -> None:
    fake.sequence = 5
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        page = await _run_page(web, client)

    assert "Nothing was evaluated yet" in page
    assert "astraflow evaluate NAME" in page


async def test_two_policies_each_have_their_own_overview(web: RunningWeb, fake: FakeControlPlane) -> None:
    fake.world.policies = ("solver", "verifier")
    await fake.advance()
    async with web.logged_in() as client:
        await web.until_live(client, sequence=151)
        page = (await client.get("/?policy=verifier")).text

    assert '<a href="/?policy=verifier&amp;range=15m" aria-current="true">verifier</a>' in page
    assert 'data-cell="policy/verifier/wait"' in page
    assert 'data-cell="policy/solver/wait"' not in page


async def test_hostile_strings_stay_text_on_every_page(web: RunningWeb, fake: FakeControlPlane) -> None:
    fake.world = World(
        nodes=(HOSTILE, "b"), prompt=HOSTILE, simulated=(HOSTILE,), node_errors={"b": (HOSTILE,)}, asker=HOSTILE
    )
    fake.world.act(150, HOSTILE, HOSTILE, HOSTILE)
    await fake.advance()
    async with web.logged_in() as client:
        await _run_page(web, client)
        for path in ("/", "/nodes", "/runs", "/runs/1", "/charts/reward", "/nodes/n0/drain"):
            answer = await client.get(path)
            assert answer.status_code == 200
            assert "<script>alert" not in answer.text
            assert "<img" not in answer.text
            assert "{{7*7}}" in answer.text, "shown as it is, not run as a template"


async def test_stand_ins_are_labelled_on_every_page(web: RunningWeb, fake: FakeControlPlane) -> None:
    fake.world.simulated = ("engine scripted",)
    await fake.advance()
    async with web.logged_in() as client:
        await web.until_live(client, sequence=151)
        for path in ("/", "/nodes", "/runs"):
            assert "stand-ins: engine scripted" in (await client.get(path)).text


async def test_a_chart_has_a_page_with_its_table_and_the_same_numbers_as_csv_and_json(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        page = (await client.get("/charts/wait?from=1800000030&to=1800000150")).text
        csv = await client.get("/api/v1/series.csv?chart=wait&from=1800000030&to=1800000150")
        points = (await client.get("/api/v1/series.json?chart=wait&from=1800000030&to=1800000150")).json()

    assert "The same as a table" in page
    assert csv.headers["content-type"].startswith("text/csv")
    lines = csv.text.splitlines()
    assert lines[0] == "time,unix_s,wait"
    assert len(lines) - 1 == len(points) == 121
    assert float(lines[-1].split(",")[2]) == points[-1]["wait"]


async def test_what_does_not_exist_is_answered_with_a_page_or_json(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        for path in ("/nope", "/runs/999", "/charts/nope"):
            answer = await client.get(path)
            assert answer.status_code == 404
            assert "There is no such page" in answer.text
        assert (await client.get("/api/nope")).json()["title"] == "There is no such thing"
        bad_chart = await client.get("/api/v1/series.csv?chart=nope")
        assert bad_chart.status_code == 422
        assert bad_chart.json()["fields"][0]["field"] == "query.chart"
        assert (await client.get("/runs/word")).status_code == 422


async def test_a_run_that_is_not_connected_any_more_is_shown_from_its_record(
    web: RunningWeb, fake: FakeControlPlane
) -> None:
    async with web.logged_in() as client:
        await _run_page(web, client)
        web.clock.push(60)
        runs, run = [(await client.get(path)).text for path in ("/runs", "/runs/1")]

    assert "out of sight" in runs
    assert "The counts balance" in run
    assert "No trajectory of this run can be looked at" in run
    assert "where it keeps its trajectories is not known here" in run
    assert "hidden" not in re.search(r'<div class="banner"[^>]*>', run)[0]  # type: ignore[index] # it is there


def _section(page: str, name: str) -> str:
    """A section of a page, by its id."""
    return page.partition(f'id="{name}"')[2].partition("</section>")[0]


async def _run_page(web: RunningWeb, client: httpx.AsyncClient) -> str:
    """The run's page, once the run was recorded."""
    await web.until_live(client, sequence=150)
    for _ in range(200):
        answer = await client.get("/runs/1")
        if answer.status_code == 200:
            return answer.text
        await asyncio.sleep(0.02)
    raise AssertionError("the run was not recorded")


async def test_what_data_algorithms_say_of_themselves_is_in_the_ledger(web: RunningWeb, fake: FakeControlPlane) -> None:
    fake.world.plugins = {"greso.prompts_skipped": 12.5}
    await fake.advance()
    async with web.logged_in() as client:
        await web.until_live(client, sequence=151)
        await _run_page(web, client)
        page = (await client.get("/runs/1/ledger")).text

    assert "Data algorithms" in page
    assert "<td>greso.prompts skipped</td><td" in page
    assert "groups trained again" in page


async def test_the_weights_page_shows_versions_and_links(web: RunningWeb, fake: FakeControlPlane) -> None:
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        page = (await client.get("/weights")).text
        tables = (await client.get("/weights/tables")).text

    assert 'href="/weights" data-key="g w" aria-current="page"' in page
    assert page.count("<bdi>127.0.0.1:7001</bdi>") == 4, "a link for each node, a row for each region"
    assert "Versions of <bdi>solver</bdi>" in page
    assert tables.strip() in page
