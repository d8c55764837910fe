"""The table of threats has all three senders, and each part names the test that runs it."""

import ast
from pathlib import Path

import pytest

from tests.hostile.table import TABLE
from tests.hostile.threats import Threats


@pytest.mark.parametrize("threats", TABLE, ids=lambda threats: threats.way)
def test_a_part_of_the_table_names_the_test_that_runs_it(threats: Threats) -> None:
    path, _, name = threats.run_by.partition("::")
    functions = ast.walk(ast.parse(Path(path).read_text()))
    assert name in {node.name for node in functions if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    assert threats.sends


def test_the_table_has_all_senders_and_each_way_once() -> None:
    assert {threats.sender for threats in TABLE} == {"peer", "policy", "file"}
    assert len({threats.way for threats in TABLE}) == len(TABLE)
