"""Metrics read by other programs: Prometheus' own tool, its client's parser, and an HTTP client."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.core import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families as parsed_text

from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.recommendations import LimitInEffect
from astraflow.contract.ids import NodeId
from astraflow.contract.reports.report import Completion, NodeState, Report
from astraflow.dataflow.endpoint_config import MetricsEndpoint, metrics_endpoint
from astraflow.dataflow.endpoints.metrics import exposition, serving_metrics
from astraflow.dataflow.history.losses import Losses
from tests import make
from tests.dataflow.families import full_report
from tests.dataflow.running import config, running

pytestmark = pytest.mark.anyio

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def parsed_openmetrics(text: str) -> list[Metric]:
    return list(openmetrics_parser.text_string_to_metric_families(text))  # type: ignore[no-untyped-call]  # not typed


def samples(report: Report) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text, _ = exposition(report, OPENMETRICS)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parsed_openmetrics(text.decode())
        for sample in family.samples
    }


def sample(report: Report, name: str, **labels: str) -> float:
    return samples(report)[name, frozenset(labels.items())]


@pytest.mark.needs("promtool")
def test_the_metrics_pass_promtool() -> None:
    text, content_type = exposition(full_report(), "")
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=30)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
    assert content_type.startswith("text/plain; version=0.0.4")


def test_both_formats_have_the_same_samples() -> None:
    text, _ = exposition(full_report(), "text/plain")
    plain = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parsed_text(text.decode())
        for sample in family.samples
    }
    assert plain == samples(full_report())
    assert exposition(full_report(), OPENMETRICS)[0].endswith(b"# EOF\n")


@pytest.mark.long
def test_samples_have_the_values_of_the_report() -> None:
    report = full_report()
    assert sample(report, "astraflow_flow_issued_groups_total", flow="train") == 10
    assert sample(report, "astraflow_flow_dropped_groups_total", flow="train", reason="informative") == 1
    assert sample(report, "astraflow_stream_wait_seconds_total", policy="solver") == 1.0
    assert sample(report, "astraflow_stream_served_rows", policy="solver", age="0") == 5
    assert sample(report, "astraflow_node_served_version", node="node-1.1", pool="local", policy="solver") == 3
    assert sample(report, "astraflow_node_busy_seconds_total", node="node-1.1", pool="local") == 1.5
    assert sample(report, "astraflow_pool_nodes", pool="local", state="ready") == 1
    assert sample(report, "astraflow_stream_plugin_metric", policy="solver", plugin="replay", metric="share") == 0.25
    of_round = {"evaluation": "held-out", "policy": "solver"}
    assert sample(report, "astraflow_evaluation_ended_score", metric="avg@4", **of_round) == 0.75
    assert sample(report, "astraflow_evaluation_ended_score_error", metric="avg@4", **of_round) == 0.05
    assert sample(report, "astraflow_evaluation_ended_version", **of_round) == 10
    assert sample(report, "astraflow_evaluation_running_done_samples", evaluation="held-out") == 60
    of_link = {"node": "node-1.1", "pool": "local", "source": "store:7000"}
    assert sample(report, "astraflow_link_delta_bytes_total", **of_link) == 60
    assert sample(report, "astraflow_link_latest_fetch_seconds", **of_link) == 0.5
    assert sample(report, "astraflow_node_lag_versions", node="node-1.1", pool="local", policy="solver") == 0
    assert sample(report, "astraflow_version_changed_ratio", policy="solver") == 0.02
    assert sample(report, "astraflow_version_copy_seconds", policy="solver") == 0.25
    assert sample(report, "astraflow_run_info", run="evening", simulated="engine scripted") == 1


def test_departed_nodes_have_no_samples_and_lost_ones_are_not_ready() -> None:
    gone, lost = (make.node_report(f"{state.value}.1", state=state) for state in (NodeState.GONE, NodeState.LOST))
    metric_samples = samples(make.report(nodes=(gone, lost)))
    ready = {labels: value for (name, labels), value in metric_samples.items() if name == "astraflow_node_ready"}
    assert ready == {frozenset({("node", "lost.1"), ("pool", "local")}): 0.0}


def test_special_characters_are_escaped_in_label_values() -> None:
    node = replace(make.node_report(), id=NodeId("n/1:a-b"))
    flow = replace(make.flow_report(), dropped={'a "quoted"\nreason\\': 1})
    metric_samples = samples(make.report(nodes=(node,), flows=(flow,)))
    assert any(("reason", 'a "quoted"\nreason\\') in labels for _, labels in metric_samples)


async def test_the_endpoint_answers_in_the_requested_format() -> None:
    async with serving_metrics(
        MetricsEndpoint(host="127.0.0.1", port=0), full_report, Losses(), directory=Path()
    ) as address:
        async with httpx.AsyncClient() as client:
            plain = await client.get(address, headers={"accept-encoding": "identity"})
            open_ = await client.get(address, headers={"accept": OPENMETRICS})
            head = await client.head(address)
            elsewhere = await client.get(address.removesuffix("/metrics"))
            written = await client.post(address)
        assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert int(plain.headers["content-length"]) == len(plain.content)
        assert open_.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        assert open_.headers["content-encoding"] == "gzip"
        assert list(parsed_openmetrics(open_.text))
        assert (head.status_code, head.content) == (200, b"")
        assert elsewhere.status_code == 404
        assert "/metrics" in elsewhere.text
        assert (written.status_code, written.headers["allow"]) == (405, "GET, HEAD")


def test_limits_in_effect_and_completion_are_flags() -> None:
    completion = Completion(reason="reached the reward", has_learned=True, at=1.0, ends_run=True)
    limited = make.pool_advice(limited_by=(LimitInEffect.MAX_NODES,))
    report = replace(full_report(), recommendations=(limited,), completion=completion)
    flags = {
        limit: sample(report, "astraflow_pool_limit_in_effect", pool="local", limit=limit.value)
        for limit in LimitInEffect
    }
    assert [limit for limit, flag in flags.items() if flag] == [LimitInEffect.MAX_NODES]
    assert sample(report, "astraflow_run_complete") == 1
    assert sample(full_report(), "astraflow_run_complete") == 0


async def test_the_endpoint_measures_the_disk_of_the_directory(tmp_path: Path) -> None:
    endpoint = MetricsEndpoint(host="127.0.0.1", port=0)
    serving = serving_metrics(endpoint, full_report, Losses(), directory=tmp_path)
    async with serving as address, httpx.AsyncClient() as client:
        text = (await client.get(address)).text
    values = {item.name: item.value for family in parsed_text(text) for item in family.samples}
    assert values["astraflow_run_disk_size_bytes"] == shutil.disk_usage(tmp_path).total
    assert 0 < values["astraflow_run_disk_free_bytes"] <= values["astraflow_run_disk_size_bytes"]


async def test_a_configured_token_is_required() -> None:
    endpoint = MetricsEndpoint(host="127.0.0.1", port=0, token="let-me-see")
    async with (
        serving_metrics(endpoint, full_report, Losses(), directory=Path()) as address,
        httpx.AsyncClient() as client,
    ):
        without = await client.get(address)
        wrong = await client.get(address, headers={"authorization": "Bearer something"})
        right = await client.get(address, headers={"authorization": "Bearer let-me-see"})
    assert (without.status_code, wrong.status_code, right.status_code) == (401, 401, 200)
    assert without.headers["www-authenticate"] == "Bearer"
    assert "let-me-see" not in repr(endpoint)


@pytest.mark.parametrize(
    ("address", "code"),
    [
        ("0.0.0.0:9464", "metrics.token_required"),
        ("127.0.0.1", "metrics.invalid_address"),
        ("127.0.0.1:99999", "metrics.invalid_address"),
        (":9464", "metrics.invalid_address"),
    ],
)
def test_invalid_and_unprotected_addresses_are_refused(address: str, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        metrics_endpoint(address, token="")
    assert caught.value.code == code


def test_addresses_beyond_loopback_with_a_token_and_off_are_accepted() -> None:
    everywhere = MetricsEndpoint(host="0.0.0.0", port=9464, token="secret")  # noqa: S104 (tested here)
    assert metrics_endpoint("0.0.0.0:9464", token="secret") == everywhere
    assert metrics_endpoint("[::1]:0", token="") == MetricsEndpoint(host="::1", port=0)
    assert metrics_endpoint("off", token="") is metrics_endpoint("", token="") is None


async def test_a_service_serves_metrics_and_refuses_a_port_in_use(tmp_path: Path) -> None:
    endpoint = MetricsEndpoint(host="127.0.0.1", port=0)
    async with serving_metrics(endpoint, full_report, Losses(), directory=tmp_path) as url:
        used_address = url.removeprefix("http://").removesuffix("/metrics")
        with pytest.raises(ExceptionGroup) as refused:
            async with running(tmp_path, config().model_copy(update={"metrics": used_address})):
                pass
        (problem,) = refused.value.exceptions
        assert isinstance(problem, InvalidInput)
        assert problem.code == "listen.address_unavailable"
    async with running(tmp_path, config().model_copy(update={"metrics": used_address})), httpx.AsyncClient() as client:
        text = (await client.get(f"http://{used_address}/metrics")).text
    names = {sample.name: sample.value for family in parsed_text(text) for sample in family.samples}
    assert names["astraflow_flow_issued_groups_total"] == 0


async def test_a_failed_scrape_is_counted_and_the_next_one_succeeds() -> None:
    incomplete: dict[str, Any] = {"at": None}
    losses, reports = Losses(), [replace(full_report(), **incomplete), full_report()]
    endpoint = MetricsEndpoint(host="127.0.0.1", port=0)
    async with (
        serving_metrics(endpoint, lambda: reports.pop(0), losses, directory=Path()) as address,
        httpx.AsyncClient() as client,
    ):
        assert (await client.get(address)).status_code == 503
        response = (await client.get(address)).text
    assert losses.counts["metrics"] == 1
    assert 'astraflow_run_lost_reports_total{kind="metrics"} 1.0' in response
