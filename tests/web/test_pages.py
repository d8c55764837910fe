"""Pages in a browser without scripts."""

import asyncio
import json

import httpx
import pytest

from astraflow.contract.records import render
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.synthetic_run import STEPS_PER_S, SyntheticRun, hostile_record, learned
from tests.fakes.web import RunningWeb, running_web
from tests.web.page_elements import parsed
from web.runs import routes
from web.state.annotations import capitalized

pytestmark = pytest.mark.anyio

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>'\"&{{7*7}}"


@pytest.mark.long
async def test_the_overview_is_complete_without_scripts(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        page = parsed(await client.get("/"))

    diagnosis = page.one("h1[data-live-text=policy/solver/diagnosis]")
    assert (diagnosis.tone in ("good", "pace"), diagnosis.text != "") == (True, True), "healthy, whatever limits"
    assert [mark for mark in page.texts(".chain-mark") if mark] == ["sets the pace"], "of one stage"
    assert page.one("[data-live-text=policy/solver/steps]").text == "131"
    assert page.one("[data-live-text=policy/solver/version]").text == "v131"
    assert all(line["points"] for line in page.all("figure.chart polyline")), "the server draws the lines"
    assert page.has("figure.chart polyline")
    assert json.loads(page.one("#table-points").text)["lags"].keys() == {"node-a", "node-b"}, "the version lag chart"


async def test_before_the_first_report_pages_are_empty_and_show_the_address(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    async with (
        running_web(tmp_path_factory.mktemp("web"), "127.0.0.1:9") as web,
        web.logged_in() as client,
    ):
        overview, nodes, runs = [parsed(await client.get(path)) for path in ("/", "/nodes", "/runs")]
        report = await client.get("/api/v1/report")

    assert overview.one("h1.empty-title").texts("code") == ["127.0.0.1:9"]
    assert nodes.one(".empty").texts("code") == ["127.0.0.1:9"]
    assert not nodes.has("table")
    assert runs.one(".empty").commands() == [["astraflow", "run", "reverse"]]
    assert (report.status_code, report.json()["status"]) == (503, 503)


@pytest.mark.long
async def test_the_nodes_page_shows_the_recommendation_of_each_pool(web: RunningWeb, fake: FakeControlPlane) -> None:
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        page = parsed(await client.get("/nodes"))

    (advice,) = fake.synthetic_run.report(150).recommendations
    assert page.one("[data-live-text=pool/local/recommendation]").text == capitalized(render(advice.change))


async def test_the_nodes_page_has_a_row_per_node_and_filters_by_state(web: RunningWeb, fake: FakeControlPlane) -> None:
    fake.synthetic_run.draining.add("n1")
    await fake.advance()
    async with web.logged_in() as client:
        await web.until_live(client, sequence=151)
        all_rows = parsed(await client.get("/nodes"))
        draining = parsed(await client.get("/nodes?state=draining"))

    assert [row["id"] for row in all_rows.all("tr[id]")] == ["row-n0", "row-n1"], "ready first"
    assert [row["id"] for row in draining.all("tr[id]")] == ["row-n1"]


async def test_without_nodes_the_page_shows_the_command_that_adds_one(web: RunningWeb, fake: FakeControlPlane) -> None:
    fake.synthetic_run.nodes = ()
    await fake.advance()
    async with web.logged_in() as client:
        await web.until_live(client, sequence=151)
        page = parsed(await client.get("/nodes"))

    (join,) = page.one(".empty").commands()
    assert join[:2] == ["astraflow", "join"]
    assert join[2].startswith("127.0.0.1:")
    assert not page.has("table")


@pytest.mark.long
async def test_the_run_page_has_facts_counts_charts_and_the_reward_histogram(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        page = parsed(await _run_page(web, client))

    balances = page.one("#accounting").all(".balance-sentence[data-tone]")
    assert {balance.tone for balance in balances} == {"good"}
    assert any("dropped: informative" in row[0] for row in page.one("#accounting").rows())
    assert "2 versions" in page.one(".facts.roomy").facts().values()
    assert all(line["d"].startswith("M") for line in page.all("path.line.main"))
    spread = page.one("#samples").one("figure.spread")
    assert spread.one(".chart-insight").numbers[-1] == 1.0
    assert spread.has("a.bar")


@pytest.mark.long
async def test_the_run_page_lists_evaluations_by_version_with_their_error(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        section = parsed(await _run_page(web, client)).one("#evaluations")
        fragment = parsed(await client.get("/runs/1/evaluations"))

    assert section.texts("caption") == ["held-out"]
    assert [head for head in section.texts("th") if "@" in head] == ["avg@4", "pass@1", "pass@4", "maj@4"]
    rounds = section.rows()
    assert [row[0] for row in rounds] == [str(number) for number in range(13, 0, -1)]
    (row,) = (row for row in rounds if row[2] == "v120")
    assert row[3] == "done"
    assert f"{learned(round(120 / STEPS_PER_S) + 4):.2f} ± 0.03" in row
    assert any("37 of 128" in cell for row in rounds for cell in row)
    assert any("1 sample masked" in cell for row in rounds for cell in row)
    assert {state.tone for state in section.all(".state")} >= {"good"}
    assert not section.has("a[rel=next]"), "everything fits on one page"
    assert fragment.texts("caption") == ["held-out"]
    assert not fragment.has("html")


async def test_older_rounds_are_on_their_own_page(
    web: RunningWeb, fake: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "PAGE_ROUNDS", 5)
    async with web.logged_in() as client:
        numbers: list[str] = []
        page = await _run_page(web, client)
        while True:
            section = parsed(page).one("#evaluations")
            numbers += [row[0] for row in section.rows()]
            if not section.has("a[rel=next]"):
                break
            page = (await client.get(section.one("a[rel=next]")["href"])).text
        assert "/runs/1#evaluations" in section.links()

    assert numbers == [str(number) for number in range(13, 0, -1)]


async def test_a_run_without_evaluations_shows_the_command_that_starts_one(
    web: RunningWeb, fake: FakeControlPlane
) -> None:
    fake.sequence = 5
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        section = parsed(await _run_page(web, client)).one("#evaluations")

    assert not section.has("table")
    command = ["astraflow", "evaluate", "version", "NAME"]
    assert command in [code.split() for code in section.one(".empty").texts("code")]


async def test_two_policies_each_have_their_own_overview(web: RunningWeb, fake: FakeControlPlane) -> None:
    fake.synthetic_run.policies = ("solver", "verifier")
    await fake.advance()
    async with web.logged_in() as client:
        await web.until_live(client, sequence=151)
        page = parsed(await client.get("/?policy=verifier"))

    chosen = [(link.text, link["href"]) for link in page.one(".toolbar").all("a[aria-current]")]
    assert ("verifier", "/?policy=verifier&range=15m") in chosen
    assert page.has("[data-live-text=policy/verifier/wait]")
    assert not page.has("[data-live-text=policy/solver/wait]")


async def test_hostile_strings_stay_text_on_every_page(web: RunningWeb, fake: FakeControlPlane) -> None:
    fake.synthetic_run = SyntheticRun(
        nodes=(HOSTILE, "b"), prompt=HOSTILE, simulated=(HOSTILE,), node_errors={"b": (HOSTILE,)}, asker=HOSTILE
    )
    fake.synthetic_run.act(150, hostile_record(HOSTILE))
    await fake.advance()
    async with web.logged_in() as client:
        await _run_page(web, client)
        for path in ("/", "/nodes", "/runs", "/runs/1", "/charts/reward", "/nodes/n0/drain"):
            answer = await client.get(path)
            assert answer.status_code == 200
            assert "<script>alert" not in answer.text
            assert "<img" not in answer.text
            assert "{{7*7}}" in answer.text, "shown as text, not rendered as a template"


@pytest.mark.long
async def test_simulated_components_are_labelled_on_every_page(web: RunningWeb, fake: FakeControlPlane) -> None:
    engine = "engine scripted"
    fake.synthetic_run.simulated = (engine,)
    await fake.advance()
    async with web.logged_in() as client:
        await web.until_live(client, sequence=151)
        for path in ("/", "/nodes", "/runs"):
            chip = parsed(await client.get(path)).one(".chip.simulated-parts")
            assert engine in chip.text


@pytest.mark.past_reports
async def test_a_chart_has_a_page_with_its_table_and_the_same_numbers_as_csv_and_json(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        page = parsed(await client.get("/charts/wait?from=1800000030&to=1800000150"))
        csv = await client.get("/api/v1/series.csv?chart=wait&from=1800000030&to=1800000150")
        points = (await client.get("/api/v1/series.json?chart=wait&from=1800000030&to=1800000150")).json()

    assert page.one("table").rows()
    assert csv.headers["content-type"].startswith("text/csv")
    lines = csv.text.splitlines()
    assert lines[0] == "time,unix_s,wait"
    assert len(lines) - 1 == len(points) == 121
    assert float(lines[-1].split(",")[2]) == points[-1]["wait"]


@pytest.mark.long
async def test_unknown_addresses_are_answered_with_a_page_or_json(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        for path in ("/nope", "/runs/999", "/charts/nope"):
            answer = await client.get(path)
            assert answer.status_code == 404
            assert parsed(answer).one("main").has("#report")
        assert (await client.get("/api/nope")).json()["code"] == "http.404"
        bad_chart = await client.get("/api/v1/series.csv?chart=nope")
        assert bad_chart.status_code == 404
        assert "wait" in bad_chart.json()["detail"], "the known charts"
        bad_name = await client.get("/api/v1/series.csv?chart=no%20name")
        assert bad_name.status_code == 422
        assert bad_name.json()["fields"][0]["field"] == "query.chart"
        assert (await client.get("/runs/word")).status_code == 422


@pytest.mark.long
async def test_a_disconnected_run_is_shown_from_its_record(web: RunningWeb, fake: FakeControlPlane) -> None:
    async with web.logged_in() as client:
        await _run_page(web, client)
        web.clock.push(60)
        runs, run = [parsed(await client.get(path)) for path in ("/runs", "/runs/1")]

    assert "not connected" in runs.one("tr#run-1").texts(".state")
    assert {balance.tone for balance in run.one("#accounting").all(".balance-sentence[data-tone]")} == {"good"}
    assert "/runs/1/trajectories" in run.one("#samples").one(".empty").links()
    assert "run directory" in run.one("#evaluations").one(".empty").text
    assert "hidden" not in run.one("#banner").attributes


async def _run_page(web: RunningWeb, client: httpx.AsyncClient) -> str:
    """Returns the run's page once the run is recorded."""
    await web.until_live(client, sequence=150)
    for _ in range(200):
        answer = await client.get("/runs/1")
        if answer.status_code == 200:
            return answer.text
        await asyncio.sleep(0.02)
    raise AssertionError("the run was not recorded")


async def test_statistics_of_data_algorithms_are_in_the_accounting(web: RunningWeb, fake: FakeControlPlane) -> None:
    fake.synthetic_run.plugins = {"greso.prompts_skipped": 12.5}
    await fake.advance()
    async with web.logged_in() as client:
        await web.until_live(client, sequence=151)
        await _run_page(web, client)
        rows = parsed(await client.get("/runs/1/accounting")).rows()

    figures = {row[1]: row[2] for row in rows if len(row) == 3}
    assert figures["greso.prompts skipped"] == "12.5"
    replayed = [figures[name] for name in figures if name.startswith("groups")]
    assert len(replayed) == 2, "groups trained again, and groups available for replay"


@pytest.mark.long
async def test_the_weights_page_shows_versions_and_links(web: RunningWeb, fake: FakeControlPlane) -> None:
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        page = await client.get("/weights")
        tables = (await client.get("/weights/tables")).text

    entry = parsed(page).one(".sidebar-links").one("[aria-current=page]")
    assert (entry["href"], entry["data-key"]) == ("/weights", "g w")
    assert parsed(page).texts("bdi").count("127.0.0.1:7001") == 4, "a link per node and a row per region"
    assert parsed(page).one("#versions").one("h2").texts("bdi") == ["solver"]
    assert tables.strip() in page.text
