"""A cluster of two hosts under faults for half a minute, and the plan of its faults."""

import random
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from soak.cluster.strikes import LONGEST_S, strikes
from tests.system.processes import ROOT

PROCESSES = ["dataflow", "weights", "page"]


def test_the_faults_follow_from_the_seed_and_begin_with_each_target_once() -> None:
    first, again = (list(islice(strikes(3, PROCESSES, every_s=5.0), 200)) for _ in range(2))
    assert first == again
    assert {strike.target for strike in first[:7]} == {*PROCESSES, "database", "bucket", "link", "machine"}
    assert 4.0 < sum(strike.after_s for strike in first) / len(first) < 6.0
    assert max(strike.away_s for strike in first) <= LONGEST_S
    assert first != list(islice(strikes(4, PROCESSES, every_s=5.0), 200))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(700)
@pytest.mark.needs("link", "postgresql")
def test_no_invariant_breaks_in_a_cluster_under_faults(tmp_path: Path) -> None:
    """A failure prints the figures and the violations."""
    arguments = ["--minutes", "0.5", "--seed", str(random.randrange(2**16)), "--directory", str(tmp_path)]
    command = [sys.executable, "-m", "soak.cluster", *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=680)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    assert "kills" in ran.stdout
