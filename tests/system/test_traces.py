"""Trace of a group through a real run, from the spans of all its processes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.system.processes import running

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.long]

SPAN_ORDER = ("rl.lease", "rl.episode", "rl.generate", "rl.reward", "rl.push", "rl.admit", "rl.batch", "rl.step")


async def test_a_group_has_one_trace_from_lease_to_step_across_processes(tmp_path: Path) -> None:
    options = ("--no-web", "--set", "tracing.to=traces", "--set", "stop.reward=2.0", "--set", "stop.steps=100000")
    async with running("smoke", tmp_path / "run", *options) as run:
        await run.until(lambda report: report.streams[0].training.steps > 10)
    spans = _spans(tmp_path / "run" / "traces")
    traces = [trace for trace in _by_trace(spans).values() if {span["name"] for span in trace} >= set(SPAN_ORDER)]
    assert traces, f"no trace has all spans: {sorted({span['name'] for span in spans})}"
    for trace in traces:
        begins = {name: min(span["start_time"] for span in trace if span["name"] == name) for name in SPAN_ORDER}
        assert [begins[name] for name in SPAN_ORDER] == sorted(begins.values())
        assert len({span["resource"]["attributes"]["process.pid"] for span in trace}) >= 3
        assert {span["attributes"].get("rl.group") for span in trace if span["name"] == "rl.episode"} != {None}
    _check_links(spans)
    versions = [trace for trace in _by_trace(spans).values() if trace[0]["attributes"].get("rl.version") == "solver:3"]
    assert {span["name"] for trace in versions for span in trace} >= {
        "rl.publish",
        "rl.weights.fetch",
        "rl.weights.verify",
        "rl.weights.apply",
    }


def _check_links(spans: list[dict[str, Any]]) -> None:
    """Checks that a step links to each of its groups, whose traces have a span that links back."""
    span_by_id = {span["context"]["span_id"]: span for span in spans}
    steps = [span for span in spans if span["name"] == "rl.step" and len(span["links"]) > 1]
    assert steps
    for step in steps:
        for link in step["links"]:
            (back,) = span_by_id[link["context"]["span_id"]]["links"]
            assert back["context"]["span_id"] == step["context"]["span_id"]


def _spans(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in folder.iterdir() for line in file.read_text().splitlines()]


def _by_trace(spans: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    traces: dict[str, list[dict[str, Any]]] = {}
    for span in spans:
        traces.setdefault(span["context"]["trace_id"], []).append(span)
    return traces
