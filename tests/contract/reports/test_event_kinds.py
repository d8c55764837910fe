"""Event kinds are described once, and dataflow records exactly those."""

import ast
from collections import Counter
from pathlib import Path

import astraflow.dataflow
from astraflow.contract.reports.event_kinds import EVENT_KINDS

RECORDING = {"add", "record_action"}
"""Methods of `Events` whose first argument is a kind."""


def recorded_kinds() -> set[str]:
    """Returns the kinds in the source of dataflow: literals at the recording calls, and of the variable `kind`."""
    kinds: set[str] = set()
    for path in Path(astraflow.dataflow.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(attr=name, value=ast.Attribute(attr="events" | "_events"))):
                    kinds |= _literals(node.args[0]) if name in RECORDING else set()
                case ast.Call(func=ast.Attribute(attr="_record_event")):
                    kinds |= _literals(node.args[0])
                case ast.Call(func=ast.Name(id="Finding" | "LimitEvent")):
                    kinds |= {kind for item in node.keywords if item.arg == "kind" for kind in _literals(item.value)}
                case ast.Assign(targets=[ast.Name(id="kind")], value=ast.IfExp() as value):
                    kinds |= _literals(value)
    return kinds


def _literals(value: ast.expr) -> set[str]:
    match value:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.IfExp(body=body, orelse=other):
            return _literals(body) | _literals(other)
        case _:
            return set()


def test_dataflow_records_the_described_kinds() -> None:
    assert recorded_kinds() == {kind.name for kind in EVENT_KINDS}


def test_event_kinds_are_unique_and_routine_kinds_can_be_counted() -> None:
    assert [name for name, count in Counter(kind.name for kind in EVENT_KINDS).items() if count > 1] == []
    assert [kind.name for kind in EVENT_KINDS if kind.is_routine and not kind.plural] == []
