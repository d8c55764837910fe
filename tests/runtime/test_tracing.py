"""Spans: one trace per group across all processes, and no overhead without a recorder."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import GroupId, Version
from astraflow.contract.rollouts.timelines import MAX_HOPS
from astraflow.runtime import tracing
from astraflow.runtime.otel_export import OtelRecorder, create_exporter
from astraflow.runtime.tracing import (
    SpanRecord,
    TracingConfig,
    begin_run,
    collect_hops,
    configure,
    effective_config,
    format_tracing,
    parse_tracing,
    span,
)
from tests.errors import raises_code

pytestmark = pytest.mark.anyio


@dataclass
class Kept:
    """Recorder that stores spans in memory."""

    spans: list[SpanRecord] = field(default_factory=list)

    def record(self, span: SpanRecord) -> None:
        self.spans.append(span)


@pytest.fixture(autouse=True)
def reset_tracing() -> Iterator[None]:
    yield
    configure(None)


def recording(run: str = "run", *, share: float = 1.0) -> Kept:
    kept = Kept()
    configure(kept, share=share)
    begin_run(run)
    return kept


def trace_of(group: str, *, run: str = "run") -> int:
    kept = recording(run)
    with span("rl.episode", group=group):
        pass
    return kept.spans[0].trace


def test_spans_of_a_group_have_the_same_trace_in_every_process() -> None:
    assert trace_of("train:1") == trace_of("train:1") != trace_of("train:2")
    assert trace_of("train:1") != trace_of("train:1", run="another run")
    assert trace_of("train:1").bit_length() <= 128


def test_a_nested_span_is_a_child_of_the_outer_one() -> None:
    kept = recording()
    with span("rl.episode", group=GroupId("train:1"), version_now=Version(3)) as hop:
        with span("rl.generate", policy="solver"):
            pass
        hop.annotate(node="node-1")
    inner, outer = kept.spans
    assert (inner.name, inner.trace, inner.parent) == ("rl.generate", outer.trace, outer.span)
    assert outer.parent is None
    assert outer.began_ns <= inner.began_ns <= inner.ended_ns <= outer.ended_ns
    assert outer.attributes == {
        "rl.run": "run",
        "rl.group": "train:1",
        "rl.version_now": 3,
        "rl.node": "node-1",
    }
    assert {type(value) for value in outer.attributes.values()} == {str, int}


def test_a_nested_span_without_an_outer_one_is_not_recorded() -> None:
    kept = recording()
    with span("rl.generate", policy="solver"):
        pass
    assert kept.spans == []


def test_a_push_of_several_groups_has_a_span_in_each_trace() -> None:
    kept = recording()
    with span("rl.push", groups=(group for group in ("train:1", "train:2", "train:1"))):
        pass
    assert [span.trace for span in kept.spans] == [trace_of("train:1"), trace_of("train:2")]
    assert kept.spans[0].began_ns == kept.spans[1].began_ns


def test_a_step_and_its_groups_link_to_each_other() -> None:
    kept = recording()
    with span("rl.step", step="solver:3", groups=["train:1", "train:2"]):
        pass
    step, *groups = kept.spans
    assert step.links == tuple((group.trace, group.span) for group in groups)
    assert [group.links for group in groups] == [((step.trace, step.span),)] * 2
    assert len({step.trace, *(group.trace for group in groups)}) == 3


def test_a_version_is_one_trace_from_publish_to_apply() -> None:
    kept = recording()
    for name in ("rl.publish", "rl.weights.fetch", "rl.weights.apply"):
        with span(name, version="solver:4"):
            pass
    assert len({span.trace for span in kept.spans}) == 1


def test_groups_can_be_annotated_before_the_span_ends() -> None:
    kept = recording()
    with span("rl.lease") as hop:
        hop.annotate(groups=["train:1"])
    with span("rl.lease") as hop:
        hop.annotate(groups=[])
    assert [span.name for span in kept.spans] == ["rl.lease"]


def test_an_exception_is_recorded_and_raised() -> None:
    kept = recording()
    with raises_code(InvalidInput, "invalid_input", "no"), span("rl.reward", group="train:1"):
        raise InvalidInput("no")
    assert kept.spans[0].error == "InvalidInput: no"


def test_the_sampled_share_of_groups_is_the_same_in_every_process() -> None:
    groups = [f"train:{number}" for number in range(400)]

    def followed() -> list[str]:
        kept = recording(share=0.25)
        for group in groups:
            with span("rl.episode", group=group), span("rl.generate"):
                pass
        with span("rl.step", step="solver:1", groups=groups):
            pass
        names = [span.name for span in kept.spans]
        assert names.count("rl.episode") == names.count("rl.generate") == names.count("rl.step") - 1
        return [str(span.attributes["rl.group"]) for span in kept.spans if span.name == "rl.episode"]

    first = followed()
    assert first == followed()
    assert 60 < len(first) < 140


async def test_spans_of_concurrent_tasks_do_not_mix() -> None:
    kept = recording()

    async def episode(group: str) -> None:
        with span("rl.episode", group=group):
            await asyncio.sleep(0)
            with span("rl.generate", group_seen=group):
                await asyncio.sleep(0)

    await asyncio.gather(*(episode(f"train:{number}") for number in range(5)))
    traces = {span.attributes["rl.group"]: span.trace for span in kept.spans if span.name == "rl.episode"}
    for recorded_span in kept.spans:
        if recorded_span.name == "rl.generate":
            assert recorded_span.trace == traces[recorded_span.attributes["rl.group_seen"]]


@pytest.mark.parametrize("is_exported", [False, True])
async def test_the_hops_of_a_block_and_its_tasks_are_collected_with_and_without_a_recorder(is_exported: bool) -> None:
    kept = recording() if is_exported else Kept()

    async def use_tool(number: int) -> None:
        with span("rl.tool", tool=f"tool {number}") as hop:
            await asyncio.sleep(0)
            hop.annotate(calls=number)

    with span("rl.episode", group="train:1"), collect_hops() as hops:
        await asyncio.gather(*map(use_tool, range(MAX_HOPS + 3)))
        with pytest.raises(KeyError), span("rl.reward"):
            raise KeyError("answer")
    with span("rl.tool", tool="later"):
        pass
    assert len(hops) == MAX_HOPS
    assert (hops[0].name, hops[0].detail, hops[0].error) == ("rl.tool", "tool tool 0, calls 0", "")
    assert all(hop.duration_s >= 0 for hop in hops)
    assert len(kept.spans) == (MAX_HOPS + 5 if is_exported else 0)


def test_no_span_is_created_without_a_recorder_and_a_run() -> None:
    read: list[str] = []

    def groups() -> Iterator[str]:
        read.append("asked for")
        yield "train:1"

    configure(None)
    begin_run("run")
    with span("rl.push", groups=groups()) as hop:
        hop.annotate(groups=groups())
    kept = Kept()
    configure(kept)
    with span("rl.push", groups=groups()):
        pass
    assert (read, kept.spans) == ([], [])


def test_spans_are_exported_as_opentelemetry_spans(tmp_path: Path) -> None:
    recorder = OtelRecorder(create_exporter(str(tmp_path / "traces"), role="trainer"), role="trainer")
    configure(recorder)
    begin_run("run")
    with pytest.raises(ValueError, match="bad"), span("rl.step", step="solver:3", groups=["train:1"], rows=4):
        raise ValueError("bad")
    with span("rl.episode", group="train:1"), span("rl.generate"):
        pass
    recorder.close()
    spans = written(tmp_path / "traces")
    step, generation, inner, outer = spans
    assert int(step["context"]["trace_id"], 16) != int(generation["context"]["trace_id"], 16) == trace_of("train:1")
    assert step["links"][0]["context"]["span_id"] == generation["context"]["span_id"]
    assert step["attributes"] == {"rl.run": "run", "rl.step": "solver:3", "rl.rows": 4}
    assert step["status"] == {"status_code": "ERROR", "description": "ValueError: bad"}
    assert step["resource"]["attributes"]["service.name"] == "astraflow-trainer"
    assert inner["parent_id"] == outer["context"]["span_id"]
    assert outer["parent_id"] is None


def test_an_unwritable_trace_file_loses_only_spans(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    recorder = OtelRecorder(create_exporter(str(tmp_path / "file" / "below"), role="node"), role="node")
    configure(recorder)
    begin_run("run")
    worked = False
    with span("rl.episode", group="train:1"):
        worked = True
    recorder.close()
    assert worked
    assert (tmp_path / "file").read_text() == ""


def test_the_environment_overrides_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = TracingConfig(to="traces", share=0.5)
    assert effective_config(recipe) == recipe
    assert parse_tracing(format_tracing(recipe)) == recipe
    monkeypatch.setenv(tracing.TRACES, "http://collector:4318#0.1")
    assert effective_config(recipe) == TracingConfig(to="http://collector:4318", share=0.1)
    monkeypatch.setenv(tracing.TRACES, "/tmp/traces")  # noqa: S108 (only a name)
    assert effective_config(recipe) == TracingConfig(to="/tmp/traces")  # noqa: S108 (as above)


@pytest.mark.parametrize("text", ["traces#all", "traces#2", "traces#"])
def test_an_invalid_sampling_share_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="share"):
        parse_tracing(text)


def written(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.iterdir()) for line in file.read_text().splitlines()]
