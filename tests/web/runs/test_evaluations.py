"""Tables of evaluation rounds."""

from dataclasses import replace

import pytest

from astraflow.contract.ids import NodeId
from astraflow.contract.reports.evaluations import EvaluationState
from tests import make
from web.runs.evaluations import EvaluationTable


@pytest.mark.parametrize(
    ("nodes", "note"),
    [
        ((), "1 sample masked"),
        (("a", "b"), "1 sample masked, reserves a and b"),
        ("abc", "1 sample masked, reserves 3 nodes"),
    ],
)
def test_a_running_round_names_the_nodes_that_it_reserves(nodes: tuple[str, ...], note: str) -> None:
    report = replace(
        make.round_report(state=EvaluationState.RUNNING), reserved_nodes=tuple(NodeId(node) for node in nodes)
    )

    assert EvaluationTable.note(report) == note
