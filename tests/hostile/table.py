"""Table of threats: who sends what, and what must come out.

python -m tests.hostile.table
"""

import sys

from tests.dataflow.test_damaged_data import DAMAGES
from tests.datasets.files.test_parquet import UNUSABLE
from tests.hostile.attacks import ATTACKS
from tests.hostile.files import FILES
from tests.hostile.policies import POLICIES
from tests.hostile.threats import Threats

PEERS = (
    Threats(
        sender="peer",
        way="a node credential, to a run of real processes",
        outcome="honest nodes and the trainer go on, counts balance, an event or an answer has the cause",
        run_by="tests/hostile/test_peers.py::test_nothing_that_one_node_sends_stops_a_run",
        sends={attack.name: attack for attack in ATTACKS},
    ),
)
STORED = (
    Threats(
        sender="file",
        way="a value in a Parquet file",
        outcome="refused when the data set opens, with file and row",
        run_by="tests/datasets/files/test_parquet.py::test_unusable_values_are_found_at_opening_with_file_and_row",
        sends=UNUSABLE,
    ),
    Threats(
        sender="file",
        way="damage of a record that dataflow stored",
        outcome="it is set aside with an event, and the run goes on without it",
        run_by="tests/dataflow/test_damaged_data.py::test_a_run_continues_without_a_damaged_record",
        sends=DAMAGES,
    ),
)
TABLE = (*PEERS, *POLICIES, *FILES, *STORED)


def text() -> str:
    """Returns the table as Markdown."""
    rows = [
        f"| {threats.sender} | {threats.way} | {name} | {threats.outcome} |"
        for threats in TABLE
        for name in threats.sends
    ]
    return "\n".join(["| sender | how | what | what must come out |", "|---|---|---|---|", *rows, ""])


if __name__ == "__main__":
    sys.stdout.write(text())
