"""Traces arrive in the libraries of others."""

import json
from pathlib import Path

from astraflow.contract.errors import InvalidInput
from astraflow.tracking.trace_writers import trace_writer
from astraflow.tracking.traces import trace_of
from tests.errors import raises_code
from tests.tracking.test_traces import sample


def test_spans_are_lines_of_opentelemetry(tmp_path: Path) -> None:
    with trace_writer(str(tmp_path / "run.spans"), run="run") as write:
        write(trace_of(sample()))
    (file,) = (tmp_path / "run.spans").iterdir()
    spans = [json.loads(line) for line in file.read_text().splitlines()]
    assert [span["attributes"]["gen_ai.operation.name"] for span in spans] == [
        "invoke_agent",
        *("chat", "execute_tool", "chat", "chat"),
    ]
    assert {span["parent_id"] for span in spans[1:]} == {spans[0]["context"]["span_id"]}


def test_another_target_is_refused() -> None:
    with raises_code(InvalidInput, "trajectories.unknown_target", "x"), trace_writer("x", run="run"):
        pass
