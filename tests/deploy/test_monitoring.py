"""Files of deploy/monitoring: tested by promtool, and against the metrics of dataflow in a real Prometheus."""

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import yaml

from astraflow.cli.ports import free_ports
from astraflow.contract.training_metrics import TRAINING_METRICS
from astraflow.dataflow.endpoint_config import MetricsEndpoint
from astraflow.dataflow.endpoints.metrics import serving_metrics
from astraflow.dataflow.history.losses import Losses
from deploy.monitoring import make_dashboard
from docs.generate import openmetrics
from tests import make
from tests.dataflow.families import full_report
from tests.system.processes import running

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
RUNBOOK = ROOT / "docs" / "how-to" / "monitoring.md"
TRAINED = {metric.name for metric in TRAINING_METRICS}
"""Metrics of docs/reference/metrics.md, which the site generates from the same table."""

TOKEN = "let-me-see"
ENDLESS = ("--no-web", "--set", "stop.reward=2.0", "--set", "stop.steps=100000")

Json = dict[str, Any]


def rules() -> list[Json]:
    """Returns all alerts."""
    (group,) = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    rules: list[Json] = group["rules"]
    return rules


def panels() -> list[Json]:
    """Returns the panels of the dashboard, without its rows."""
    panels = json.loads(make_dashboard.PATH.read_text())["panels"]
    return [panel for panel in panels if panel["type"] != "row"]


def queries() -> list[str]:
    """Returns all queries of the dashboard, for all runs."""
    return [target["expr"].replace("$instance", ".+") for panel in panels() for target in panel["targets"]]


def families_in(query: str) -> set[str]:
    """Returns the metrics of AstraFlow that a query names."""
    return set(re.findall(r"\bastraflow_\w+", query))


def documented_families() -> set[str]:
    """Returns the metrics of the table in the documentation, which another test keeps equal to the code."""
    return set(re.findall(r"^\| `(astraflow_\w+)`", openmetrics.PAGE.text(), flags=re.MULTILINE))


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running Prometheus."""

    client: httpx.AsyncClient

    async def query(self, query: str) -> list[Json]:
        """Returns the series that a query has now."""
        answer = (await self.client.get("/api/v1/query", params={"query": query})).json()
        assert answer["status"] == "success", answer
        series: list[Json] = answer["data"]["result"]
        return series

    async def rules(self) -> list[Json]:
        """Returns the evaluated rules."""
        (group,) = (await self.client.get("/api/v1/rules")).json()["data"]["groups"]
        rules: list[Json] = group["rules"]
        return rules


@asynccontextmanager
async def prometheus(folder: Path, address: str, *, token: str) -> AsyncIterator[Prometheus]:
    """Runs Prometheus with our configuration for one target, until it has scraped the target three times."""
    settings = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    settings["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    settings["rule_files"] = [str(MONITORING / "alerts.yml")]
    del settings["alerting"]
    (scrape,) = settings["scrape_configs"]
    (folder / "token").write_text(token)
    scrape["scrape_timeout"] = "500ms"
    scrape["authorization"] = {"credentials_file": str(folder / "token")}
    scrape["static_configs"] = [{"targets": [address.removeprefix("http://").removesuffix("/metrics")]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    (port,) = free_ports(1)
    options = {
        "config.file": folder / "prometheus.yml",
        "storage.tsdb.path": folder / "data",
        "web.listen-address": f"127.0.0.1:{port}",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus", *(f"--{name}={value}" for name, value in options.items())], stdout=log, stderr=log
        )
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                with anyio.fail_after(60):
                    await _until_scraped(client)
                yield Prometheus(client)
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait, 30)


async def _until_scraped(client: httpx.AsyncClient) -> None:
    while True:
        await asyncio.sleep(0.1)
        try:
            answer = await client.get("/api/v1/query", params={"query": "count_over_time(up[1m]) >= 3"})
            evaluated = await client.get("/api/v1/rules")
        except httpx.TransportError:
            continue  # it starts
        if answer.status_code != 200 or evaluated.status_code != 200:
            continue  # it is not ready and answers with a sentence
        is_scraped, groups = answer.json()["data"]["result"], evaluated.json()["data"]["groups"]
        if is_scraped and all(rule["health"] != "unknown" for group in groups for rule in group["rules"]):
            return


@pytest.mark.needs("promtool")
def test_the_alerts_fire_for_the_series_of_their_tests() -> None:
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(["promtool", *command], cwd=MONITORING, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test_in_which_it_fires() -> None:
    tests = yaml.safe_load((MONITORING / "alerts_test.yml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == {rule["alert"] for rule in rules()}


def test_every_alert_has_a_severity_a_summary_and_a_section_of_the_runbook() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning"), rule["alert"]
        assert rule["annotations"]["summary"]
    sections = re.findall(r"^### (AstraFlow\w+)\n\S", RUNBOOK.read_text(), flags=re.MULTILINE)
    assert sections == [rule["alert"] for rule in rules()]


def test_alerts_and_dashboard_name_documented_metrics_only() -> None:
    expressions = [*queries(), *(rule["expr"] for rule in rules())]
    assert set().union(*map(families_in, expressions)) <= documented_families()
    names = [name for query in expressions for name in re.findall(r'metric=~?"([\w|]+)"', query)]
    assert {name for each in names for name in each.split("|")} <= TRAINED
    assert names


def test_the_dashboard_is_written_from_its_declaration() -> None:
    assert json.loads(make_dashboard.PATH.read_text()) == make_dashboard.dashboard(), (
        "run `python -m deploy.monitoring.make_dashboard`"
    )


def test_the_dashboard_has_the_structure_that_grafana_reads() -> None:
    dashboard = json.loads(make_dashboard.PATH.read_text())
    everything = dashboard["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard["panels"]))) == variables
    cells = [cell for panel in everything for cell in cells_of(panel["gridPos"])]
    assert len(set(cells)) == len(cells), "panels overlap"
    assert all(0 <= x < 24 for x, _ in cells)
    for panel in panels():
        assert panel["title"] and panel["description"] and panel["fieldConfig"]["defaults"]["unit"]
        references = [target["refId"] for target in panel["targets"]]
        assert references and len(set(references)) == len(references)
        assert all('instance=~"$instance"' in target["expr"] for target in panel["targets"])


def cells_of(grid: Json) -> Iterator[tuple[int, int]]:
    """Yields the cells that a panel covers."""
    yield from (
        (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
    )


@pytest.mark.needs("promtool")
async def test_every_query_and_rule_works_in_prometheus(tmp_path: Path) -> None:
    report = full_report()
    (stream,) = report.streams
    report = replace(report, streams=(make.changed_stream(stream, metrics=dict.fromkeys(TRAINED, 0.5)),))
    endpoint = MetricsEndpoint(host="127.0.0.1", port=0, token=TOKEN)
    async with (
        serving_metrics(endpoint, lambda: report, Losses(), directory=tmp_path) as address,
        prometheus(tmp_path, address, token=TOKEN) as server,
    ):
        without = [query for query in queries() if not await server.query(query)]
        evaluated = await server.rules()
        targets = await server.query("label_replace(astraflow_run_info, 'run', '$1', 'instance', '(.+)')")
    assert without == []
    assert [rule["name"] for rule in evaluated] == [rule["alert"] for rule in rules()]
    assert {rule["health"] for rule in evaluated} == {"ok"}, evaluated
    assert len(targets) == 1  # the query of the dashboard's list of runs has one choice


@pytest.mark.long  # the queries are tested without processes above
@pytest.mark.slow
@pytest.mark.needs("promtool")
async def test_the_queries_have_series_in_a_real_run(tmp_path: Path) -> None:
    async with running("smoke", tmp_path / "run", *ENDLESS) as run:
        await run.until(lambda report: report.streams[0].training.steps > 20)
        address = run.facts()["metrics"]
        async with httpx.AsyncClient() as client:
            text = (await client.get(address)).text
        served = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}
        expected = [query for query in queries() if families_in(query) <= served and "metric=" not in query]
        async with prometheus(tmp_path, address, token="") as server:
            without = [query for query in expected if not await server.query(query)]
            firing = {rule["name"] for rule in await server.rules() if rule["state"] == "firing"}
    assert without == []
    assert len(expected) >= 40
    assert firing == set()


def test_the_collector_uses_only_components_that_it_declares() -> None:
    settings = yaml.safe_load((MONITORING / "otel-collector.yaml").read_text())
    service = settings["service"]
    assert service["extensions"] == list(settings["extensions"])
    for kind in ("receivers", "processors", "exporters"):
        used = {name for pipeline in service["pipelines"].values() for name in pipeline[kind]}
        assert used == set(settings[kind])
    for pipeline in service["pipelines"].values():
        assert pipeline["processors"][0] == "memory_limiter"
    (scrape,) = settings["receivers"]["prometheus"]["config"]["scrape_configs"]
    (direct,) = yaml.safe_load((MONITORING / "prometheus.yml").read_text())["scrape_configs"]
    assert scrape["static_configs"] == direct["static_configs"]
