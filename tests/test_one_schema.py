"""A metric of nodes and an option of pools, each declared once, reach every place that shows or reads them."""

import csv
import dataclasses
import io
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from astraflow.cli.output import json_text
from astraflow.cli.recipes.form import recipe_form
from astraflow.contract.fleet.instances import Instance, InstanceState, LaunchId
from astraflow.contract.fleet.pools import FleetStatus, KillScope, PoolSpec
from astraflow.contract.ids import PolicyId, PoolId, Version
from astraflow.contract.node_metrics import NODE_GAUGES, NodeMetric
from astraflow.contract.nodes import NodeStatus
from astraflow.contract.reports.report import NodeReport
from astraflow.dataflow.endpoints.openmetrics import ReportCollector
from astraflow.raas.counters import NodeCounters
from astraflow.wire.codecs.data import decode_status, encode_status
from docs.generate import recipe_options
from maintainer.agent.observation.names import Names
from maintainer.agent.observation.snapshot import Snapshot
from maintainer.agent.tools.inputs import NodesInput
from maintainer.agent.tools.views.nodes import nodes_view
from maintainer.agent.tools.views.view_context import ViewContext
from maintainer.fleet import __main__ as fleet_program
from maintainer.fleet import preflight_cli
from maintainer.fleet.config import FleetConfig, PoolConfig
from tests import make
from tests.fakes.clock import ManualClock
from web.components.downloads import csv_text
from web.components.rendering import PageRenderer
from web.nodes.api import NodeDetail
from web.nodes.node_view import node_page
from web.nodes.views import nodes_sheet
from web.pools.requests import PoolChange
from web.process_settings import Settings
from web.state.fleet_state import FleetState
from web.state.node_table import NodeTable
from web.state.run_state import RunState

TEMPERATURE = NodeMetric("gpu_temperature", "kelvins", "Temperature of the hottest GPU")


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> NodeReport:
    """Returns the report of a node that has set a gauge which was declared in this test, received over the wire."""
    monkeypatch.setitem(NODE_GAUGES, "gpu_temperature", TEMPERATURE)
    counters = NodeCounters()
    counters.set_gauge("gpu_temperature", 341.5)
    report = make.node_report("eu-1.1")
    status = NodeStatus(node=report.id, running=(), versions={PolicyId("solver"): Version(3)}, gauges=counters.gauges())
    return replace(report, gauges=decode_status(encode_status(status)).gauges)


def test_a_metric_of_nodes_is_declared_once_and_reaches_the_page_the_downloads_and_rest(node: NodeReport) -> None:
    table = NodeTable(make.report(nodes=(node,)))
    (row,) = table.rows
    page = node_page(row, table, None, ())
    html = renderer().fragment("nodes/_node.html", node=page, live_texts=page.live_texts, pool="local", log=None)
    assert "<dt>Temperature of the hottest GPU</dt><dd>342\u202fkelvins</dd>" in html

    sheet = nodes_sheet([row])
    (line,) = csv.DictReader(io.StringIO(csv_text([sheet.columns, *sheet.rows])))
    assert line["gpu_temperature"] == "341.5"

    response = NodeDetail.model_validate(NodeDetail.values_of(node, lag={}))
    assert json.loads(response.model_dump_json())["gauges"] == {"gpu_temperature": 341.5}


def test_a_metric_of_nodes_is_declared_once_and_reaches_openmetrics_cli_and_mcp(node: NodeReport) -> None:
    report = make.report(nodes=(node,))
    families = {family.name: family for family in ReportCollector(report).collect()}
    family = families["astraflow_node_gpu_temperature_kelvins"]
    assert (family.documentation, family.samples[0].value) == (TEMPERATURE.meaning, 341.5)

    (reported,) = json.loads(json_text(report))["nodes"]
    assert reported["gauges"] == {"gpu_temperature": 341.5}

    snapshot = Snapshot(at=1000.0, fleet=fleet_status(), report=report, instances=(instance(node),))
    view = nodes_view(ViewContext(snapshot, (), Names(b"key")), NodesInput(pool=None))
    assert view.nodes[0].metrics == {"gpu_temperature": 341.5}


class PoolConfigWithDisk(PoolConfig):
    """Pool with one more option."""

    disk_gb: int = Field(default=50, ge=20)
    """Disk of each instance. Gigabytes."""

    def spec(self, name: str) -> PoolSpec:
        """Returns the pool's spec; the option itself is used by the fleet service."""
        return PoolConfig(**self.model_dump(exclude={"disk_gb"})).spec(name)


class FleetConfigWithDisk(FleetConfig):
    """Fleet whose pools have one more option."""

    pools: dict[str, PoolConfigWithDisk] = Field(default={})  # type: ignore[assignment]  # a narrower type
    """Pools, by name."""


def test_options_and_requests_of_pools_have_the_fields_and_defaults_of_the_contract() -> None:
    shared = {field.name for field in dataclasses.fields(PoolSpec)} - {"id"}
    default = PoolSpec(id=PoolId("eu"), provider="here")

    assert PoolConfig.model_fields.keys() == shared | {"nodes"}
    assert PoolChange.model_fields.keys() == shared | {"observed_version", "reason"}
    assert PoolConfig(provider="here").spec("eu") == default
    assert PoolChange(provider="here", observed_version=0, reason="new").spec("eu") == default


def test_an_option_of_pools_is_declared_once_and_reaches_toml_the_form_validation_and_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (fleet_program, preflight_cli, recipe_options):
        monkeypatch.setattr(module, "FleetConfig", FleetConfigWithDisk)
    recipe = tmp_path / "here.toml"
    recipe.write_text(
        'extends = "smoke"\nname = "here"\n'
        'fleet.providers.here = { kind = "local_process" }\nfleet.pools.eu = { provider = "here", disk_gb = 80 }\n'
    )

    inspect = inspecting_in(tmp_path)
    (field,) = (
        field for field in recipe_form(str(recipe), inspect=inspect).fields if field.key == "fleet.pools.eu.disk_gb"
    )
    assert (field.kind, field.value, field.minimum) == ("integer", 80, 20)
    assert field.description == "Disk of each instance. Gigabytes."

    refused = recipe_form(str(recipe), ["fleet.pools.eu.disk_gb=5"], inspect=inspect)
    assert [problem.key for problem in refused.problems] == ["fleet.pools.eu.disk_gb"]

    assert (
        "| `disk_gb` | integer at least 20 | `50` | Disk of each instance. Gigabytes. |" in recipe_options.PAGE.body()
    )


def inspecting_in(folder: Path) -> Callable[..., dict[str, Any]]:
    """Returns an inspection of fleet settings that runs in this process instead of a program of its own."""

    def inspect(values: dict[str, Any]) -> dict[str, Any]:
        file = folder / "fleet.json"
        file.write_text(json.dumps(values))
        return preflight_cli.describe(partial(fleet_program.read_config, file))

    return inspect


def renderer() -> PageRenderer:
    """Returns a renderer of fragments."""
    clock = ManualClock()
    fleet = FleetState(clock, is_absent=True)
    return PageRenderer(Settings(directory=Path()), RunState(clock), fleet, name=str, alerts=int)


def fleet_status() -> FleetStatus:
    """Returns the status of a fleet without pools."""
    return FleetStatus(
        cluster="c", at=1000.0, pools=(), kill=KillScope.NONE, kill_reason="", usd_per_hour=0.0, usd_today=0.0,
        last_sweep_at=None, orphans=0,
    )  # fmt: skip


def instance(node: NodeReport) -> Instance:
    """Returns the instance of a node."""
    return Instance(
        id=LaunchId(node.facts.name), pool=node.facts.pool, state=InstanceState.READY, provider="here", actor="ada",
        reason="demand", intended_at=900.0, expires_at=9000.0, ready_at=950.0,
    )  # fmt: skip
